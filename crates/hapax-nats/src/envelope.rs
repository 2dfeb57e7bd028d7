//! NATS messages as envelopes, and back.
//!
//! A header of NATS is a line: its name is printable ASCII without a colon, and its value has no line breaks and
//! no spaces at its ends. Headers that do not fit travel together in one header, [`ENCODED`], as JSON.

use async_nats::{HeaderMap, HeaderName, HeaderValue, Message};
use hapax_core::{
    DEAD_LETTER_HEADER, Envelope, Error, Headers, MESSAGE_ID_HEADER, MESSAGE_TYPE_HEADER, Origin, Outgoing,
    Properties, Timestamp,
};

use crate::ack_subject::AckSubject;
use crate::api::is_subject;
use crate::error;

/// What the server recognises copies by.
const DEDUP_ID: &str = "Nats-Msg-Id";
/// Headers with this prefix are words to the server. They are its own to say, and not to be repeated.
const SERVERS: &str = "nats-";
const CONTENT_TYPE: &str = "content-type";
const CORRELATION_ID: &str = "hapax-correlation-id";
const KEY: &str = "hapax-key";
const TIMESTAMP: &str = "hapax-timestamp";
/// Headers that a line cannot hold: a JSON array of pairs of name and value.
const ENCODED: &str = "hapax-encoded-headers";
/// The consumer that set a message aside: numbers of dead letters are counted per store.
const DEAD_CONSUMER: &str = "hapax-dead-consumer";
/// Between a message id and what makes a dedup id of it that no earlier copy had.
const EPISODE: char = '#';

/// A delivery's message. The body is taken over without a copy.
pub(crate) fn from_message(
    source: &str,
    cluster: Option<&str>,
    message: Message,
    ack: &AckSubject<'_>,
) -> Envelope {
    let mut headers = message.headers.as_ref().map(headers).unwrap_or_default();
    let sent: Option<Timestamp> = take(&mut headers, TIMESTAMP).and_then(|text| text.parse().ok());
    let properties = Properties {
        message_id: message_id(&mut headers),
        kind: take(&mut headers, MESSAGE_TYPE_HEADER),
        correlation_id: take(&mut headers, CORRELATION_ID),
        content_type: take(&mut headers, CONTENT_TYPE),
        key: take(&mut headers, KEY),
        timestamp: sent.or(Some(ack.published)),
        broker_id: Some(broker_id(cluster, ack)),
    };
    Envelope {
        body: message.payload,
        headers: headers.into_iter().collect::<Headers>(),
        properties,
        origin: Origin { source: source.to_owned(), position: Some(ack.sequence.to_string()) },
    }
}

type Lines = Vec<(String, String)>;

fn headers(map: &HeaderMap) -> Lines {
    let all = map.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    let mut lines: Lines = all.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    if let Some(encoded) = take(&mut lines, ENCODED) {
        match serde_json::from_str::<Lines>(&encoded) {
            Ok(decoded) => lines.extend(decoded),
            Err(_) => lines.push((ENCODED.into(), encoded)), // somebody else's
        }
    }
    lines
}

/// Takes a header out and answers with its first value.
fn take(lines: &mut Lines, name: &str) -> Option<String> {
    let place = lines.iter().position(|(known, _)| known.eq_ignore_ascii_case(name))?;
    let (_, value) = lines.remove(place);
    lines.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
    Some(value)
}

/// The header `hapax-message-id`, or `Nats-Msg-Id`. Where both are there, the second must be the first or a
/// dedup id made from it; else both are passed on, and the identity rule refuses the message.
fn message_id(lines: &mut Lines) -> Option<String> {
    let native = take(lines, DEDUP_ID);
    let named = lines.iter().find(|(name, _)| name.eq_ignore_ascii_case(MESSAGE_ID_HEADER));
    match (named, native) {
        (Some((_, id)), Some(native)) if !is_dedup_id_of(id, &native) => Some(native),
        (Some((_, id)), _) => Some(id.clone()),
        (None, native) => native,
    }
}

fn is_dedup_id_of(id: &str, native: &str) -> bool {
    let made = |form: &str| {
        native.strip_prefix(form).is_some_and(|rest| rest.is_empty() || rest.starts_with(EPISODE))
    };
    made(id) || made(&line(id))
}

/// A message's place in its stream, which the server made: another message has it if the stream is made anew.
fn broker_id(cluster: Option<&str>, ack: &AckSubject<'_>) -> String {
    format!("nats:{}/{}/{}/{}", cluster.unwrap_or_default(), ack.domain, ack.stream, ack.sequence)
}

/// A message as it is sent.
#[derive(Debug)]
pub(crate) struct Sendable {
    pub(crate) subject: String,
    pub(crate) headers: HeaderMap,
    pub(crate) payload: bytes::Bytes,
}

/// Where the server recognises copies by the message id, it has that as the dedup id.
pub(crate) fn sendable(message: &Outgoing, recognise_copies: bool) -> Result<Sendable, Error> {
    let Outgoing { envelope, destination, routing_key } = message;
    let (subject, key) = match (destination.as_str(), routing_key.as_str()) {
        ("", subject) | (subject, "") => (subject, None),
        (subject, key) => (subject, Some(key)),
    };
    if !is_subject(subject) {
        let reason =
            format!("\"{subject}\" is no subject: tokens between dots, without spaces and wildcards");
        return Err(error::unsendable(reason));
    }
    let headers = Writing::of(envelope, key, recognise_copies).written()?;
    Ok(Sendable { subject: subject.to_owned(), headers, payload: envelope.body.clone() })
}

/// Headers on their way out.
struct Writing {
    lines: Lines,
    dedup: Option<String>,
}

impl Writing {
    fn of(envelope: &Envelope, key: Option<&str>, recognise_copies: bool) -> Self {
        let own = envelope.headers.iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut writing = Self { lines: own.collect(), dedup: None };
        let Properties { message_id, kind, correlation_id, content_type, key: ordering, timestamp, .. } =
            &envelope.properties;
        let timestamp = timestamp.map(|time| time.to_string());
        let properties = [
            (MESSAGE_TYPE_HEADER, kind.as_deref()),
            (CORRELATION_ID, correlation_id.as_deref()),
            (CONTENT_TYPE, content_type.as_deref()),
            (KEY, key.or(ordering.as_deref())),
            (TIMESTAMP, timestamp.as_deref()),
        ];
        for (name, value) in properties {
            if let Some(value) = value {
                writing.set(name, value);
            }
        }
        let named = envelope.headers.get(MESSAGE_ID_HEADER);
        if let Some(id) = message_id.as_deref().or(named) {
            writing.identify(id, named.is_some(), episode(&envelope.headers), recognise_copies);
        }
        writing
    }

    /// The id is the dedup id, unless that has to differ from it: then it has its own header as well.
    fn identify(&mut self, id: &str, is_named: bool, episode: Option<String>, recognise_copies: bool) {
        let mut dedup = line(id);
        if let Some(episode) = episode {
            dedup.push(EPISODE);
            dedup.push_str(&episode);
        }
        if !is_named && (dedup != id || !recognise_copies) {
            self.lines.push((MESSAGE_ID_HEADER.to_owned(), id.to_owned()));
        }
        self.dedup = recognise_copies.then_some(dedup);
    }

    /// A property, which comes before a header of the same name.
    fn set(&mut self, name: &str, value: &str) {
        self.lines.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.lines.push((name.to_owned(), value.to_owned()));
    }

    fn written(self) -> Result<HeaderMap, Error> {
        let mut map = HeaderMap::new();
        let mut encoded = Lines::new();
        for (name, value) in self.lines {
            match (name.parse::<HeaderName>(), value.parse::<HeaderValue>()) {
                (Ok(known), Ok(line)) if !is_servers(&name) && is_line(&value) => map.append(known, line),
                _ => encoded.push((name, value)),
            }
        }
        if let Some(dedup) = self.dedup {
            map.insert(DEDUP_ID, dedup);
        }
        if !encoded.is_empty() {
            let encoded = serde_json::to_string(&encoded)
                .map_err(|cause| error::unsendable(format!("its headers: {cause}")))?;
            map.insert(ENCODED, encoded);
        }
        Ok(map)
    }
}

fn is_servers(name: &str) -> bool {
    name.get(..SERVERS.len()).is_some_and(|start| start.eq_ignore_ascii_case(SERVERS))
}

/// What makes this copy another message to the server than the one it is a copy of: the dead letter that it is.
fn episode(headers: &Headers) -> Option<String> {
    let number = headers.get(DEAD_LETTER_HEADER)?;
    Some(line(&format!("{}-{number}", headers.get(DEAD_CONSUMER).unwrap_or_default())))
}

/// Whether a header's value comes out of the server and every client as it went in.
fn is_line(value: &str) -> bool {
    value.trim() == value && !value.contains(|c: char| c.is_control())
}

/// A text as a part of a dedup id: as it is, or percent-encoded where it would not come through or could be taken
/// for another one.
fn line(text: &str) -> String {
    if is_line(text) && !text.contains(['%', EPISODE]) {
        return text.to_owned();
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    text.bytes().fold(String::new(), |mut line, byte| {
        if plain(byte) {
            line.push(char::from(byte));
        } else {
            use std::fmt::Write;
            let _ = write!(line, "%{byte:02X}"); // writing to a string cannot fail
        }
        line
    })
}

#[cfg(test)]
mod tests {
    use hapax_core::Identity;

    use super::*;

    const REPLY: &str = "$JS.ACK.ORDERS.orders.1.42.7.1700000000000000000.0";

    fn sent(envelope: Envelope) -> Sendable {
        sendable(&Outgoing::to_queue("orders", envelope), true).unwrap()
    }

    fn came(sent: &Sendable) -> Envelope {
        let message = async_nats::Message {
            subject: sent.subject.as_str().into(),
            reply: Some(REPLY.into()),
            payload: sent.payload.clone(),
            headers: Some(sent.headers.clone()),
            status: None,
            description: None,
            length: 0,
        };
        let ack = AckSubject::parse(REPLY).unwrap();
        from_message("nats:ORDERS", Some("here"), message, &ack)
    }

    fn header<'s>(sent: &'s Sendable, name: &str) -> Option<&'s str> {
        sent.headers.get(name).map(HeaderValue::as_str)
    }

    #[test]
    fn a_message_id_is_the_dedup_id() {
        let sent = sent(Envelope::new("").with_id("payment-1"));
        assert_eq!((header(&sent, DEDUP_ID), header(&sent, MESSAGE_ID_HEADER)), (Some("payment-1"), None));
        let came = came(&sent);
        assert_eq!(came.properties.message_id.as_deref(), Some("payment-1"));
        assert_eq!(came.properties.broker_id.as_deref(), Some("nats:here//ORDERS/42"));
        assert_eq!(came.origin.position.as_deref(), Some("42"));
    }

    #[test]
    fn a_dead_letters_copy_has_a_dedup_id_of_its_own_and_the_same_id() {
        let copy = |number: &str| {
            Envelope::new("")
                .with_id("payment-1")
                .with_header(DEAD_LETTER_HEADER, number)
                .with_header(DEAD_CONSUMER, "orders")
        };
        let (first, second) = (sent(copy("7")), sent(copy("8")));
        assert_eq!(header(&first, DEDUP_ID), Some("payment-1#orders-7"));
        assert_ne!(header(&first, DEDUP_ID), header(&second, DEDUP_ID));
        for copy in [first, second] {
            assert_eq!(Identity::standard().of(&came(&copy)).unwrap().as_str(), "payment-1");
        }
    }

    #[test]
    fn case_36_ids_that_no_line_holds_stay_apart() {
        let ids = ["abc", "abc ", " abc", "a\nb", "a\tb", "abć", "a\\b", "%20", " ", "abc\u{a0}", "a#b"];
        let mut dedup = std::collections::BTreeSet::new();
        for id in ids {
            let sent = sent(Envelope::new("").with_id(id));
            assert!(dedup.insert(header(&sent, DEDUP_ID).unwrap().to_owned()), "{id:?}");
            assert_eq!(Identity::standard().of(&came(&sent)).unwrap().as_str(), id);
        }
    }

    #[test]
    fn two_ids_that_disagree_are_refused_and_a_foreign_episode_is_not() {
        let mut envelope = Envelope::new("").with_header(MESSAGE_ID_HEADER, "a").with_id("b");
        assert!(Identity::standard().of(&came(&sent(envelope.clone()))).is_err());
        envelope.properties.message_id = Some("a".into());
        let mut again = sent(envelope);
        again.headers.insert(DEDUP_ID, "a#second try");
        assert_eq!(Identity::standard().of(&came(&again)).unwrap().as_str(), "a");
    }

    #[test]
    fn copies_that_are_to_be_copies_have_no_dedup_id() {
        let outgoing = Outgoing::to_queue("orders", Envelope::new("").with_id("m"));
        let sent = sendable(&outgoing, false).unwrap();
        assert_eq!((header(&sent, DEDUP_ID), header(&sent, MESSAGE_ID_HEADER)), (None, Some("m")));
        assert_eq!(came(&sent).properties.message_id.as_deref(), Some("m"));
    }

    #[test]
    fn headers_come_through_whatever_is_in_them() {
        let headers =
            [("plain", "x"), ("empty", ""), ("text", " 💶\r\n "), ("na me", "y"), ("Nats-Rollup", "all")];
        let envelope = headers
            .into_iter()
            .fold(Envelope::new(""), |envelope, (name, value)| envelope.with_header(name, value));
        let sent = sent(envelope);
        assert_eq!(header(&sent, "Nats-Rollup"), None, "a word to the server");
        let came = came(&sent);
        for (name, value) in headers {
            assert_eq!(came.headers.get(name), Some(value), "{name}");
        }
        assert_eq!(came.headers.iter().count(), headers.len());
    }

    #[test]
    fn cloudevents_are_found_in_both_modes() {
        let binary = Envelope::new("x").with_header("ce-id", "7").with_header("ce-source", "/shop");
        let mut structured = Envelope::new(r#"{"specversion":"1.0","id":"7","source":"/shop"}"#);
        structured.properties.content_type = Some("application/cloudevents+json".into());
        for event in [binary, structured] {
            let came = came(&sent(event));
            assert_eq!(Identity::cloudevents().of(&came).unwrap().as_str(), "5:/shop,1:7");
        }
    }

    #[test]
    fn a_destination_is_the_subject_and_a_routing_key_then_the_key() {
        let outgoing = |destination: &str, routing_key: &str| Outgoing {
            envelope: Envelope::new(""),
            destination: destination.into(),
            routing_key: routing_key.into(),
        };
        let sent = sendable(&outgoing("orders.paid", "ada"), true).unwrap();
        assert_eq!(sent.subject, "orders.paid");
        assert_eq!(came(&sent).properties.key.as_deref(), Some("ada"));
        for bad in ["orders.*", "", "a b"] {
            let error = sendable(&outgoing(bad, ""), true).unwrap_err();
            assert_eq!(error.code(), hapax_core::Code::NotPublished);
        }
    }
}
