//! SQS messages as envelopes, and back.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use aws_sdk_sqs::types::{Message, MessageAttributeValue, MessageSystemAttributeName};
use hapax_core::{
    Envelope, Error, Headers, MESSAGE_ID_HEADER, MESSAGE_TYPE_HEADER, Origin, Properties, Timestamp,
};

use crate::body::{self, ENCODING};
use crate::error;
use crate::line::Queue;

const CONTENT_TYPE: &str = "content-type";
const CORRELATION_ID: &str = "hapax-correlation-id";
const KEY: &str = "hapax-key";
const TIMESTAMP: &str = "hapax-timestamp";
/// The attribute that holds, as a JSON array of pairs, what found no place in an attribute of its own.
const PACKED: &str = "hapax-headers";
/// SQS's own limit.
const MOST_ATTRIBUTES: usize = 10;
const LONGEST_NAME: usize = 256;
const TEXT: &str = "String";

/// A message as SQS takes it.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) body: String,
    pub(crate) attributes: HashMap<String, MessageAttributeValue>,
    /// What SQS counts: the body, and the attributes' names, types and values.
    pub(crate) size: usize,
}

type Field<'e> = (Cow<'e, str>, Cow<'e, str>);

/// Writes a message. `key` goes into an attribute where the queue has no place for it.
pub(crate) fn write(envelope: &Envelope, key: Option<&str>) -> Result<Written, Error> {
    let (body, encoding) = body::write(envelope);
    let mut written = Written { size: body.len(), body, attributes: HashMap::new() };
    if let Some(encoding) = encoding {
        written.add(ENCODING, encoding)?;
    }
    let (own, packed) = share_out(fields(envelope, key), MOST_ATTRIBUTES - written.attributes.len());
    for (name, value) in own {
        written.add(&name, &value)?;
    }
    if !packed.is_empty() {
        written.add(PACKED, &pack(&packed)?)?;
    }
    Ok(written)
}

impl Written {
    fn add(&mut self, name: &str, value: &str) -> Result<(), Error> {
        let attribute = MessageAttributeValue::builder().data_type(TEXT).string_value(value).build();
        let attribute = attribute.map_err(|cause| error::unsendable(cause.to_string()))?;
        self.size += name.len() + TEXT.len() + value.len();
        self.attributes.insert(name.to_owned(), attribute);
        Ok(())
    }
}

/// Properties and headers in the order of their importance, since the first get attributes of their own.
fn fields<'e>(envelope: &'e Envelope, key: Option<&'e str>) -> Vec<Field<'e>> {
    let Properties { message_id, kind, correlation_id, content_type, timestamp, .. } = &envelope.properties;
    let properties: Vec<Field<'e>> = [
        (MESSAGE_ID_HEADER, message_id.as_deref().map(Cow::Borrowed)),
        (MESSAGE_TYPE_HEADER, kind.as_deref().map(Cow::Borrowed)),
        (CONTENT_TYPE, content_type.as_deref().map(Cow::Borrowed)),
        (CORRELATION_ID, correlation_id.as_deref().map(Cow::Borrowed)),
        (KEY, key.map(Cow::Borrowed)),
        (TIMESTAMP, timestamp.map(|time| Cow::Owned(time.to_string()))),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((Cow::Borrowed(name), value?)))
    .collect();
    let repeats = |name: &str, value: &str| {
        properties.iter().any(|(own, same)| own.eq_ignore_ascii_case(name) && same == value)
    };
    let headers: Vec<Field<'e>> = envelope
        .headers
        .iter()
        .filter(|(name, value)| !repeats(name, value))
        .map(|(name, value)| (Cow::Borrowed(name), Cow::Borrowed(value)))
        .collect();
    properties.into_iter().chain(headers).collect()
}

/// Who gets an attribute of its own, and who is packed together with others into one.
fn share_out(fields: Vec<Field<'_>>, room: usize) -> (Vec<Field<'_>>, Vec<Field<'_>>) {
    let mut names = HashSet::new();
    let mut may_stand_alone = |(name, value): &Field<'_>| {
        let is_good = is_attribute_name(name) && !value.is_empty() && body::is_allowed(value);
        is_good && names.insert(name.to_ascii_lowercase())
    };
    let (mut own, mut packed): (Vec<_>, Vec<_>) =
        fields.into_iter().partition(|field| may_stand_alone(field));
    if own.len() + usize::from(!packed.is_empty()) > room {
        let mut rest = own.split_off(room.saturating_sub(1));
        rest.append(&mut packed);
        packed = rest;
    }
    (own, packed)
}

/// SQS's rules, and no name of ours.
fn is_attribute_name(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let chars = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.'));
    let periods = !name.starts_with('.') && !name.ends_with('.') && !name.contains("..");
    let is_reserved =
        lower.starts_with("aws.") || lower.starts_with("amazon.") || lower == PACKED || lower == ENCODING;
    (1..=LONGEST_NAME).contains(&name.len()) && chars && periods && !is_reserved
}

/// JSON escapes control characters by itself, and leaves the two others that SQS refuses.
fn pack(fields: &[Field<'_>]) -> Result<String, Error> {
    let json = serde_json::to_string(fields).map_err(|cause| error::unsendable(cause.to_string()))?;
    Ok(json.replace('\u{FFFE}', "\\ufffe").replace('\u{FFFF}', "\\uffff"))
}

/// A received message.
pub(crate) fn read(queue: &Queue, message: Message) -> Envelope {
    let system = System(message.attributes.unwrap_or_default());
    let mut attributes = message.message_attributes.unwrap_or_default();
    let encoding = attributes.remove(ENCODING).and_then(|value| text(&value).map(Cow::into_owned));
    let packed = attributes.remove(PACKED).and_then(|value| text(&value).map(Cow::into_owned));
    let mut properties = Properties {
        key: system.key(queue),
        timestamp: system.sent(),
        broker_id: message.message_id.map(|id| format!("{}/{id}", queue.identity())),
        ..Properties::default()
    };
    let mut headers = Vec::new();
    for (name, value) in unpacked(attributes, packed) {
        if let Some((name, value)) = file(&mut properties, name, value) {
            headers.push((name, value));
        }
    }
    Envelope {
        body: body::read(message.body.unwrap_or_default(), encoding.as_deref()).into(),
        headers: headers.into_iter().collect::<Headers>(),
        properties,
        origin: Origin {
            source: queue.source_name(),
            position: system.text(&MessageSystemAttributeName::SequenceNumber),
        },
    }
}

/// All attributes in the order of their names, since SQS gives them in none, then those that were packed.
fn unpacked(
    attributes: HashMap<String, MessageAttributeValue>,
    packed: Option<String>,
) -> Vec<(String, String)> {
    let mut fields: Vec<(String, String)> = attributes
        .into_iter()
        .filter_map(|(name, value)| {
            let text = text(&value).map(Cow::into_owned);
            if text.is_none() {
                tracing::debug!(attribute = name, "an attribute that is not text was left out");
            }
            Some((name, text?))
        })
        .collect();
    fields.sort_unstable();
    let Some(packed) = packed else { return fields };
    match serde_json::from_str::<Vec<(String, String)>>(&packed) {
        Ok(rest) => fields.extend(rest),
        // Somebody else's, who uses the name for something of his own.
        Err(_) => fields.push((PACKED.to_owned(), packed)),
    }
    fields
}

/// Puts a value where it belongs among the properties, the first of its name; gives it back if it is a header.
fn file(properties: &mut Properties, name: String, value: String) -> Option<(String, String)> {
    let sent: Option<Timestamp> = name.eq_ignore_ascii_case(TIMESTAMP).then(|| value.parse().ok()).flatten();
    if let Some(sent) = sent {
        properties.timestamp = Some(sent);
        return None;
    }
    if name.eq_ignore_ascii_case(KEY) {
        properties.key = Some(value);
        return None;
    }
    let place = [
        (MESSAGE_ID_HEADER, &mut properties.message_id),
        (MESSAGE_TYPE_HEADER, &mut properties.kind),
        (CONTENT_TYPE, &mut properties.content_type),
        (CORRELATION_ID, &mut properties.correlation_id),
    ]
    .into_iter()
    .find_map(|(own, place)| own.eq_ignore_ascii_case(&name).then_some(place));
    match place {
        Some(place) if place.is_none() => {
            *place = Some(value);
            None
        }
        _ => Some((name, value)),
    }
}

/// Strings and numbers as they are, bytes if they are UTF-8.
fn text(value: &MessageAttributeValue) -> Option<Cow<'_, str>> {
    let bytes = || value.binary_value().and_then(|bytes| std::str::from_utf8(bytes.as_ref()).ok());
    value.string_value().or_else(bytes).map(Cow::Borrowed)
}

/// What SQS itself says of a message.
struct System(HashMap<MessageSystemAttributeName, String>);

impl System {
    fn text(&self, name: &MessageSystemAttributeName) -> Option<String> {
        self.0.get(name).cloned()
    }

    fn sent(&self) -> Option<Timestamp> {
        let millis: i64 = self.0.get(&MessageSystemAttributeName::SentTimestamp)?.parse().ok()?;
        Some(Timestamp::from_micros(millis.saturating_mul(1_000)))
    }

    /// The group, unless it is the one of the messages without a key.
    fn key(&self, queue: &Queue) -> Option<String> {
        self.text(&MessageSystemAttributeName::MessageGroupId).filter(|group| queue.is_key(group))
    }
}

/// Whether SQS has handed a message over before.
pub(crate) fn is_redelivered(message: &Message) -> bool {
    let attributes = message.attributes.as_ref();
    let count = attributes.and_then(|all| all.get(&MessageSystemAttributeName::ApproximateReceiveCount));
    count.and_then(|count| count.parse().ok()).is_some_and(|count: u32| count > 1)
}

/// The FIFO group of a message.
pub(crate) fn group(message: &Message) -> Option<&str> {
    message.attributes.as_ref()?.get(&MessageSystemAttributeName::MessageGroupId).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use hapax_core::Identity;

    use super::*;

    fn round_trip(envelope: &Envelope) -> Envelope {
        let Written { body, attributes, .. } = write(envelope, envelope.properties.key.as_deref()).unwrap();
        assert!(attributes.len() <= MOST_ATTRIBUTES);
        for (name, value) in &attributes {
            let value = value.string_value().unwrap();
            assert!(!value.is_empty() && body::is_allowed(value), "{name}");
        }
        let message = Message::builder().body(body).set_message_attributes(Some(attributes)).build();
        read(&Queue::named("orders"), message)
    }

    fn sorted(headers: &Headers) -> Vec<(&str, &str)> {
        let mut headers: Vec<_> = headers.iter().collect();
        headers.sort_unstable();
        headers
    }

    #[test]
    fn what_finds_no_attribute_is_packed() {
        let mut envelope = Envelope::new("b").with_id("m").with_type("Paid").with_header("", "no name");
        envelope.headers = envelope
            .headers
            .iter()
            .chain([
                ("AWS.x", "reserved"),
                ("a b", "space"),
                ("a..b", "periods"),
                ("empty", ""),
                ("A", "1"),
                ("a", "2"),
            ])
            .chain([("bell", "\u{7}"), ("odd", "\u{FFFE}\u{FFFF}"), (PACKED, "mine"), (ENCODING, "base64")])
            .collect();
        for n in 0..20 {
            envelope.headers.set(format!("header-{n}"), n.to_string());
        }
        let came = round_trip(&envelope);
        assert_eq!(sorted(&came.headers), sorted(&envelope.headers));
        assert_eq!((came.properties, came.body), (envelope.properties, envelope.body));
    }

    #[test]
    fn ten_attributes_are_used_before_anything_is_packed() {
        let mut envelope = Envelope::new("b").with_id("m");
        for n in 0..9 {
            envelope.headers.set(format!("h{n}"), "v");
        }
        assert!(!write(&envelope, None).unwrap().attributes.contains_key(PACKED));
        envelope.headers.set("h9", "v");
        let written = write(&envelope, None).unwrap();
        assert_eq!(written.attributes.len(), MOST_ATTRIBUTES);
        assert_eq!(written.attributes[PACKED].string_value(), Some(r#"[["h8","v"],["h9","v"]]"#));
        assert!(written.attributes.contains_key(MESSAGE_ID_HEADER), "the id stays where others look for it");
    }

    #[test]
    fn two_ids_that_disagree_stay_two() {
        let agree = Envelope::new("b").with_id("m").with_header("Hapax-Message-Id", "m");
        assert_eq!(round_trip(&agree).headers.iter().count(), 0);
        let disagree = Envelope::new("b").with_id("m").with_header(MESSAGE_ID_HEADER, "other");
        let came = round_trip(&disagree);
        assert!(Identity::standard().of(&came).is_err(), "{came:?}");
    }

    /// `CloudEvents` has no binding for SQS; producers carry over the names of the one for HTTP or for Kafka.
    #[test]
    fn cloudevents_are_known_in_both_modes() {
        let structured = r#"{"specversion":"1.0","id":"7","source":"/shop"}"#;
        let mut structured = Envelope::new(structured);
        structured.properties.content_type = Some("application/cloudevents+json".into());
        let binary = Envelope::new("x").with_header("ce-id", "7").with_header("ce-source", "/shop");
        let kafka = Envelope::new("x").with_header("ce_id", "7").with_header("ce_source", "/shop");
        for sent in [structured, binary, kafka] {
            assert_eq!(Identity::cloudevents().of(&round_trip(&sent)).unwrap().as_str(), "5:/shop,1:7");
        }
    }

    #[test]
    fn a_timestamp_that_the_producer_set_wins_over_the_broker_s() {
        let mut envelope = Envelope::new("b");
        envelope.properties.timestamp = Some(Timestamp::from_micros(1_700_000_000_123_456));
        assert_eq!(round_trip(&envelope).properties.timestamp, envelope.properties.timestamp);
        let message = Message::builder()
            .attributes(MessageSystemAttributeName::SentTimestamp, "1700000000123")
            .attributes(MessageSystemAttributeName::ApproximateReceiveCount, "2")
            .message_id("of-the-broker")
            .build();
        assert!(is_redelivered(&message));
        let came = read(&Queue::named("orders"), message).properties;
        assert_eq!(came.timestamp, Some(Timestamp::from_micros(1_700_000_000_123_000)));
        assert!(came.broker_id.unwrap().ends_with("orders/of-the-broker"));
    }
}
