//! Where a message's id is found.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::value::RawValue;

use crate::{Envelope, MESSAGE_ID_HEADER, MessageId, NotAnId, Pointer};

/// One place of an envelope in which a value can lie.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// A header, by name.
    Header(String),
    /// The broker's message-id property, as the producer set it.
    MessageIdProperty,
    /// The broker's type property.
    TypeProperty,
    /// The broker's ordering key.
    KeyProperty,
    /// A JSON pointer into the body; a string, or a number taken digit for digit.
    Json(Pointer),
    /// The id that the *broker* made. It changes on redrive; asked for knowingly or not at all.
    BrokerId,
}

impl Part {
    /// The value, if there is one that is not null. Empty strings count as missing.
    pub fn find<'e>(&self, envelope: &'e Envelope) -> Result<Option<Cow<'e, str>>, NotAnId> {
        let properties = &envelope.properties;
        let found = match self {
            Self::Header(name) => envelope.headers.get(name),
            Self::MessageIdProperty => properties.message_id.as_deref(),
            Self::TypeProperty => properties.kind.as_deref(),
            Self::KeyProperty => properties.key.as_deref(),
            Self::BrokerId => properties.broker_id.as_deref(),
            Self::Json(pointer) => return find_json(pointer, &envelope.body),
        };
        Ok(found.filter(|text| !text.is_empty()).map(Cow::Borrowed))
    }
}

fn find_json<'e>(pointer: &Pointer, body: &'e [u8]) -> Result<Option<Cow<'e, str>>, NotAnId> {
    let found = pointer.find(body).map_err(|error| NotAnId::NotJson(error.to_string()))?;
    found.map_or(Ok(None), scalar)
}

/// A string's content or a number's digits; null and the empty string are missing.
fn scalar(raw: &RawValue) -> Result<Option<Cow<'_, str>>, NotAnId> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'"') => {
            let content: String =
                serde_json::from_str(text).map_err(|error| NotAnId::NotJson(error.to_string()))?;
            Ok((!content.is_empty()).then_some(Cow::Owned(content)))
        }
        Some(b'0'..=b'9' | b'-') => Ok(Some(Cow::Borrowed(text))),
        Some(b'n') => Ok(None),
        _ => Err(NotAnId::NotScalar),
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::MessageIdProperty => f.write_str("property:message_id"),
            Self::TypeProperty => f.write_str("property:type"),
            Self::KeyProperty => f.write_str("property:key"),
            Self::BrokerId => f.write_str("broker-id"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
        }
    }
}

/// Names under which brokers and conventions carry what relates messages or deliveries, never what
/// identifies one.
const NEVER_AN_ID: [&str; 6] =
    ["correlationid", "xcorrelationid", "causationid", "deliverytag", "traceid", "traceparent"];

impl FromStr for Part {
    type Err = NotAnIdentity;

    /// `header:X`, `property:message_id`, `property:type`, `property:key`, `json:/a`, `broker-id`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("header", name)) if !name.is_empty() => Ok(Self::Header(name.to_owned())),
            Some(("json", pointer)) => pointer
                .parse()
                .map(Self::Json)
                .map_err(|error| NotAnIdentity::Unknown(format!("{text}: {error}"))),
            Some(("property", "message_id")) => Ok(Self::MessageIdProperty),
            Some(("property", "type")) => Ok(Self::TypeProperty),
            Some(("property", "key")) => Ok(Self::KeyProperty),
            Some(("property", name)) if is_never_an_id(name) => Err(NotAnIdentity::Shared(text.to_owned())),
            None if text == "broker-id" => Ok(Self::BrokerId),
            _ => Err(NotAnIdentity::Unknown(text.to_owned())),
        }
    }
}

fn is_never_an_id(name: &str) -> bool {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    NEVER_AN_ID.contains(&plain.to_ascii_lowercase().as_str())
}

/// A configured place that cannot identify a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotAnIdentity {
    /// A value that several messages share, or that changes with each delivery.
    #[error("`{0}` is shared by related messages or changes with each delivery; it identifies none of them")]
    Shared(String),
    /// Not a place that is known.
    #[error(
        "`{0}` is no place for an id: use header:NAME, property:message_id, json:/POINTER, broker-id or cloudevents"
    )]
    Unknown(String),
    /// No field at all.
    #[error("an identity needs at least one field")]
    Empty,
}

type IdFn = Arc<dyn Fn(&Envelope) -> Result<String, NotAnId> + Send + Sync>;

/// Which id a message has.
///
/// ```
/// use hapax_core::{Envelope, Identity};
///
/// let identity = Identity::fields(["json:/tenant", "json:/event"])?;
/// let id = identity.of(&Envelope::new(r#"{"tenant":"a","event":"bc"}"#))?;
/// assert_eq!(id.as_str(), "1:a,2:bc");              // length-prefixed: ("a","bc") is not ("ab","c")
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Identity(Rule);

#[derive(Clone)]
enum Rule {
    /// The first of these that is there; a later one that is there too must agree.
    Agreeing(Vec<Part>),
    One(Part),
    Fields(Vec<Part>),
    CloudEvents,
    Function(IdFn),
}

impl Identity {
    /// The header `hapax-message-id`, then the broker's message-id property. Two that disagree are
    /// refused.
    pub fn standard() -> Self {
        Self(Rule::Agreeing(vec![Part::Header(MESSAGE_ID_HEADER.into()), Part::MessageIdProperty]))
    }

    /// The [standard](Self::standard) places, then an envelope field such as `/messageId`.
    #[must_use]
    pub fn or_envelope(pointer: Pointer) -> Self {
        Self(Rule::Agreeing(vec![
            Part::Header(MESSAGE_ID_HEADER.into()),
            Part::MessageIdProperty,
            Part::Json(pointer),
        ]))
    }

    /// One place.
    pub fn part(part: Part) -> Result<Self, NotAnIdentity> {
        refuse_shared(&part)?;
        Ok(Self(Rule::One(part)))
    }

    /// Several fields together, in the notation of [`Part`]; each must be there.
    pub fn fields<'f>(fields: impl IntoIterator<Item = &'f str>) -> Result<Self, NotAnIdentity> {
        let parts = fields.into_iter().map(str::parse).collect::<Result<Vec<Part>, _>>()?;
        parts.iter().try_for_each(refuse_shared)?;
        if parts.is_empty() {
            return Err(NotAnIdentity::Empty);
        }
        Ok(Self(Rule::Fields(parts)))
    }

    /// CloudEvents: `source` and `id` together, in binary or structured mode.
    pub fn cloudevents() -> Self {
        Self(Rule::CloudEvents)
    }

    /// A function of the envelope.
    pub fn function(find: impl Fn(&Envelope) -> Result<String, NotAnId> + Send + Sync + 'static) -> Self {
        Self(Rule::Function(Arc::new(find)))
    }

    /// The id of a message, or why it has none. Two messages without an id are never one.
    pub fn of(&self, envelope: &Envelope) -> Result<MessageId, NotAnId> {
        match &self.0 {
            Rule::Agreeing(parts) => agreeing(parts, envelope),
            Rule::One(part) => MessageId::new(part.find(envelope)?.ok_or(NotAnId::Missing)?),
            Rule::Fields(parts) => MessageId::new(prefixed(parts, envelope)?),
            Rule::CloudEvents => cloudevents(envelope),
            Rule::Function(find) => MessageId::new(find(envelope)?),
        }
    }
}

impl Default for Identity {
    fn default() -> Self {
        Self::standard()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Rule::Agreeing(parts) => f.debug_tuple("Agreeing").field(parts).finish(),
            Rule::One(part) => f.debug_tuple("One").field(part).finish(),
            Rule::Fields(parts) => f.debug_tuple("Fields").field(parts).finish(),
            Rule::CloudEvents => f.write_str("CloudEvents"),
            Rule::Function(_) => f.write_str("Function"),
        }
    }
}

impl FromStr for Identity {
    type Err = NotAnIdentity;

    /// One [`Part`], or `cloudevents`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "cloudevents" {
            return Ok(Self::cloudevents());
        }
        Self::part(text.parse()?)
    }
}

fn refuse_shared(part: &Part) -> Result<(), NotAnIdentity> {
    match part {
        Part::Header(name) if is_never_an_id(name) => Err(NotAnIdentity::Shared(part.to_string())),
        Part::TypeProperty | Part::KeyProperty => Err(NotAnIdentity::Shared(part.to_string())),
        _ => Ok(()),
    }
}

fn agreeing(parts: &[Part], envelope: &Envelope) -> Result<MessageId, NotAnId> {
    let mut first: Option<(&Part, Cow<'_, str>)> = None;
    for part in parts {
        let found = match (part.find(envelope), &first) {
            (Ok(Some(found)), _) => found,
            // Once an id is known, a body that is not JSON cannot contradict it.
            (Ok(None), _) | (Err(_), Some(_)) => continue,
            (Err(error), None) => return Err(error),
        };
        match &first {
            None => first = Some((part, found)),
            Some((_, id)) if *id == found => {}
            Some((place, id)) => {
                return Err(NotAnId::Disagree {
                    first_place: place.to_string(),
                    first: id.to_string(),
                    second_place: part.to_string(),
                    second: found.into_owned(),
                });
            }
        }
    }
    MessageId::new(first.ok_or(NotAnId::Missing)?.1)
}

/// Each field with its length before it, so that no two lists of fields give one id.
fn prefixed(parts: &[Part], envelope: &Envelope) -> Result<String, NotAnId> {
    let fields = parts
        .iter()
        .map(|part| part.find(envelope)?.ok_or(NotAnId::Missing))
        .collect::<Result<Vec<_>, NotAnId>>()?;
    Ok(join_prefixed(&fields))
}

fn join_prefixed(fields: &[Cow<'_, str>]) -> String {
    fields.iter().map(|field| format!("{}:{field}", field.len())).collect::<Vec<_>>().join(",")
}

fn cloudevents(envelope: &Envelope) -> Result<MessageId, NotAnId> {
    let source = cloudevents_attribute(envelope, "source")?.ok_or(NotAnId::Missing)?;
    let id = cloudevents_attribute(envelope, "id")?.ok_or(NotAnId::Missing)?;
    MessageId::new(join_prefixed(&[source, id]))
}

/// A CloudEvents attribute: from the body in structured mode, from the protocol binding's header
/// (`ce-` HTTP and NATS, `ce_` Kafka, `cloudEvents:` or `cloudEvents_` AMQP) in binary mode.
pub(crate) fn cloudevents_attribute<'e>(
    envelope: &'e Envelope,
    name: &str,
) -> Result<Option<Cow<'e, str>>, NotAnId> {
    let structured = envelope
        .properties
        .content_type
        .as_deref()
        .or_else(|| envelope.headers.get("content-type"))
        .is_some_and(|media| media.trim_start().to_ascii_lowercase().starts_with("application/cloudevents"));
    if structured {
        let pointer = format!("/{name}").parse().map_err(|_| NotAnId::Missing)?;
        return find_json(&pointer, &envelope.body);
    }
    let found = ["ce-", "ce_", "cloudEvents:", "cloudEvents_"]
        .into_iter()
        .find_map(|prefix| envelope.headers.get(&format!("{prefix}{name}")));
    Ok(found.filter(|text| !text.is_empty()).map(Cow::Borrowed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn id(identity: &Identity, envelope: &Envelope) -> Result<String, NotAnId> {
        identity.of(envelope).map(|id| id.to_string())
    }

    #[test]
    fn the_header_comes_before_the_property_and_must_agree() {
        let both = Envelope::new("").with_header(MESSAGE_ID_HEADER, "a").with_id("a");
        assert_eq!(id(&Identity::standard(), &both).unwrap(), "a");
        let disagree = both.with_id("b");
        assert_eq!(Identity::standard().of(&disagree).unwrap_err().code(), crate::Code::IdsDisagree);
        assert_eq!(id(&Identity::standard(), &Envelope::new("")), Err(NotAnId::Missing));
    }

    #[test]
    fn an_envelope_field_is_the_last_resort() {
        let identity = Identity::or_envelope("/messageId".parse().unwrap());
        assert_eq!(id(&identity, &Envelope::new(r#"{"messageId":"m"}"#)).unwrap(), "m");
        assert_eq!(id(&identity, &Envelope::new("not json").with_id("m")).unwrap(), "m");
        assert!(matches!(id(&identity, &Envelope::new("not json")), Err(NotAnId::NotJson(_))));
    }

    #[test]
    fn case_37_composite_ids_are_distinct_and_need_every_field() {
        let identity = Identity::fields(["json:/a", "json:/b"]).unwrap();
        let one = id(&identity, &Envelope::new(r#"{"a":"a","b":"bc"}"#)).unwrap();
        let two = id(&identity, &Envelope::new(r#"{"a":"ab","b":"c"}"#)).unwrap();
        assert_ne!(one, two);
        assert_eq!(id(&identity, &Envelope::new(r#"{"a":"ab"}"#)), Err(NotAnId::Missing));
    }

    proptest! {
        #[test]
        fn case_37_no_two_field_lists_share_an_id(a in "[a:,0-9]{1,6}", b in "[a:,0-9]{1,6}", c in "[a:,0-9]{1,6}", d in "[a:,0-9]{1,6}") {
            let join = |x: &str, y: &str| join_prefixed(&[x.into(), y.into()]);
            prop_assert_eq!(join(&a, &b) == join(&c, &d), (a, b) == (c, d));
        }
    }

    #[test]
    fn case_38_empty_null_and_missing_are_no_ids() {
        let identity: Identity = "json:/id".parse().unwrap();
        for body in [r#"{"id":""}"#, r#"{"id":null}"#, "{}"] {
            assert_eq!(id(&identity, &Envelope::new(body)), Err(NotAnId::Missing), "{body}");
        }
        for body in [r#"{"id":{}}"#, r#"{"id":[1]}"#, r#"{"id":true}"#] {
            assert_eq!(id(&identity, &Envelope::new(body)), Err(NotAnId::NotScalar), "{body}");
        }
        assert_eq!(id(&identity, &Envelope::new(r#"{"id":9007199254740993}"#)).unwrap(), "9007199254740993");
    }

    #[test]
    fn a_correlation_id_or_delivery_tag_is_refused() {
        for shared in
            ["property:correlation_id", "header:X-Correlation-Id", "property:delivery_tag", "property:type"]
        {
            assert!(matches!(shared.parse::<Identity>(), Err(NotAnIdentity::Shared(_))), "{shared}");
        }
        assert!(matches!("cookie".parse::<Identity>(), Err(NotAnIdentity::Unknown(_))));
    }

    #[test]
    fn cloudevents_in_both_modes() {
        let identity = Identity::cloudevents();
        let mut structured = Envelope::new(r#"{"specversion":"1.0","id":"7","source":"/shop"}"#);
        structured.properties.content_type = Some("application/cloudevents+json; charset=utf-8".into());
        let binary = Envelope::new("x").with_header("ce_id", "7").with_header("ce_source", "/shop");
        assert_eq!(id(&identity, &structured).unwrap(), "5:/shop,1:7");
        assert_eq!(id(&identity, &structured), id(&identity, &binary));
    }
}
