//! Entries of a stream as envelopes, and back.
//!
//! Fields are bytes under names, in order, and may repeat. The body is one of them, headers and properties are
//! the others.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hapax_core::{
    Envelope, Headers, MESSAGE_ID_HEADER, MESSAGE_TYPE_HEADER, Origin, Outgoing, Properties, Timestamp,
};
use serde_json::{Map, Value, json};

use crate::reply::{Entry, place};

/// The field that holds the body, unless another one is named.
pub(crate) const BODY: &str = "body";
const CONTENT_TYPE: &str = "content-type";
const CORRELATION_ID: &str = "hapax-correlation-id";
const KEY: &str = "hapax-key";
const TIMESTAMP: &str = "hapax-timestamp";
/// Fields that are no headers.
const RESERVED: [&str; 7] =
    [BODY, MESSAGE_ID_HEADER, MESSAGE_TYPE_HEADER, CONTENT_TYPE, CORRELATION_ID, KEY, TIMESTAMP];
/// Before the name of a header that would otherwise be taken for one of these.
const HEADER: &str = "hapax-header:";
const MICROS_PER_MILLISECOND: u64 = 1_000;

type Field = (Vec<u8>, Vec<u8>);

/// Where entries come from.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// As in logs and dead letters.
    pub(crate) source: String,
    pub(crate) stream: String,
    pub(crate) database: i64,
    pub(crate) body_field: String,
}

impl Place {
    /// An entry's message. An entry without a body is a message whose body is the fields as a JSON object.
    pub(crate) fn envelope(&self, entry: Entry) -> Envelope {
        let Entry { id, mut fields, .. } = entry;
        let body = match fields.iter().position(|(name, _)| name == self.body_field.as_bytes()) {
            Some(place) => fields.remove(place).1,
            None => as_json(&fields).to_string().into_bytes(),
        };
        let mut lines: Vec<_> = fields.into_iter().filter_map(line).collect();
        let sent: Option<Timestamp> = take(&mut lines, TIMESTAMP).and_then(|text| text.parse().ok());
        let properties = Properties {
            message_id: take(&mut lines, MESSAGE_ID_HEADER),
            kind: take(&mut lines, MESSAGE_TYPE_HEADER),
            correlation_id: take(&mut lines, CORRELATION_ID),
            content_type: take(&mut lines, CONTENT_TYPE),
            key: take(&mut lines, KEY),
            timestamp: sent.or_else(|| added_at(&id)),
            broker_id: Some(format!("redis:{}/{}/{id}", self.database, self.stream)),
        };
        Envelope {
            body: body.into(),
            headers: lines.into_iter().map(unmarked).collect::<Headers>(),
            properties,
            origin: Origin { source: self.source.clone(), position: Some(id) },
        }
    }
}

/// A field as a header. One that is not text counts as absent.
fn line((name, value): Field) -> Option<(String, String)> {
    let (Ok(name), Ok(value)) = (String::from_utf8(name), String::from_utf8(value)) else {
        tracing::debug!("a field that is not text was left out of the headers");
        return None;
    };
    Some((name, value))
}

/// Takes a field out and answers with its first value.
fn take(lines: &mut Vec<(String, String)>, name: &str) -> Option<String> {
    let place = lines.iter().position(|(known, _)| known.eq_ignore_ascii_case(name))?;
    let (_, value) = lines.remove(place);
    lines.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    Some(value)
}

/// The server's clock when the entry was added, unless its id was chosen by whoever added it.
fn added_at(id: &str) -> Option<Timestamp> {
    let (milliseconds, _) = place(id)?;
    let micros = milliseconds.checked_mul(MICROS_PER_MILLISECOND)?;
    i64::try_from(micros).ok().map(Timestamp::from_micros)
}

/// The fields of somebody else's entry. A name that repeats has its values in a list.
fn as_json(fields: &[Field]) -> Value {
    let mut object = Map::new();
    for (name, value) in fields {
        let (name, value) = (String::from_utf8_lossy(name).into_owned(), text_or_base64(value));
        match object.get_mut(&name) {
            None => drop(object.insert(name, value)),
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = json!([first, value]),
        }
    }
    Value::Object(object)
}

/// Text as a string, other bytes as `{"base64": "…"}`.
fn text_or_base64(value: &[u8]) -> Value {
    match std::str::from_utf8(value) {
        Ok(text) => text.into(),
        Err(_) => json!({ "base64": STANDARD.encode(value) }),
    }
}

/// The stream that a message goes to, and the key that it has there.
pub(crate) fn destination(message: &Outgoing) -> (&str, Option<&str>) {
    match (message.destination.as_str(), message.routing_key.as_str()) {
        ("", stream) | (stream, "") => (stream, message.envelope.properties.key.as_deref()),
        (stream, key) => (stream, Some(key)),
    }
}

/// Tells `add` each field of a message, body first.
pub(crate) fn each_field(message: &Outgoing, mut add: impl FnMut(&str, &[u8])) {
    let Envelope { body, headers, properties, .. } = &message.envelope;
    let timestamp = properties.timestamp.map(|time| time.to_string());
    let lines = [
        (MESSAGE_ID_HEADER, properties.message_id.as_deref()),
        (MESSAGE_TYPE_HEADER, properties.kind.as_deref()),
        (CORRELATION_ID, properties.correlation_id.as_deref()),
        (CONTENT_TYPE, properties.content_type.as_deref()),
        (KEY, destination(message).1),
        (TIMESTAMP, timestamp.as_deref()),
    ];
    add(BODY, body);
    for (name, value) in lines {
        if let Some(value) = value {
            add(name, value.as_bytes());
        }
    }
    for (name, value) in headers.iter() {
        add(&marked(name), value.as_bytes());
    }
}

fn marked(name: &str) -> String {
    let taken = RESERVED.iter().any(|reserved| reserved.eq_ignore_ascii_case(name));
    if taken || name.starts_with(HEADER) { format!("{HEADER}{name}") } else { name.to_owned() }
}

fn unmarked((name, value): (String, String)) -> (String, String) {
    (name.strip_prefix(HEADER).map(str::to_owned).unwrap_or(name), value)
}

#[cfg(test)]
mod tests {
    use hapax_core::Identity;

    use super::*;

    fn from() -> Place {
        Place { source: "redis:orders".into(), stream: "orders".into(), database: 3, body_field: BODY.into() }
    }

    fn entry(fields: &[(&str, &[u8])]) -> Entry {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec())).collect();
        Entry { id: "1700000000000-7".into(), deliveries: 1, fields }
    }

    fn came(envelope: Envelope) -> Envelope {
        let mut fields = Vec::new();
        each_field(&Outgoing::to_queue("orders", envelope), |name, value| {
            fields.push((name.as_bytes().to_vec(), value.to_vec()));
        });
        from().envelope(Entry { fields, ..entry(&[]) })
    }

    #[test]
    fn a_message_comes_through_whatever_its_headers_are_called() {
        let names = ["plain", "body", "Hapax-Message-Id", "hapax-header:x", "content-type", "", "ü\r\n"];
        let envelope =
            Envelope { body: vec![0, 255].into(), ..Envelope::default() }.with_id("m ").with_type("Paid");
        let envelope = names.iter().fold(envelope, |envelope, name| envelope.with_header(*name, *name));
        let came = came(envelope.clone());
        assert_eq!((&came.body, &came.headers), (&envelope.body, &envelope.headers));
        assert_eq!(came.properties.message_id.as_deref(), Some("m "));
        assert!(Identity::standard().of(&came).is_err(), "the header and the property disagree");
    }

    #[test]
    fn an_entry_has_a_place_and_a_time() {
        let came = from().envelope(entry(&[("body", b"x")]));
        assert_eq!(came.origin.position.as_deref(), Some("1700000000000-7"));
        assert_eq!(came.properties.broker_id.as_deref(), Some("redis:3/orders/1700000000000-7"));
        assert_eq!(came.properties.timestamp, Some(Timestamp::from_micros(1_700_000_000_000_000)));
    }

    #[test]
    fn somebody_elses_entry_is_a_json_object() {
        let foreign = entry(&[
            ("event", b"e-1"),
            ("amount", b"2500.10"),
            ("tag", b"a"),
            ("tag", b"b"),
            ("raw", &[255]),
        ]);
        let came = from().envelope(foreign);
        let body: Value = serde_json::from_slice(&came.body).unwrap();
        let expected =
            json!({ "event": "e-1", "amount": "2500.10", "tag": ["a", "b"], "raw": { "base64": "/w==" } });
        assert_eq!(body, expected);
        assert_eq!(came.headers.get("event"), Some("e-1"), "an id may be in a field");
    }

    #[test]
    fn the_body_may_be_in_another_field() {
        let place = Place { body_field: "payload".into(), ..from() };
        let came = place.envelope(entry(&[("payload", b"{}"), ("body", b"fat")]));
        assert_eq!((&came.body[..], came.headers.get("body")), (&b"{}"[..], Some("fat")));
    }

    #[test]
    fn cloudevents_are_found_in_both_modes() {
        let binary = Envelope::new("x").with_header("ce-id", "7").with_header("ce-source", "/shop");
        let mut structured = Envelope::new(r#"{"specversion":"1.0","id":"7","source":"/shop"}"#);
        structured.properties.content_type = Some("application/cloudevents+json".into());
        for event in [binary, structured] {
            assert_eq!(Identity::cloudevents().of(&came(event)).unwrap().as_str(), "5:/shop,1:7");
        }
    }

    #[test]
    fn a_destination_is_the_stream_and_a_routing_key_then_the_key() {
        let envelope = Envelope::new("");
        let both = Outgoing { envelope, destination: "orders".into(), routing_key: "ada".into() };
        assert_eq!(destination(&both), ("orders", Some("ada")));
        assert_eq!(destination(&Outgoing::to_queue("orders", Envelope::new(""))), ("orders", None));
    }
}
