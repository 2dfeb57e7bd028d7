//! AMQP messages as envelopes, and back.

use std::fmt::Write;

use hapax_core::{Envelope, Error, Headers, Origin, Outgoing, Properties, Timestamp};
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::types::{AMQPValue, DecimalValue, FieldTable, LongString, ShortString};
use serde_json::{Map, Number, Value};

use crate::error;

/// Survives a restart of the broker, if its queue does.
const PERSISTENT: u8 = 2;
const MICROS_PER_SECOND: i64 = 1_000_000;

/// A delivery's message. The body is taken over without a copy.
pub(crate) fn from_delivery(source: &str, delivery: Delivery) -> Envelope {
    Envelope {
        body: delivery.data.into(),
        headers: delivery.properties.headers().as_ref().map(headers).unwrap_or_default(),
        properties: properties(&delivery.properties),
        origin: Origin {
            source: source.to_owned(),
            position: route(delivery.exchange.as_str(), delivery.routing_key.as_str()),
        },
    }
}

/// Through which exchange and under which key it came; nothing to tell if it was sent to the queue.
fn route(exchange: &str, routing_key: &str) -> Option<String> {
    (!exchange.is_empty()).then(|| format!("{exchange}/{routing_key}"))
}

fn properties(of: &BasicProperties) -> Properties {
    let text = |value: &Option<ShortString>| value.as_ref().map(|text| text.as_str().to_owned());
    Properties {
        message_id: text(of.message_id()),
        kind: text(of.kind()),
        correlation_id: text(of.correlation_id()),
        content_type: text(of.content_type()),
        timestamp: of.timestamp().map(timestamp),
        ..Properties::default()
    }
}

fn timestamp(seconds: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(MICROS_PER_SECOND))
}

/// A table as text. A header whose value is no text (void, bytes that are not UTF-8) counts as absent.
fn headers(table: &FieldTable) -> Headers {
    let shown = table.into_iter().filter_map(|(name, value)| {
        let text = text(value);
        if text.is_none() {
            tracing::debug!(header = name.as_str(), "a header that is not text was left out");
        }
        Some((name.as_str(), text?))
    });
    shown.collect()
}

/// Strings as they are, numbers and booleans as they print, times as RFC 3339, nested values as JSON.
fn text(value: &AMQPValue) -> Option<String> {
    match value {
        AMQPValue::LongString(text) => utf8(text.as_bytes()),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        AMQPValue::ByteArray(bytes) => utf8(bytes.as_slice()),
        AMQPValue::Float(number) => Some(number.to_string()),
        AMQPValue::Double(number) => Some(number.to_string()),
        AMQPValue::DecimalValue(number) => Some(decimal(*number)),
        AMQPValue::Timestamp(seconds) => Some(timestamp(*seconds).to_string()),
        AMQPValue::Void => None,
        other => Some(json(other).to_string()),
    }
}

fn utf8(bytes: &[u8]) -> Option<String> {
    std::str::from_utf8(bytes).ok().map(str::to_owned)
}

fn json(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(value) => (*value).into(),
        AMQPValue::ShortShortInt(value) => (*value).into(),
        AMQPValue::ShortShortUInt(value) => (*value).into(),
        AMQPValue::ShortInt(value) => (*value).into(),
        AMQPValue::ShortUInt(value) => (*value).into(),
        AMQPValue::LongInt(value) => (*value).into(),
        AMQPValue::LongUInt(value) => (*value).into(),
        AMQPValue::LongLongInt(value) => (*value).into(),
        AMQPValue::Double(value) => Number::from_f64(*value).map_or(Value::Null, Value::Number),
        AMQPValue::FieldArray(values) => values.as_slice().iter().map(json).collect(),
        AMQPValue::FieldTable(table) => Value::Object(object(table)),
        text_like => text(text_like).map_or(Value::Null, Value::String),
    }
}

fn object(table: &FieldTable) -> Map<String, Value> {
    table.into_iter().map(|(name, value)| (name.as_str().to_owned(), json(value))).collect()
}

/// Digit for digit: 12345 at scale 2 is `123.45`.
fn decimal(number: DecimalValue) -> String {
    let scale = usize::from(number.scale);
    let mut digits = format!("{:0width$}", number.value, width = scale + 1);
    if scale > 0 {
        digits.insert(digits.len() - scale, '.');
    }
    digits
}

/// A message's properties for the broker. AMQP keeps whole seconds of the timestamp.
pub(crate) fn to_properties(envelope: &Envelope) -> Result<BasicProperties, Error> {
    let Properties { message_id, kind, correlation_id, content_type, timestamp, .. } = &envelope.properties;
    let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
    if let Some(id) = message_id {
        properties = properties.with_message_id(short("message id", id)?);
    }
    if let Some(kind) = kind {
        properties = properties.with_type(short("type", kind)?);
    }
    if let Some(id) = correlation_id {
        properties = properties.with_correlation_id(short("correlation id", id)?);
    }
    if let Some(media_type) = content_type {
        properties = properties.with_content_type(short("content type", media_type)?);
    }
    if let Some(seconds) = timestamp.and_then(|time| u64::try_from(time.as_micros() / MICROS_PER_SECOND).ok())
    {
        properties = properties.with_timestamp(seconds);
    }
    Ok(properties.with_headers(table(&envelope.headers)?))
}

fn table(headers: &Headers) -> Result<FieldTable, Error> {
    let mut table = FieldTable::default();
    for (name, value) in headers.iter() {
        table.insert(short("header name", name)?, AMQPValue::LongString(LongString::from(value)));
    }
    Ok(table)
}

/// AMQP's short strings hold 255 bytes; what is longer is refused, never cut.
pub(crate) fn short(what: &str, text: &str) -> Result<ShortString, Error> {
    ShortString::try_new(text).map_err(|_| {
        let mut reason = format!("its {what} is {} bytes long; at most 255 are allowed: ", text.len());
        let _ = write!(reason, "{text:.40}…"); // writing to a string cannot fail
        error::unsendable(reason)
    })
}

/// About how much room properties and headers take; they must fit into one frame.
pub(crate) fn header_size(message: &Outgoing) -> usize {
    const FIXED: usize = 2048; // properties, each at most 255 bytes, and the frame's own fields
    const PER_HEADER: usize = 6; // two lengths and a type
    message.envelope.headers.iter().map(|(name, value)| name.len() + value.len() + PER_HEADER).sum::<usize>()
        + FIXED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_become_text() {
        let nested: FieldTable = FieldTable::from(
            [("n".into(), AMQPValue::LongInt(1))].into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        );
        let cases = [
            (AMQPValue::LongString("a \"b\"".into()), Some("a \"b\"")),
            (AMQPValue::LongString(vec![0xff].into()), None),
            (AMQPValue::Boolean(true), Some("true")),
            (AMQPValue::ShortShortInt(-3), Some("-3")),
            (AMQPValue::LongLongInt(i64::MIN), Some("-9223372036854775808")),
            (AMQPValue::Double(0.1), Some("0.1")),
            (AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 250_010 }), Some("2500.10")),
            (AMQPValue::DecimalValue(DecimalValue { scale: 3, value: 5 }), Some("0.005")),
            (AMQPValue::DecimalValue(DecimalValue { scale: 0, value: 5 }), Some("5")),
            (AMQPValue::Timestamp(1_796_040_000), Some("2026-11-30T12:00:00Z")),
            (AMQPValue::FieldTable(nested.clone()), Some("{\"n\":1}")),
            (
                AMQPValue::FieldArray(vec![AMQPValue::Void, AMQPValue::FieldTable(nested)].into()),
                Some("[null,{\"n\":1}]"),
            ),
            (AMQPValue::ByteArray(b"bytes".as_slice().into()), Some("bytes")),
            (AMQPValue::Void, None),
        ];
        for (value, expected) in cases {
            assert_eq!(text(&value).as_deref(), expected, "{value:?}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused_with_a_reason() {
        assert!(to_properties(&Envelope::new("").with_id("x".repeat(255))).is_ok());
        let error = to_properties(&Envelope::new("").with_type("ć".repeat(128))).unwrap_err();
        assert_eq!(error.code(), hapax_core::Code::NotPublished);
        assert!(error.to_string().contains("its type is 256 bytes long"), "{error}");
    }
}
