//! Where in a delivery a value is found: the message's id, its type, its payload, its key, its time.
//!
//! Design, section 4 ("Identity"): a message id is assigned by the producer and shared by every copy. What
//! belongs to one delivery, or to a whole conversation, is refused here (HX0009).

use super::read::Value;
use hapax::Code;

/// A JSON pointer (RFC 6901): empty for the whole document, else `/` before each step.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pointer(String);

impl Pointer {
    /// The pointer to the whole document.
    pub(crate) fn whole() -> Self {
        Self::default()
    }

    /// The pointer that `text` writes; `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let starts = text.is_empty() || text.starts_with('/');
        let escapes = text.split('~').skip(1).all(|after| after.starts_with(['0', '1']));
        (starts && escapes).then(|| Self(text.to_owned()))
    }

    /// The pointer as it is written.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it points to the whole document.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.is_empty()
    }
}

/// A property of the broker's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    /// `property:message_id`: AMQP's `message_id`, the embedded queue's id.
    MessageId,
    /// `property:type`: AMQP's `type`, the embedded queue's type.
    Type,
    /// `property:key`: the key that the broker orders by, as the embedded queue has one.
    Key,
    /// `property:timestamp`: the time the producer's client gave to this copy.
    Timestamp,
}

/// One value of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// `property:NAME`
    Property(Property),
    /// `header:NAME`
    Header(String),
    /// `json:/pointer`, into the body.
    Json(Pointer),
}

/// What identifies a message within its consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Id {
    /// Nothing configured: the header `hapax-message-id`, then the broker's message-id property; two that
    /// disagree are rejected.
    #[default]
    Standard,
    /// `cloudevents`: `source` and `id` together.
    CloudEvents,
    /// One field, or several together. Never empty.
    Fields(Vec<Field>),
}

/// What tells which handler a message is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum TypeOf {
    /// Nothing configured: the broker's type property, then the header `hapax-message-type`.
    #[default]
    Standard,
    /// A field of the delivery.
    Field(Field),
    /// `always:NAME`: every message is of one type.
    Always(String),
    /// `cloudevents`: the attribute `type`.
    CloudEvents,
}

/// When the message was sent: one value that all its copies share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SentAt {
    /// A field of the delivery.
    Field(Field),
    /// `cloudevents`: the attribute `time`.
    CloudEvents,
}

impl Field {
    /// Whether it is found in the body, so that a line of a file can have it.
    pub(crate) fn is_in_body(&self) -> bool {
        matches!(self, Self::Json(_))
    }

    fn read(value: &Value<'_>, text: &str, forms: &Forms) -> Option<Self> {
        let field = match text.split_once(':') {
            Some(("property", name)) => forms.property(name).map(Self::Property),
            Some(("header", name)) if is_header_name(name) => Some(Self::Header(name.to_owned())),
            Some(("json", pointer)) => {
                Pointer::parse(pointer).filter(|pointer| !pointer.is_whole()).map(Self::Json)
            }
            _ => None,
        };
        if field.is_none() {
            forms.refuse(value);
        }
        field
    }
}

/// The forms that one key takes, for its error.
struct Forms {
    properties: &'static [(&'static str, Property)],
    listed: &'static str,
}

impl Forms {
    const ID: Self = Self {
        properties: &[("message_id", Property::MessageId)],
        listed: "`property:message_id`, `header:NAME`, `json:/pointer`, `cloudevents`, or a list of the first three",
    };
    const TYPE: Self = Self {
        properties: &[("type", Property::Type)],
        listed: "`property:type`, `header:NAME`, `json:/pointer`, `always:NAME` or `cloudevents`",
    };
    const KEY: Self = Self {
        properties: &[("key", Property::Key)],
        listed: "`property:key`, `header:NAME` or `json:/pointer`",
    };
    const SENT_AT: Self = Self {
        properties: &[("timestamp", Property::Timestamp)],
        listed: "`header:NAME`, `json:/pointer`, `property:timestamp` or `cloudevents`",
    };

    fn property(&self, name: &str) -> Option<Property> {
        self.properties.iter().find(|(known, _)| *known == name).map(|(_, property)| *property)
    }

    fn refuse(&self, value: &Value<'_>) {
        value.wrong("does not say where in a message to look", format!("Write {}.", self.listed));
    }
}

fn is_header_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_control())
}

impl Id {
    /// Whether it is found in the body, so that a line of a file can have it.
    pub(crate) fn is_in_body(&self) -> bool {
        match self {
            Self::Standard => false,
            Self::CloudEvents => true,
            Self::Fields(fields) => fields.iter().all(Field::is_in_body),
        }
    }

    pub(super) fn read(value: &Value<'_>) -> Option<Self> {
        if value.is_list() {
            return read_several(value);
        }
        let text = value.text()?.value;
        if text == "cloudevents" {
            return Some(Self::CloudEvents);
        }
        read_identity(value, &text).map(|field| Self::Fields(vec![field]))
    }
}

fn read_several(value: &Value<'_>) -> Option<Id> {
    let fields = value.list(|item| read_identity(item, &item.text()?.value))?;
    if fields.is_empty() {
        value.wrong("is empty", "Name at least one field, or remove the line.");
        return None;
    }
    let repeated = fields.iter().enumerate().any(|(index, field)| fields[..index].contains(field));
    if repeated {
        value.wrong("names one field twice", "Name every field once.");
        return None;
    }
    Some(Id::Fields(fields))
}

fn read_identity(value: &Value<'_>, text: &str) -> Option<Field> {
    if let Some(reason) = no_identity(text) {
        let cure = "Use the id that the producer gave to the message and that all its copies share: \
                    `property:message_id`, `header:NAME` or `json:/pointer`.";
        value.wrong_as(Code::NotAnIdentity, format!("is no identity: {reason}"), cure);
        return None;
    }
    Field::read(value, text, &Forms::ID)
}

/// Why a field cannot identify a message; `None` if it may.
fn no_identity(text: &str) -> Option<&'static str> {
    let (_, name) = text.split_once(':')?;
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let is_any_of = |words: &[&str]| words.iter().any(|word| name == *word || name == format!("x{word}"));
    if is_any_of(&["correlationid", "conversationid", "traceparent", "traceid"]) {
        return Some("a correlation id is shared by different messages");
    }
    if is_any_of(&["deliverytag", "receipthandle", "deliverycount", "redelivered", "consumertag"]) {
        return Some("a delivery tag ends with its delivery, and a copy has another one");
    }
    let is_property = text.starts_with("property:");
    if is_property
        && is_any_of(&[
            "timestamp",
            "type",
            "replyto",
            "userid",
            "appid",
            "clusterid",
            "routingkey",
            "offset",
        ])
    {
        return Some("different messages share it, or copies of one message differ in it");
    }
    None
}

impl TypeOf {
    /// Whether a line of a file can have it.
    pub(crate) fn is_in_body(&self) -> bool {
        match self {
            Self::Standard => false,
            Self::Field(field) => field.is_in_body(),
            Self::Always(_) | Self::CloudEvents => true,
        }
    }

    pub(super) fn read(value: &Value<'_>) -> Option<Self> {
        let text = value.text()?.value;
        if text == "cloudevents" {
            return Some(Self::CloudEvents);
        }
        if let Some(name) = text.strip_prefix("always:").filter(|name| !name.is_empty()) {
            return Some(Self::Always(name.to_owned()));
        }
        Field::read(value, &text, &Forms::TYPE).map(Self::Field)
    }
}

impl SentAt {
    /// Whether a line of a file can have it.
    pub(crate) fn is_in_body(&self) -> bool {
        match self {
            Self::Field(field) => field.is_in_body(),
            Self::CloudEvents => true,
        }
    }

    pub(super) fn read(value: &Value<'_>) -> Option<Self> {
        let text = value.text()?.value;
        if text == "cloudevents" {
            return Some(Self::CloudEvents);
        }
        Field::read(value, &text, &Forms::SENT_AT).map(Self::Field)
    }
}

/// Reads `key`.
pub(super) fn read_key(value: &Value<'_>) -> Option<Field> {
    Field::read(value, &value.text()?.value, &Forms::KEY)
}

/// Reads `payload`: `json:` for the whole body, `json:/pointer` for a part of an envelope.
pub(super) fn read_payload(value: &Value<'_>) -> Option<Pointer> {
    let pointer = value.text()?.value.strip_prefix("json:").and_then(Pointer::parse);
    if pointer.is_none() {
        value.wrong(
            "does not say where the payload is",
            "Write `json:` for the whole body, or `json:/payload` for an envelope.",
        );
    }
    pointer
}

/// Reads a parameter's `json`.
pub(super) fn read_pointer(value: &Value<'_>) -> Option<Pointer> {
    let pointer = Pointer::parse(&value.text()?.value);
    if pointer.is_none() {
        value.wrong("is no JSON pointer", "Begin it with `/`, as in `/order_id` or `/lines/0/sku`.");
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_starts_with_a_slash_or_is_empty() {
        for good in ["", "/", "/a/b", "/a~1b/m~0n", "/0"] {
            assert!(Pointer::parse(good).is_some(), "{good}");
        }
        for bad in ["a", "a/b", "/~", "/~2", "#/a"] {
            assert!(Pointer::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn what_is_shared_or_ends_with_a_delivery_is_no_identity() {
        for refused in [
            "property:correlation_id",
            "property:delivery_tag",
            "header:correlation-id",
            "header:X-Correlation-ID",
            "header:traceparent",
            "json:/meta/correlationId",
            "property:timestamp",
        ] {
            assert!(no_identity(refused).is_some(), "{refused}");
        }
        for accepted in
            ["property:message_id", "header:X-Event-Id", "json:/event/id", "json:/type", "cloudevents"]
        {
            assert!(no_identity(accepted).is_none(), "{accepted}");
        }
    }
}
