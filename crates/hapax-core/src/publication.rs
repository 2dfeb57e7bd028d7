//! What a handler wants to say: messages that are published once its transaction is committed.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::{
    BoxError, Code, ConsumerName, Envelope, Event, Failure, Fault, Headers, Message, MessageId, Outgoing,
    SENT_AT_HEADER, Timestamp,
};

/// The header that names the message in whose handling another one was published.
pub const CAUSATION_ID_HEADER: &str = "hapax-causation-id";
/// Headers of the W3C's trace context, which a published message takes over from its cause.
const TRACE_HEADERS: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// Into so many parts the outbox is divided by key; each part is one relay's at a time.
pub const BUCKETS: u16 = 64;

/// Where a message is published.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The relay's name for the broker; empty for its default one.
    pub broker: String,
    /// The exchange, topic or stream; empty for the broker's default, which routes to a queue by its name.
    pub name: String,
    /// The routing key, or the queue's name.
    pub routing_key: String,
}

impl Destination {
    /// A queue by its name.
    pub fn queue(queue: impl Into<String>) -> Self {
        Self { routing_key: queue.into(), ..Self::default() }
    }

    /// An exchange and a routing key.
    pub fn exchange(exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        Self { name: exchange.into(), routing_key: routing_key.into(), ..Self::default() }
    }

    /// A message on its way there, as a publisher of that broker takes it.
    pub(crate) fn outgoing(&self, envelope: Envelope) -> Outgoing {
        Outgoing { envelope, destination: self.name.clone(), routing_key: self.routing_key.clone() }
    }

    /// The same on another broker than the relay's default one.
    #[must_use]
    pub fn on(mut self, broker: impl Into<String>) -> Self {
        self.broker = broker.into();
        self
    }
}

impl fmt::Display for Destination {
    /// `broker:name/routing-key`, without what is empty.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.broker.is_empty() {
            write!(f, "{}:", self.broker)?;
        }
        if !self.name.is_empty() {
            write!(f, "{}/", self.name)?;
        }
        f.write_str(&self.routing_key)
    }
}

/// The message in whose handling others are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    id: MessageId,
    correlation_id: Option<String>,
    trace: Vec<(String, String)>,
    happens_again: bool,
}

impl Cause {
    /// A message of which nothing but the id is known.
    pub const fn new(id: MessageId) -> Self {
        Self { id, correlation_id: None, trace: Vec::new(), happens_again: false }
    }

    /// Its id may one day be another's: that of a request, whose key is free again when its record is gone. What is
    /// published in handling it gets ids of its own each time, since what the later one publishes is no copy. For
    /// causes whose record commits together with what they publish, so that no second run publishes it again.
    #[must_use]
    pub fn whose_id_is_used_again(self) -> Self {
        Self { happens_again: true, ..self }
    }

    /// A message that was delivered.
    pub fn of<T>(message: &Message<T>) -> Self {
        let trace = trace_of(message.headers());
        let correlation_id = message.correlation_id().map(str::to_owned);
        Self { id: message.id().clone(), correlation_id, trace, happens_again: false }
    }

    /// A message as it was delivered, under its id.
    pub fn of_envelope(id: MessageId, envelope: &Envelope) -> Self {
        let correlation_id = envelope.properties.correlation_id.clone();
        Self { id, correlation_id, trace: trace_of(&envelope.headers), happens_again: false }
    }
}

fn trace_of(headers: &Headers) -> Vec<(String, String)> {
    let value = |name: &&str| Some(((*name).to_owned(), headers.get(name)?.to_owned()));
    TRACE_HEADERS.iter().filter_map(value).collect()
}

/// What a message is given when it is published: known before its body is made, for bodies that repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Its id, the same each time the same handling publishes it.
    pub id: MessageId,
    /// The correlation id: its cause's, else its cause's id, else its own id.
    pub correlation_id: String,
    /// Its cause's id.
    pub causation_id: Option<MessageId>,
    /// When it was published, by the process's clock.
    pub sent_at: Timestamp,
}

type MakeBody = Box<dyn FnOnce(&Stamp) -> Result<Bytes, BoxError> + Send>;

enum Content {
    Ready(Bytes),
    Made(MakeBody),
}

/// A message to be published when the transaction that takes it is committed.
///
/// ```
/// # #[derive(serde::Serialize)] struct OrderPaid { order_id: i64 }
/// # impl hapax_core::Event for OrderPaid { const TYPE: &'static str = "OrderPaid"; }
/// use hapax_core::Publication;
///
/// let receipt = Publication::of(&OrderPaid { order_id: 7 })?
///     .to_exchange("events", "order.paid")
///     .key("7")                                       // messages of one key are published in order
///     .header("tenant", "north");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[must_use = "a publication does nothing until it is published"]
pub struct Publication {
    kind: String,
    content: Content,
    content_type: Option<String>,
    destination: Destination,
    key: Option<String>,
    headers: Headers,
    slot: Option<String>,
    id: Option<MessageId>,
    cause: Option<Cause>,
    delay: Duration,
}

impl Publication {
    fn with_content(kind: String, content: Content) -> Self {
        Self {
            destination: Destination::queue(kind.clone()),
            kind,
            content,
            content_type: None,
            key: None,
            headers: Headers::new(),
            slot: None,
            id: None,
            cause: None,
            delay: Duration::ZERO,
        }
    }

    /// An event as JSON, under its type, with its key, to its destination.
    pub fn of<E: Event>(event: &E) -> Result<Self, serde_json::Error> {
        let mut publication = Self::json(E::TYPE, event)?;
        publication.key = event.key();
        publication.destination = event.destination();
        Ok(publication)
    }

    /// Any value as JSON. Unless told otherwise it goes to the queue that is named like its type.
    pub fn json(kind: impl Into<String>, value: &impl Serialize) -> Result<Self, serde_json::Error> {
        let body = serde_json::to_vec(value)?;
        Ok(Self::bytes(kind, body).content_type("application/json"))
    }

    /// A body as it is.
    pub fn bytes(kind: impl Into<String>, body: impl Into<Bytes>) -> Self {
        Self::with_content(kind.into(), Content::Ready(body.into()))
    }

    /// A body that is made once its id is known, for envelopes that repeat it.
    pub fn made<B: Into<Bytes>, E: Into<BoxError>>(
        kind: impl Into<String>,
        make: impl FnOnce(&Stamp) -> Result<B, E> + Send + 'static,
    ) -> Self {
        let make: MakeBody = Box::new(move |stamp| make(stamp).map(Into::into).map_err(Into::into));
        Self::with_content(kind.into(), Content::Made(make))
    }

    /// Where it goes.
    pub fn to(mut self, destination: Destination) -> Self {
        self.destination = destination;
        self
    }

    /// To a queue by its name, on the relay's default broker.
    pub fn to_queue(self, queue: impl Into<String>) -> Self {
        self.to(Destination::queue(queue))
    }

    /// To an exchange, on the relay's default broker.
    pub fn to_exchange(self, exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        self.to(Destination::exchange(exchange, routing_key))
    }

    /// Messages of one key are published in the order of their transactions, as far as those were
    /// serialised on the key. Default: the event's own key, else none, and then no order.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.set(name, value);
        self
    }

    /// Sets the media type of the body.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Names what this message is to its cause, such as `"receipt"`: its id is then made of that name
    /// alone, whatever becomes of type and key in a later release. A slot can be used once for each cause.
    pub fn slot(mut self, slot: impl Into<String>) -> Self {
        self.slot = Some(slot.into());
        self
    }

    /// Gives it an id of your own, which must be the same each time the same thing is said.
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Names its cause. A handler of one message need not: it is that message. In a handler of a whole batch
    /// nobody else can tell.
    pub fn caused_by<T>(mut self, message: &Message<T>) -> Self {
        self.cause = Some(Cause::of(message));
        self
    }

    /// Publishes it so much later, by the database's clock. It does not hold up others of its key.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

impl fmt::Debug for Publication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Publication")
            .field("kind", &self.kind)
            .field("destination", &self.destination)
            .field("key", &self.key)
            .field("slot", &self.slot)
            .field("id", &self.id)
            .field("delay", &self.delay)
            .finish_non_exhaustive()
    }
}

/// What can be published: an [`Event`], or a [`Publication`] that says more.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be published",
    label = "neither an event nor a publication",
    note = "implement `hapax::Event` for it, or publish `hapax::Publication::json(\"Type\", &value)?`"
)]
pub trait Publishable {
    /// As a publication.
    fn into_publication(self) -> Result<Publication, NotPublishable>;
}

impl<E: Event> Publishable for E {
    fn into_publication(self) -> Result<Publication, NotPublishable> {
        Publication::of(&self).map_err(|error| NotPublishable(format!("its body cannot be written: {error}")))
    }
}

impl Publishable for Publication {
    fn into_publication(self) -> Result<Publication, NotPublishable> {
        Ok(self)
    }
}

/// Why a message cannot be published as it is given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message cannot be published: {0}")]
pub struct NotPublishable(String);

impl From<NotPublishable> for Fault {
    fn from(error: NotPublishable) -> Self {
        Self::new(Code::PublicationInvalid, error)
    }
}

impl NotPublishable {
    /// As the failure of a handler: no further attempt can mend it.
    pub fn reject(self) -> Failure {
        Failure::Reject(self.into())
    }
}

/// A message on its way into the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxEntry {
    /// Its id.
    pub id: MessageId,
    /// Who publishes it: a consumer, or a producer's name.
    pub producer: ConsumerName,
    /// The message in whose handling it is published.
    pub cause: Option<MessageId>,
    /// The key whose order is kept.
    pub key: Option<String>,
    /// Its type.
    pub kind: String,
    /// Where it goes.
    pub destination: Destination,
    /// How much later.
    pub delay: Duration,
    /// The whole message.
    pub envelope: Envelope,
}

impl OutboxEntry {
    /// Which part of the outbox it belongs to: one and the same for all messages of a key.
    pub fn bucket(&self) -> u16 {
        bucket_of(self.key.as_deref().unwrap_or(self.id.as_str()))
    }

    /// As a publisher takes it.
    pub fn into_outgoing(self) -> Outgoing {
        self.destination.outgoing(self.envelope)
    }
}

/// FNV-1a, since the parts need be no more than even.
fn bucket_of(text: &str) -> u16 {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    u16::try_from((hash ^ (hash >> 32)) % u64::from(BUCKETS)).unwrap_or_default()
}

/// What a transaction publishes: gathered while its handlers run, written by
/// [`Store::finish`](crate::Store::finish) with everything else.
#[derive(Debug)]
pub struct OutboxBuffer {
    producer: ConsumerName,
    cause: Option<Cause>,
    ordinals: HashMap<Ordinal, u32>,
    slots: HashSet<(MessageId, String)>,
    entries: Vec<OutboxEntry>,
}

/// Messages of one cause, type and key are told apart by their order.
type Ordinal = (MessageId, String, Option<String>);

impl OutboxBuffer {
    /// An empty one. It takes no memory of its own until something is published.
    pub fn new(producer: ConsumerName) -> Self {
        Self { producer, cause: None, ordinals: HashMap::new(), slots: HashSet::new(), entries: Vec::new() }
    }

    /// Names the message that is handled from here on; none where nobody can tell.
    pub fn caused_by(&mut self, cause: Option<Cause>) {
        self.cause = cause;
    }

    /// Takes a message.
    pub fn publish(&mut self, message: impl Publishable) -> Result<(), NotPublishable> {
        let publication = message.into_publication()?;
        if publication.cause.is_none() && self.cause.is_none() && publication.id.is_none() {
            let reason = "nobody can tell which message of the batch it is published for: name it with \
                          `Publication::caused_by`, or give it an `id`";
            return Err(NotPublishable(reason.to_owned()));
        }
        self.add(publication)
    }

    /// Takes a message of a producer that handles none: without an id it is given a random one.
    pub fn publish_uncaused(&mut self, message: impl Publishable) -> Result<(), NotPublishable> {
        let publication = message.into_publication()?;
        self.add(publication)
    }

    /// Takes a message that is complete already, such as the copy of a dead letter.
    pub fn put(&mut self, entry: OutboxEntry) {
        self.entries.push(entry);
    }

    /// What was published so far.
    pub fn entries(&self) -> &[OutboxEntry] {
        &self.entries
    }

    fn add(&mut self, publication: Publication) -> Result<(), NotPublishable> {
        let cause = publication.cause.clone().or_else(|| self.cause.clone());
        check(&publication)?;
        let id = self.id_of(&publication, cause.as_ref())?;
        let entry = entry(self.producer.clone(), publication, cause, id)?;
        self.entries.push(entry);
        Ok(())
    }

    fn id_of(
        &mut self,
        publication: &Publication,
        cause: Option<&Cause>,
    ) -> Result<MessageId, NotPublishable> {
        if let Some(id) = &publication.id {
            return Ok(id.clone());
        }
        let producer = self.producer.as_str();
        let its_own = || hashed(&[producer, &random(), &random()]);
        let Some(Cause { id: cause, happens_again, .. }) = cause else { return Ok(its_own()) };
        if let Some(slot) = &publication.slot
            && !self.slots.insert((cause.clone(), slot.clone()))
        {
            let reason = format!("slot `{slot}` was used before in handling message `{cause}`");
            return Err(NotPublishable(reason));
        }
        if *happens_again {
            return Ok(its_own());
        }
        if let Some(slot) = &publication.slot {
            return Ok(hashed(&[producer, cause.as_str(), "slot", slot]));
        }
        let Publication { kind, key, .. } = publication;
        let ordinal = self.ordinals.entry((cause.clone(), kind.clone(), key.clone())).or_default();
        let number = ordinal.to_string();
        *ordinal += 1;
        // A key that is absent is not the empty one.
        let (is_keyed, key) = key.as_deref().map_or(("", ""), |key| ("key", key));
        Ok(hashed(&[producer, cause.as_str(), "type", kind, is_keyed, key, &number]))
    }
}

fn random() -> String {
    fastrand::u128(..).to_string()
}

/// Databases and brokers take no NUL in what is compared or routed by.
fn check(publication: &Publication) -> Result<(), NotPublishable> {
    let Publication { kind, key, destination, .. } = publication;
    let Destination { broker, name, routing_key } = destination;
    let named = [("type", kind), ("broker", broker), ("destination", name), ("routing key", routing_key)];
    let key = key.iter().map(|key| ("key", key));
    match named.into_iter().chain(key).find(|(_, text)| text.contains('\0')) {
        Some((what, _)) => Err(NotPublishable(format!("its {what} contains a NUL character"))),
        None => Ok(()),
    }
}

fn entry(
    producer: ConsumerName,
    publication: Publication,
    cause: Option<Cause>,
    id: MessageId,
) -> Result<OutboxEntry, NotPublishable> {
    let Publication { kind, content, content_type, destination, key, mut headers, delay, .. } = publication;
    let Cause { id: causation_id, correlation_id, trace, .. } =
        cause.unwrap_or_else(|| Cause::new(id.clone()));
    let is_caused = causation_id != id;
    let stamp = Stamp {
        correlation_id: correlation_id.unwrap_or_else(|| causation_id.to_string()),
        causation_id: is_caused.then_some(causation_id),
        sent_at: Timestamp::now(),
        id,
    };
    let body = match content {
        Content::Ready(body) => body,
        Content::Made(make) => {
            make(&stamp).map_err(|error| NotPublishable(format!("its body cannot be made: {error}")))?
        }
    };
    for (name, value) in trace {
        if headers.get(&name).is_none() {
            headers.set(name, value);
        }
    }
    if let Some(causation_id) = &stamp.causation_id {
        headers.set(CAUSATION_ID_HEADER, causation_id.as_str());
    }
    headers.set(SENT_AT_HEADER, stamp.sent_at.to_string());
    let mut envelope = Envelope::new(body).with_id(stamp.id.as_str()).with_type(kind.clone());
    envelope.headers = headers;
    envelope.properties.content_type = content_type;
    envelope.properties.correlation_id = Some(stamp.correlation_id);
    envelope.properties.key.clone_from(&key);
    Ok(OutboxEntry {
        id: stamp.id,
        producer,
        cause: stamp.causation_id,
        key,
        kind,
        destination,
        delay,
        envelope,
    })
}

/// A hash of parts that cannot run into each other, in the form of a UUID (version 8: made by a rule of our own).
pub(crate) fn hashed(parts: &[&str]) -> MessageId {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    bytes[6] = 0x80 | (bytes[6] & 0x0f);
    bytes[8] = 0x80 | (bytes[8] & 0x3f);
    let hex = bytes.iter().fold(String::with_capacity(36), |mut text, byte| {
        if matches!(text.len(), 8 | 13 | 18 | 23) {
            text.push('-');
        }
        let _ = fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"));
        text
    });
    MessageId::of_hash(&hex)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Serialize)]
    struct Paid {
        order: i64,
    }

    impl Event for Paid {
        const TYPE: &'static str = "Paid";

        fn key(&self) -> Option<String> {
            Some(self.order.to_string())
        }
    }

    fn buffer(cause: &str) -> OutboxBuffer {
        let mut buffer = OutboxBuffer::new(ConsumerName::new("orders").unwrap());
        buffer.caused_by(Some(Cause::new(MessageId::new(cause).unwrap())));
        buffer
    }

    fn ids(buffer: &OutboxBuffer) -> Vec<&str> {
        buffer.entries().iter().map(|entry| entry.id.as_str()).collect()
    }

    #[test]
    fn case_29_a_handler_that_runs_again_publishes_the_same_ids() {
        let run = || {
            let mut buffer = buffer("m1");
            buffer.publish(Paid { order: 1 }).unwrap();
            buffer.publish(Paid { order: 1 }).unwrap();
            buffer.publish(Publication::bytes("Mail", "x").slot("receipt")).unwrap();
            buffer
        };
        let (first, second) = (run(), run());
        assert_eq!(ids(&first), ids(&second));
        assert_eq!(ids(&first).iter().collect::<HashSet<_>>().len(), 3);
        assert!(ids(&first).iter().all(|id| id.len() == 36 && id.as_bytes()[14] == b'8'));
    }

    /// Whatever a restart or a release brings: a retry must carry the id that the first attempt carried.
    #[test]
    fn case_35_an_id_is_the_same_after_a_restart_and_in_every_release() {
        let mut buffer = buffer("m1");
        buffer.publish(Paid { order: 1 }).unwrap();
        buffer.publish(Publication::bytes("Mail", "x")).unwrap();
        buffer.publish(Publication::bytes("Mail", "x").slot("receipt")).unwrap();
        let golden = [
            "4e80b5cd-c3d1-8332-9634-e1262a60c6e7",
            "7327f824-5697-8412-9ef6-9078b8d61c8e",
            "7abc01ca-8223-8367-a9b5-5f62d64839e7",
        ];
        assert_eq!(ids(&buffer), golden);
    }

    #[test]
    fn a_conditional_publish_shifts_no_other_id() {
        let (mut with, mut without) = (buffer("m1"), buffer("m1"));
        with.publish(Publication::bytes("Extra", "x")).unwrap();
        with.publish(Paid { order: 1 }).unwrap();
        without.publish(Paid { order: 1 }).unwrap();
        assert_eq!(ids(&with)[1], ids(&without)[0]);
    }

    #[test]
    fn a_slot_outlives_a_change_of_type_and_key_and_is_used_once() {
        let (mut old, mut new) = (buffer("m1"), buffer("m1"));
        old.publish(Publication::bytes("Mail", "x").slot("receipt")).unwrap();
        new.publish(Publication::bytes("MailV2", "x").key("k").slot("receipt")).unwrap();
        assert_eq!(ids(&old), ids(&new));
        assert!(new.publish(Publication::bytes("Mail", "x").slot("receipt")).is_err());
    }

    #[test]
    fn correlation_is_passed_on_and_causation_set() {
        let mut delivered = Envelope::new("").with_header("Traceparent", "00-ab-cd-01");
        let id = MessageId::new("m1").unwrap();
        let mut buffer = OutboxBuffer::new(ConsumerName::new("orders").unwrap());
        buffer.caused_by(Some(Cause::of_envelope(id.clone(), &delivered)));
        buffer.publish(Paid { order: 1 }).unwrap();
        delivered.properties.correlation_id = Some("c1".into());
        buffer.caused_by(Some(Cause::of_envelope(id, &delivered)));
        buffer.publish(Paid { order: 2 }).unwrap();
        let of = |index: usize| &buffer.entries()[index].envelope;
        assert_eq!(of(0).properties.correlation_id.as_deref(), Some("m1"));
        assert_eq!(of(1).properties.correlation_id.as_deref(), Some("c1"));
        assert_eq!(of(1).headers.get(CAUSATION_ID_HEADER), Some("m1"));
        assert_eq!(of(1).headers.get("traceparent"), Some("00-ab-cd-01"));
        assert!(of(1).headers.get(SENT_AT_HEADER).unwrap().parse::<Timestamp>().is_ok());
    }

    #[test]
    fn a_body_can_repeat_the_id() {
        let mut buffer = buffer("m1");
        let made = |stamp: &Stamp| Ok::<_, BoxError>(stamp.id.to_string());
        buffer.publish(Publication::made("T", made)).unwrap();
        let entry = &buffer.entries()[0];
        assert_eq!(&entry.envelope.body[..], entry.id.as_str().as_bytes());
    }

    #[test]
    fn a_cause_whose_id_is_used_again_publishes_ids_of_their_own() {
        let run = || {
            let mut buffer = OutboxBuffer::new(ConsumerName::new("http.orders").unwrap());
            let cause = Cause::new(MessageId::new("key").unwrap()).whose_id_is_used_again();
            buffer.caused_by(Some(cause));
            buffer.publish(Paid { order: 1 }).unwrap();
            buffer.publish(Publication::of(&Paid { order: 1 }).unwrap().slot("receipt")).unwrap();
            let again = buffer.publish(Publication::of(&Paid { order: 1 }).unwrap().slot("receipt"));
            assert!(again.is_err(), "a slot is used once all the same");
            assert!(buffer.entries().iter().all(|entry| entry.cause.as_ref().unwrap().as_str() == "key"));
            ids(&buffer).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let mut all = [run(), run()].concat();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 4);
    }

    #[test]
    fn without_a_cause_an_id_is_asked_for() {
        let mut buffer = OutboxBuffer::new(ConsumerName::new("orders").unwrap());
        let refused = buffer.publish(Paid { order: 1 }).unwrap_err();
        assert!(refused.to_string().contains("caused_by"), "{refused}");
        buffer.publish(Publication::bytes("T", "x").id(MessageId::new("own").unwrap())).unwrap();
        buffer.publish_uncaused(Paid { order: 1 }).unwrap();
        buffer.publish_uncaused(Paid { order: 1 }).unwrap();
        assert_eq!(ids(&buffer).iter().collect::<HashSet<_>>().len(), 3);
        assert_eq!(buffer.entries()[0].cause, None);
    }

    #[test]
    fn what_cannot_be_written_or_routed_is_refused() {
        struct Broken;
        impl Serialize for Broken {
            fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
                Err(serde::ser::Error::custom("no"))
            }
        }
        impl Event for Broken {
            const TYPE: &'static str = "Broken";
        }
        let mut buffer = buffer("m1");
        assert!(matches!(buffer.publish(Broken).unwrap_err().reject(), Failure::Reject(_)));
        for bad in [
            Publication::bytes("a\0", ""),
            Publication::bytes("T", "").key("\0"),
            Publication::bytes("T", "").to_exchange("\0", ""),
            Publication::bytes("T", "").to_exchange("", "\0"),
        ] {
            assert!(buffer.publish(bad).is_err());
        }
        assert!(buffer.entries().is_empty());
    }

    proptest! {
        #[test]
        fn parts_of_an_id_do_not_run_together(a in "\\PC{0,4}", b in "\\PC{0,4}", c in "\\PC{0,4}", d in "\\PC{0,4}") {
            prop_assert_eq!(hashed(&[&a, &b]) == hashed(&[&c, &d]), (a, b) == (c, d));
        }

        #[test]
        fn a_key_has_one_bucket(key in "\\PC{0,12}") {
            prop_assert!(bucket_of(&key) < BUCKETS);
        }
    }

    #[test]
    fn keys_spread_over_the_buckets() {
        let mut used = HashSet::new();
        (0..1_000).for_each(|number: i32| {
            used.insert(bucket_of(&number.to_string()));
        });
        assert_eq!(used.len(), usize::from(BUCKETS));
    }
}
