//! The group gives us partitions and takes them away.

use std::sync::Arc;
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{ClientContext, Offset, TopicPartitionList};

use crate::context::{self, Trouble};
use crate::ledger::{Ledger, Place};

/// What the consuming client calls back, on the thread that polls it.
pub(crate) struct GroupContext {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) trouble: Trouble,
    pub(crate) group: String,
    /// How long a partition that is to be given back waits for what is in hand of it. The group waits, too,
    /// and longer than `max.poll.interval.ms` it does not.
    pub(crate) drain: Duration,
}

impl GroupContext {
    /// An orderly goodbye: finish, commit, give back.
    fn give_back(&self, consumer: &BaseConsumer<Self>, places: &[Place]) {
        let parted = self.ledger.part(places, self.drain);
        self.ledger.metrics.revoked.increment(places.len() as u64);
        if parted.in_hand > 0 {
            self.ledger.metrics.lost.increment(1);
            tracing::warn!(
                group = %self.group, in_hand = parted.in_hand,
                "partitions were given back before all their messages were finished; these come again as duplicates"
            );
        }
        // In the meantime the group may have lost its patience with us.
        if !parted.commits.is_empty() && !consumer.assignment_lost() {
            self.commit_now(consumer, &parted.commits);
        }
    }

    /// They belong to somebody else already: nothing of theirs may be committed.
    fn lose(&self, places: &[Place]) {
        let parted = self.ledger.part(places, Duration::ZERO);
        self.ledger.metrics.lost.increment(places.len() as u64);
        tracing::warn!(
            group = %self.group, partitions = places.len(), in_hand = parted.in_hand,
            "lost partitions to the group; what was not committed comes again"
        );
    }

    /// Commits and waits for the answer. An asynchronous commit would not be answered at all: the client tells its
    /// outcome to a callback that is not to be had here.
    pub(crate) fn commit_now(&self, consumer: &BaseConsumer<Self>, commits: &[(Place, i64)]) {
        let committed = list(commits).and_then(|offsets| consumer.commit(&offsets, CommitMode::Sync));
        self.note_commit(committed);
    }

    fn note_commit(&self, result: KafkaResult<()>) {
        match result {
            Ok(()) => {
                self.ledger.metrics.commits.increment(1);
                self.ledger.told();
            }
            Err(error) => {
                self.ledger.metrics.commits_failed.increment(1);
                self.ledger.untell();
                tracing::debug!(group = %self.group, %error, "offsets were not committed; trying again while the partitions are ours");
            }
        }
    }
}

/// Offsets as the client wants them.
pub(crate) fn list(commits: &[(Place, i64)]) -> KafkaResult<TopicPartitionList> {
    let mut list = TopicPartitionList::with_capacity(commits.len());
    for ((topic, number), offset) in commits {
        list.add_partition_offset(topic, *number, Offset::Offset(*offset))?;
    }
    Ok(list)
}

/// Partitions as the client wants them.
pub(crate) fn partitions(places: &[Place]) -> TopicPartitionList {
    let mut list = TopicPartitionList::with_capacity(places.len());
    for (topic, number) in places {
        list.add_partition(topic, *number);
    }
    list
}

fn places(list: &TopicPartitionList) -> Vec<Place> {
    list.elements().iter().map(|element| (element.topic().to_owned(), element.partition())).collect()
}

impl ClientContext for GroupContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        context::log(level, facility, message);
    }

    fn stats_raw(&self, _: &[u8]) {}

    fn error(&self, error: KafkaError, reason: &str) {
        context::note(&self.trouble, &error, reason);
    }
}

impl ConsumerContext for GroupContext {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(list) => {
                tracing::info!(group = %self.group, partitions = list.count(), "partitions assigned");
                self.ledger.assign(places(list));
            }
            Rebalance::Revoke(list) if consumer.assignment_lost() => self.lose(&places(list)),
            Rebalance::Revoke(list) => {
                tracing::info!(group = %self.group, partitions = list.count(), "giving partitions back");
                self.give_back(consumer, &places(list));
            }
            Rebalance::Error(error) => {
                tracing::warn!(group = %self.group, %error, "the group could not be rebalanced; trying again");
            }
        }
    }

    /// A partition that was paused when it went must not come back paused.
    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(list) = rebalance
            && list.count() > 0
            && let Err(error) = consumer.resume(list)
        {
            tracing::debug!(group = %self.group, %error, "partitions could not be resumed");
        }
    }
}
