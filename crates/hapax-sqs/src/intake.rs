//! The task that asks a queue for messages.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use hapax_core::{Delivery, Error, Lane, Settler as _};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::batch::MOST_ENTRIES;
use crate::envelope;
use crate::error::{self, Trouble};
use crate::line::Queue;
use crate::receipt::Receipt;
use crate::settle::{SqsSettler, seconds};
use crate::shelf::Shelf;

/// The most requests for messages at once.
const WIDEST: usize = 8;
/// How long the goodbye waits for requests that are under way: what SQS answers later is lost until its visibility
/// has passed.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two looks at an empty queue, where SQS does not wait because the visibility is too short for that.
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);

/// What to receive, and where it goes.
pub(crate) struct Intake {
    pub(crate) client: Client,
    pub(crate) queue: Queue,
    pub(crate) wait: Duration,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) settler: SqsSettler,
}

/// One request's answer.
struct Answer {
    asked: usize,
    received: Result<usize, Error>,
}

/// How many requests at once, and whether to wait before the next.
struct Pace {
    width: usize,
    backoff: Backoff,
    resting_until: Option<Instant>,
}

impl Intake {
    /// Receives what the shelf is short of until told to stop, whatever happens to SQS meanwhile.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut pace = Pace { width: 1, backoff: Backoff::new(), resting_until: None };
        let mut under_way = FuturesUnordered::new();
        let mut asked = 0;
        loop {
            while let Some(count) = self.next_request(&pace, under_way.len(), asked) {
                asked += count;
                under_way.push(self.receive(count));
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.shelf.demand() => {}
                () = pace.rested(), if pace.resting_until.is_some() => pace.resting_until = None,
                Some(answer) = under_way.next(), if !under_way.is_empty() => {
                    asked -= answer.asked;
                    self.note(&answer, &mut pace);
                }
            }
        }
        let all = async { while under_way.next().await.is_some() {} };
        if timeout(PATIENCE, all).await.is_err() {
            tracing::debug!("a request for messages was given up; what it may still get comes again");
        }
    }

    /// How many messages to ask for in one more request, if there is to be one.
    fn next_request(&self, pace: &Pace, under_way: usize, asked: usize) -> Option<usize> {
        if under_way >= pace.width || pace.resting_until.is_some() {
            return None;
        }
        let short = self.shelf.shortage().saturating_sub(asked);
        (short > 0).then(|| short.min(MOST_ENTRIES))
    }

    fn note(&self, answer: &Answer, pace: &mut Pace) {
        match &answer.received {
            Ok(received) => {
                self.shelf.set_connected(true);
                pace.went_well(*received, answer.asked, self.wait);
            }
            Err(cause) => {
                tracing::warn!(queue = %self.queue.source_name(), error = %cause, "cannot receive, trying again");
                self.shelf.set_connected(false);
                self.shelf.metrics.receives_failed.increment(1);
                pace.went_wrong();
            }
        }
    }

    /// One request, which waits at SQS until there is something or the time is up.
    async fn receive(&self, asked: usize) -> Answer {
        let sent = Instant::now();
        let request = self
            .client
            .receive_message()
            .queue_url(&self.queue.url)
            .max_number_of_messages(i32::try_from(asked).unwrap_or(1)) // at most ten
            .visibility_timeout(seconds(self.queue.visibility))
            .wait_time_seconds(seconds(self.wait))
            .message_attribute_names("All")
            .message_system_attribute_names(MessageSystemAttributeName::All);
        let messages = match request.send().await.map_err(Trouble::from) {
            Ok(answer) => answer.messages.unwrap_or_default(),
            Err(trouble) => return Answer { asked, received: Err(error::queue(&self.queue.name, trouble)) },
        };
        let received = messages.len();
        if received > 0 {
            let deliveries = self.deliveries(messages, sent);
            self.freshen(&deliveries, sent).await;
            self.shelf.put(deliveries);
        }
        Answer { asked, received: Ok(received) }
    }

    fn deliveries(&self, messages: Vec<Message>, sent: Instant) -> Vec<Delivery<Receipt>> {
        let until = sent + self.queue.visibility;
        let mut last_of: HashMap<String, Receipt> = HashMap::new();
        let deliver = |message: Message| {
            let group = envelope::group(&message).filter(|_| self.queue.is_fifo()).map(str::to_owned);
            let ahead = group.as_ref().and_then(|group| last_of.get(group).cloned());
            let handle = message.receipt_handle.clone().unwrap_or_default();
            let receipt = Receipt::new(handle, sent, until, ahead);
            if let Some(group) = &group {
                last_of.insert(group.clone(), receipt.clone());
            }
            let redelivered = envelope::is_redelivered(&message);
            let mut delivery = Delivery::new(envelope::read(&self.queue, message), receipt);
            delivery.redelivered = redelivered;
            delivery.lane = group.map(|group| Lane(group.into()));
            delivery
        };
        messages.into_iter().map(deliver).collect()
    }

    /// A request may have waited before there was a message. Nobody says for how long, so that the whole wait counts
    /// against its visibility; where that is much, it begins anew.
    async fn freshen(&self, deliveries: &[Delivery<Receipt>], sent: Instant) {
        if sent.elapsed() < self.queue.visibility / 4 {
            return;
        }
        let receipts = deliveries.iter().map(|delivery| delivery.receipt().clone()).collect();
        for cause in self.settler.extend(receipts).await.into_iter().filter_map(Result::err) {
            tracing::debug!(error = %cause, "a delivery that has just come was not extended");
        }
    }
}

impl Pace {
    /// As long as requests come back full there is more to be had at once.
    fn went_well(&mut self, received: usize, asked: usize, wait: Duration) {
        self.backoff = Backoff::new();
        self.width = if received == asked { (self.width * 2).min(WIDEST) } else { 1 };
        if received == 0 && wait.is_zero() {
            self.resting_until = Some(Instant::now() + BETWEEN_LOOKS);
        }
    }

    fn went_wrong(&mut self) {
        self.width = 1;
        self.resting_until = Some(Instant::now() + self.backoff.wait());
    }

    async fn rested(&self) {
        if let Some(until) = self.resting_until {
            sleep_until(until).await;
        }
    }
}
