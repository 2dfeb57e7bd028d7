//! Messages made ready for a queue, and which of them go together.

use std::collections::{HashSet, VecDeque};

use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use hapax_core::{DEAD_LETTER_HEADER, Envelope, Error, MESSAGE_ID_HEADER, Outgoing};
use sha2::{Digest as _, Sha256};

use crate::batch::MOST_ENTRIES;
use crate::envelope::{self, Written};
use crate::error;
use crate::line::{NO_KEY, is_fifo};

/// The most that any queue takes, attributes included; a queue may take less.
const LARGEST: usize = 1 << 20;
/// The most of one request, unless it is a single message.
const LARGEST_BATCH: usize = 256 * 1024;
const LONGEST_GROUP: usize = 128;

/// A message made ready.
#[derive(Debug)]
pub(crate) struct Parcel {
    /// Its place in the call.
    pub(crate) place: usize,
    /// Its FIFO group.
    pub(crate) group: Option<String>,
    deduplication_id: Option<String>,
    written: Written,
}

/// The queue that a message is for.
pub(crate) fn queue_of(message: &Outgoing) -> &str {
    if message.destination.is_empty() { &message.routing_key } else { &message.destination }
}

/// The key it has there.
fn key_of(message: &Outgoing) -> Option<&str> {
    if message.destination.is_empty() || message.routing_key.is_empty() {
        return message.envelope.properties.key.as_deref();
    }
    Some(&message.routing_key)
}

impl Parcel {
    /// Makes a message ready. Fails if no queue would take it.
    pub(crate) fn wrap(place: usize, message: &Outgoing) -> Result<Self, Error> {
        let (key, envelope) = (key_of(message), &message.envelope);
        let fifo = is_fifo(queue_of(message));
        let group = fifo.then(|| key.map_or_else(|| NO_KEY.to_owned(), group_of));
        // A key that is a group comes back as that.
        let is_told = group.as_deref() == key;
        let written = envelope::write(envelope, key.filter(|_| !is_told))?;
        if written.size > LARGEST {
            return Err(error::unsendable(format!(
                "with its attributes it has {} bytes, and SQS takes at most {LARGEST}",
                written.size
            )));
        }
        Ok(Self { place, group, deduplication_id: fifo.then(|| deduplication_id(envelope)), written })
    }

    /// The entry of a request, called by its place in that.
    pub(crate) fn entry(&self, number: usize) -> Result<SendMessageBatchRequestEntry, Error> {
        SendMessageBatchRequestEntry::builder()
            .id(number.to_string())
            .message_body(&self.written.body)
            .set_message_attributes(Some(self.written.attributes.clone()))
            .set_message_group_id(self.group.clone())
            .set_message_deduplication_id(self.deduplication_id.clone())
            .build()
            .map_err(|cause| error::unsendable(cause.to_string()))
    }

    #[cfg(test)]
    fn size(&self) -> usize {
        self.written.size
    }
}

/// A key as a group: itself if SQS takes it, else its hash.
fn group_of(key: &str) -> String {
    let is_group =
        (1..=LONGEST_GROUP).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
    if is_group && key != NO_KEY { key.to_owned() } else { format!("sha256-{}", hex(key.as_bytes())) }
}

/// By what SQS drops copies for five minutes. A dead letter that is published again is an episode of its own; a message
/// without an id is like no other.
fn deduplication_id(envelope: &Envelope) -> String {
    let id = envelope.properties.message_id.as_deref().or_else(|| envelope.headers.get(MESSAGE_ID_HEADER));
    match (id, envelope.headers.get(DEAD_LETTER_HEADER)) {
        (Some(id), None) => hex(id.as_bytes()),
        (Some(id), Some(number)) => hex(format!("{}:{id},{number}", id.len()).as_bytes()),
        (None, _) => format!("{:032x}", fastrand::u128(..)),
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
        text
    })
}

/// The next request's messages, at most one of each FIFO group: if that one fails, it is not overtaken. Those that stay
/// keep their order.
pub(crate) fn next_batch(waiting: &mut VecDeque<Parcel>) -> Vec<Parcel> {
    let (mut batch, mut size): (Vec<Parcel>, usize) = (Vec::new(), 0);
    let mut groups = HashSet::new();
    let mut left = VecDeque::with_capacity(waiting.len());
    for parcel in waiting.drain(..) {
        let is_first = parcel.group.as_ref().is_none_or(|group| groups.insert(group.clone()));
        let fits = batch.is_empty() || size + parcel.written.size <= LARGEST_BATCH;
        if is_first && fits && batch.len() < MOST_ENTRIES {
            size += parcel.written.size;
            batch.push(parcel);
        } else {
            left.push_back(parcel);
        }
    }
    *waiting = left;
    batch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyed(queue: &str, key: Option<&str>, body: &str) -> Outgoing {
        let mut envelope = Envelope::new(body.to_owned()).with_id("m");
        envelope.properties.key = key.map(str::to_owned);
        Outgoing::to_queue(queue, envelope)
    }

    fn places(batch: &[Parcel]) -> Vec<usize> {
        batch.iter().map(|parcel| parcel.place).collect()
    }

    #[test]
    fn a_batch_holds_one_message_of_a_group_and_the_rest_keeps_its_order() {
        let keys = ["a", "a", "b", "a", "c", "b"];
        let mut waiting: VecDeque<_> = keys
            .iter()
            .enumerate()
            .map(|(place, key)| Parcel::wrap(place, &keyed("q.fifo", Some(key), "b")).unwrap())
            .collect();
        assert_eq!(places(&next_batch(&mut waiting)), [0, 2, 4]);
        assert_eq!(places(&next_batch(&mut waiting)), [1, 5]);
        assert_eq!(places(&next_batch(&mut waiting)), [3]);
        assert!(next_batch(&mut waiting).is_empty());
    }

    #[test]
    fn a_batch_has_ten_messages_and_256_kib_unless_it_is_one() {
        let large = "x".repeat(200 * 1024);
        let larger = "x".repeat(900 * 1024);
        let bodies = ["s", &large, "s", &larger, "s"];
        let mut waiting: VecDeque<_> = bodies
            .iter()
            .enumerate()
            .map(|(place, body)| Parcel::wrap(place, &keyed("q", None, body)).unwrap())
            .chain((5..20).map(|place| Parcel::wrap(place, &keyed("q", None, "s")).unwrap()))
            .collect();
        assert_eq!(places(&next_batch(&mut waiting)), [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]);
        let alone = next_batch(&mut waiting);
        assert_eq!(places(&alone), [3]);
        assert!(alone[0].size() > LARGEST_BATCH);
        assert_eq!(next_batch(&mut waiting).len(), 9);
        let refused = Parcel::wrap(0, &keyed("q", None, &"x".repeat(LARGEST))).unwrap_err();
        assert_eq!(refused.kind(), hapax_core::ErrorKind::Statement);
    }

    #[test]
    fn a_key_that_is_no_group_is_hashed_and_comes_along() {
        for key in ["ć", "", &"k".repeat(129), NO_KEY, "a b"] {
            let parcel = Parcel::wrap(0, &keyed("q.fifo", Some(key), "b")).unwrap();
            assert!(parcel.group.unwrap().starts_with("sha256-"), "{key}");
            assert_eq!(parcel.written.attributes.len(), 2, "the id and the key, or what packs it");
        }
        let plain = Parcel::wrap(0, &keyed("q.fifo", Some("order-7"), "b")).unwrap();
        assert_eq!((plain.group.as_deref(), plain.written.attributes.len()), (Some("order-7"), 1));
        assert_eq!(Parcel::wrap(0, &keyed("q.fifo", None, "b")).unwrap().group.as_deref(), Some(NO_KEY));
        assert_eq!(Parcel::wrap(0, &keyed("q", Some("order-7"), "b")).unwrap().group, None);
        let routed = Outgoing { destination: "q.fifo".into(), ..keyed("route", Some("key"), "b") };
        assert_eq!(
            (queue_of(&routed), Parcel::wrap(0, &routed).unwrap().group.as_deref()),
            ("q.fifo", Some("route"))
        );
    }

    #[test]
    fn copies_share_their_deduplication_id_and_a_new_episode_has_its_own() {
        let of = |envelope: &Envelope| deduplication_id(envelope);
        let message = Envelope::new("b").with_id("m");
        assert_eq!(of(&message), of(&Envelope::new("other").with_header(MESSAGE_ID_HEADER, "m")));
        assert_ne!(of(&message), of(&Envelope::new("b").with_id("n")));
        let dead = message.clone().with_header(DEAD_LETTER_HEADER, "7");
        assert_eq!(of(&dead), of(&dead.clone()));
        assert_ne!(of(&dead), of(&message));
        assert_ne!(of(&dead), of(&message.with_header(DEAD_LETTER_HEADER, "8")));
        assert_ne!(of(&Envelope::new("b")), of(&Envelope::new("b")));
    }
}
