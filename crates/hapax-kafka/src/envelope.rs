//! Kafka records as envelopes, and back.

use std::fmt::Write;

use hapax_core::{
    Envelope, Headers, MESSAGE_ID_HEADER, MESSAGE_TYPE_HEADER, Origin, Outgoing, Properties, Timestamp,
};
use rdkafka::Message;
use rdkafka::message::{Header, Headers as _, OwnedHeaders, Timestamp as RecordTime};

/// Kafka records have no properties but the key and the time; the others travel as headers.
const CONTENT_TYPE: &str = "content-type";
const CORRELATION_ID: &str = "hapax-correlation-id";
const MICROS_PER_MILLI: i64 = 1_000;

/// A record's message. `cluster` is the cluster's own id, as far as it is known.
pub(crate) fn from_record(cluster: &str, record: &impl Message) -> Envelope {
    let (topic, partition, offset) = (record.topic(), record.partition(), record.offset());
    let (headers, mut properties) = headers(record);
    properties.key = record.key().map(key);
    properties.timestamp = timestamp(record.timestamp());
    properties.broker_id = Some(format!("kafka:{cluster}/{topic}/{partition}/{offset}"));
    Envelope {
        body: record.payload().unwrap_or_default().to_vec().into(),
        headers,
        properties,
        origin: Origin { source: source_name(topic), position: Some(format!("{partition}/{offset}")) },
    }
}

/// How a topic is called in logs and dead letters.
pub(crate) fn source_name(topic: &str) -> String {
    format!("kafka:{topic}")
}

/// A key as text. Bytes that are no text are shown in hexadecimal, so that they order messages, too.
fn key(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let mut text = "0x".to_owned();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}"); // writing to a string cannot fail
    }
    text
}

fn timestamp(time: RecordTime) -> Option<Timestamp> {
    let millis = time.to_millis().filter(|millis| *millis >= 0)?;
    Some(Timestamp::from_micros(millis.saturating_mul(MICROS_PER_MILLI)))
}

/// The headers, without those that stand for properties. A value that is no text counts as absent.
fn headers(record: &impl Message) -> (Headers, Properties) {
    let mut properties = Properties::default();
    let mut others = Vec::new();
    for header in record.headers().iter().flat_map(|headers| headers.iter()) {
        let Some(value) = header.value.and_then(|value| std::str::from_utf8(value).ok()) else {
            tracing::debug!(header = header.key, "a header that is not text was left out");
            continue;
        };
        let place = match header.key {
            MESSAGE_ID_HEADER => &mut properties.message_id,
            MESSAGE_TYPE_HEADER => &mut properties.kind,
            CONTENT_TYPE => &mut properties.content_type,
            CORRELATION_ID => &mut properties.correlation_id,
            other => {
                others.push((other.to_owned(), value.to_owned()));
                continue;
            }
        };
        // The property was written first; a header of that name beside it may say something else.
        if place.is_some() {
            others.push((header.key.to_owned(), value.to_owned()));
        } else {
            *place = Some(value.to_owned());
        }
    }
    (others.into_iter().collect(), properties)
}

/// The topic that a message goes to, and the key within it.
pub(crate) fn route(message: &Outgoing) -> (&str, Option<&str>) {
    let ordering_key = message.envelope.properties.key.as_deref();
    if message.destination.is_empty() {
        return (&message.routing_key, ordering_key);
    }
    let key = Some(message.routing_key.as_str()).filter(|key| !key.is_empty());
    (&message.destination, key.or(ordering_key))
}

/// A message's headers, the properties before the others.
pub(crate) fn to_headers(envelope: &Envelope) -> OwnedHeaders {
    let Properties { message_id, kind, correlation_id, content_type, .. } = &envelope.properties;
    let properties = [
        (MESSAGE_ID_HEADER, message_id),
        (MESSAGE_TYPE_HEADER, kind),
        (CONTENT_TYPE, content_type),
        (CORRELATION_ID, correlation_id),
    ];
    let properties = properties.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    properties.chain(envelope.headers.iter()).fold(OwnedHeaders::new(), |headers, (name, value)| {
        headers.insert(Header { key: name, value: Some(value) })
    })
}

/// A message's time. Kafka keeps whole milliseconds.
pub(crate) fn to_millis(envelope: &Envelope) -> Option<i64> {
    envelope.properties.timestamp.map(|time| time.as_micros() / MICROS_PER_MILLI)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::Identity;
    use rdkafka::message::OwnedMessage;

    fn record(headers: OwnedHeaders, key: Option<&[u8]>, body: &str) -> OwnedMessage {
        let (key, time) = (key.map(<[u8]>::to_vec), RecordTime::CreateTime(5));
        OwnedMessage::new(Some(body.into()), key, "orders".into(), time, 3, 17, Some(headers))
    }

    #[test]
    fn a_record_says_where_it_came_from() {
        let envelope = from_record("c1", &record(OwnedHeaders::new(), Some(b"ada"), "x"));
        assert_eq!(envelope.origin.source, "kafka:orders");
        assert_eq!(envelope.origin.position.as_deref(), Some("3/17"));
        assert_eq!(envelope.properties.broker_id.as_deref(), Some("kafka:c1/orders/3/17"));
        assert_eq!(envelope.properties.key.as_deref(), Some("ada"));
        assert_eq!(envelope.properties.timestamp, Some(Timestamp::from_micros(5_000)));
    }

    #[test]
    fn keys_that_are_no_text_stay_distinct() {
        let key =
            |bytes: &[u8]| from_record("c", &record(OwnedHeaders::new(), Some(bytes), "")).properties.key;
        assert_eq!(key(&[0xff, 1]).as_deref(), Some("0xff01"));
        assert_ne!(key(&[0xff, 1]), key(&[0xff, 2]));
        assert_eq!(from_record("c", &record(OwnedHeaders::new(), None, "")).properties.key, None);
    }

    #[test]
    fn a_header_that_disagrees_with_the_property_stays_visible() {
        let both = Envelope::new("").with_id("a").with_header(MESSAGE_ID_HEADER, "b");
        let came = from_record("c", &record(to_headers(&both), None, ""));
        assert_eq!(
            (came.properties.message_id.as_deref(), came.headers.get(MESSAGE_ID_HEADER)),
            (Some("a"), Some("b"))
        );
        assert!(Identity::standard().of(&came).is_err());
    }

    #[test]
    fn cloudevents_in_binary_and_structured_mode() {
        let text = |key, value| Header { key, value: Some(value) };
        let binary = OwnedHeaders::new()
            .insert(text("ce_specversion", "1.0"))
            .insert(text("ce_id", "7"))
            .insert(text("ce_source", "/shop"))
            .insert(text("content-type", "application/json"));
        let binary = from_record("c", &record(binary, None, "{}"));
        let structured = OwnedHeaders::new().insert(text("content-type", "application/cloudevents+json"));
        let body = r#"{"specversion":"1.0","id":"7","source":"/shop"}"#;
        let structured = from_record("c", &record(structured, None, body));
        assert_eq!(Identity::cloudevents().of(&binary).unwrap().as_str(), "5:/shop,1:7");
        assert_eq!(Identity::cloudevents().of(&binary), Identity::cloudevents().of(&structured));
    }

    #[test]
    fn a_route_is_a_topic_and_a_key() {
        let keyed = |key: &str| {
            let mut envelope = Envelope::new("");
            envelope.properties.key = Some(key.into());
            envelope
        };
        let to = |destination: &str, routing_key: &str| Outgoing {
            envelope: keyed("own"),
            destination: destination.into(),
            routing_key: routing_key.into(),
        };
        assert_eq!(route(&to("orders", "ada")), ("orders", Some("ada")));
        assert_eq!(route(&to("orders", "")), ("orders", Some("own")));
        assert_eq!(route(&to("", "orders")), ("orders", Some("own")));
        assert_eq!(route(&Outgoing::to_queue("orders", Envelope::new(""))), ("orders", None));
    }
}
