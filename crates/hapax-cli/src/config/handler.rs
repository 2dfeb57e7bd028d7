//! `[consumers.NAME.on.TYPE]`: what happens to a message of one type.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use toml::de::DeValue;

use super::broker::Tls;
use super::parameter::Parameter;
use super::problem::{Place, Placed, Problem};
use super::read::{Choice, Table, Value};
use super::secret::{Secret, SecretUrl};
use crate::statement::Statement;
use hapax::{Code, Destination};

/// A handler: SQL statements and publishes in the inbox's transaction, or one HTTP call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handler {
    /// The message type, and where it stands.
    pub type_name: Placed<String>,
    /// The parameters by name, taken from the payload.
    pub params: BTreeMap<String, Placed<Parameter>>,
    /// The statements, run in this order on the handler's transaction.
    pub sql: Vec<Sql>,
    /// The messages that are published if the transaction commits.
    pub publish: Vec<Publish>,
    /// The call, which never stands beside statements.
    pub http: Option<Placed<Http>>,
}

/// What happens if a statement touches another number of rows than expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnMismatch {
    /// The message failed and is tried again.
    #[default]
    Retry,
    /// The message is set aside.
    Reject,
    /// Nothing.
    Ignore,
}

impl Choice for OnMismatch {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("retry", Self::Retry), ("reject", Self::Reject), ("ignore", Self::Ignore)];
}

/// A statement of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sql {
    /// The statement, and the place of its text.
    pub run: Placed<Statement>,
    /// How many rows it must touch; none does not look.
    pub expect_rows: Option<u32>,
    /// What happens if it touches another number.
    pub on_mismatch: OnMismatch,
    /// Every use of a parameter in the statement, in its order, with its place in the file.
    pub uses: Vec<Placed<String>>,
    /// What only SQLite would take for a parameter; see [`Statement::sqlite_placeholder`].
    pub sqlite_placeholder: Option<Placed<String>>,
}

/// A message that a handler publishes through the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Publish {
    /// Where it is published.
    pub to: Placed<Target>,
    /// Its type.
    pub kind: String,
    /// What orders it; none leaves it unordered.
    pub key: Option<Placed<Template>>,
    /// Its body.
    pub body: Placed<Body>,
}

/// Where a message is published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The broker's name under `[brokers]`; none for an embedded queue, in the store itself.
    pub broker: Option<Placed<String>>,
    /// The queue, by its name.
    pub queue: Option<String>,
    /// RabbitMQ: the exchange; empty for the default exchange, which routes to the queue named by the key.
    pub exchange: String,
    /// RabbitMQ: the routing key.
    pub routing_key: String,
    /// Kafka: the topic.
    pub topic: Option<String>,
}

/// A string that is a parameter (`":x"`) or itself (`"x"`; `"::x"` is the text `:x`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Template {
    /// The parameter's value.
    Parameter(String),
    /// The text itself.
    Text(String),
}

/// The body of a published message, which becomes JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// A string or a parameter.
    Template(Template),
    /// A number, digit for digit as the file has it.
    Number(String),
    /// `true` or `false`.
    Boolean(bool),
    /// A list.
    List(Vec<Body>),
    /// An object.
    Object(BTreeMap<String, Body>),
}

/// A call to an HTTP service that carries the message id as `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Http {
    /// The method.
    pub method: Method,
    /// The URL, fixed and never taken from a payload.
    pub url: SecretUrl,
    /// The headers. Some hold credentials, hence all are secret.
    pub headers: BTreeMap<String, Secret>,
    /// What the request's body is.
    pub body: HttpBody,
    /// How long the answer may take.
    pub timeout: Placed<Duration>,
    /// What is tried again; every other failure is final.
    pub retry_on: Vec<RetryOn>,
    /// What happens if it is unknown whether the call took effect.
    pub unknown_outcome: UnknownOutcome,
    /// Instead of the system's certificate authorities.
    pub tls: Option<Tls>,
    /// What the service tells copies by.
    pub idempotency_key: KeyOf,
}

/// What a service is to tell copies of a call by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyOf {
    /// The message's id.
    #[default]
    Id,
    /// The consumer's name and the message's id, where several consumers call one service.
    ConsumerId,
}

impl Choice for KeyOf {
    const CHOICES: &'static [(&'static str, Self)] = &[("id", Self::Id), ("consumer-id", Self::ConsumerId)];
}

/// An HTTP method that may have an effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Method {
    /// `POST`
    #[default]
    Post,
    /// `PUT`
    Put,
    /// `PATCH`
    Patch,
    /// `DELETE`
    Delete,
}

impl Choice for Method {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("POST", Self::Post), ("PUT", Self::Put), ("PATCH", Self::Patch), ("DELETE", Self::Delete)];
}

/// What the body of a request is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HttpBody {
    /// The message's payload, byte for byte.
    #[default]
    Payload,
}

impl Choice for HttpBody {
    const CHOICES: &'static [(&'static str, Self)] = &[("payload", Self::Payload)];
}

/// An outcome of a call that is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryOn {
    /// One status, such as `"429"`.
    Status(u16),
    /// A hundred of them by their first digit, such as `"5xx"`.
    Class(u16),
    /// No answer in time.
    Timeout,
    /// No connection.
    Connect,
}

impl RetryOn {
    /// What is tried again if the file does not say.
    const DEFAULT: [Self; 4] = [Self::Status(429), Self::Class(5), Self::Timeout, Self::Connect];

    fn parse(text: &str) -> Option<Self> {
        let number =
            |text: &str, range: Range<u16>| text.parse().ok().filter(|number| range.contains(number));
        match text {
            "timeout" => Some(Self::Timeout),
            "connect" => Some(Self::Connect),
            _ => match text.strip_suffix("xx") {
                Some(class) => number(class, 3..6).map(Self::Class),
                None => number(text, 300..600).map(Self::Status),
            },
        }
    }
}

/// What happens if it is unknown whether a call took effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum UnknownOutcome {
    /// It is made again with the same key.
    #[default]
    RetrySameKey,
    /// The message is set aside.
    DeadLetter,
}

impl Choice for UnknownOutcome {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("retry-same-key", Self::RetrySameKey), ("dead-letter", Self::DeadLetter)];
}

impl Handler {
    /// The names of the parameters that publishes refer to, each with its place.
    pub(crate) fn published(&self) -> impl Iterator<Item = (&str, Place)> {
        self.publish.iter().flat_map(|publish| {
            let key = publish.key.as_ref().and_then(|key| Some((key.value.parameter()?, key.place)));
            let mut names = Vec::new();
            publish.body.value.collect_parameters(&mut names);
            key.into_iter().chain(names.into_iter().map(|name| (name, publish.body.place)))
        })
    }

    pub(super) fn read(type_name: &str, value: &Value<'_>) -> Option<Self> {
        let type_name = Placed::new(type_name.to_owned(), value.key());
        value.table(|table| {
            let params = table.or("params", BTreeMap::new(), |value| {
                value.entries(|name, value| value.placed(|value| Parameter::read(name, value)))
            });
            let sql = table.or("sql", Vec::new(), |value| value.list(Sql::read));
            let publish = table.or("publish", Vec::new(), |value| value.list(Publish::read));
            let http = table.optional("http", |value| value.placed(Http::read));
            Some(Self { type_name, params, sql, publish, http })
        })
    }
}

impl Sql {
    fn read(value: &Value<'_>) -> Option<Self> {
        value.table(|table| {
            let run = table.required("run", "Write `run = \"UPDATE …\"`.", Self::of_statement);
            let expect_rows = table.optional("expect_rows", |value| value.integer(0, u32::MAX));
            let on_mismatch = table.optional("on_mismatch", Value::choice);
            if on_mismatch.is_some() && expect_rows.is_none() {
                table.wrong(
                    "has `on_mismatch` but nothing to match",
                    "Add `expect_rows`, or remove `on_mismatch`.",
                );
            }
            Some(Self { expect_rows, on_mismatch: on_mismatch.unwrap_or_default(), ..run? })
        })
    }

    fn of_statement(value: &Value<'_>) -> Option<Self> {
        let sql = value.verbatim()?;
        let place = |range: &Range<usize>| value.place_in(sql, range);
        let statement = Statement::parse(sql).map_err(|error| {
            let problem = Problem::new(Code::StatementParameter, place(&error.place()), error.to_string());
            value.note(problem.help(error.cure()));
        });
        let statement = statement.ok()?;
        let located = |(text, range): (&str, _)| Placed::new(text.to_owned(), place(&range));
        let uses = statement.uses().map(located).collect();
        let placeholder = statement.sqlite_placeholder().map(|range| located((&sql[range.clone()], range)));
        Some(Self {
            run: Placed::new(statement, value.place()),
            expect_rows: None,
            on_mismatch: OnMismatch::default(),
            uses,
            sqlite_placeholder: placeholder,
        })
    }
}

impl Publish {
    fn read(value: &Value<'_>) -> Option<Self> {
        value.table(|table| {
            let to = table.required(
                "to",
                "Write `to = { broker = …, exchange = …, routing_key = … }`.",
                |value| value.placed(|value| value.table(Target::read)),
            );
            let kind = table.required("type", "Write the type of the message: `type = \"…\"`.", Value::name);
            let key = table.optional("key", |value| value.placed(Template::read));
            let body = table.required("body", "Write `body = { name = \":parameter\" }`.", |value| {
                value.placed(|value| Body::read(value))
            });
            Some(Self { to: to?, kind: kind?, key, body: body? })
        })
    }
}

impl Target {
    /// As the outbox keeps it: an embedded queue belongs to the broker without a name.
    pub(crate) fn destination(&self) -> Destination {
        let broker = self.broker.as_ref().map_or("", |broker| broker.value.as_str());
        let destination = match (&self.queue, &self.topic) {
            (Some(queue), _) => Destination::queue(queue),
            (None, Some(topic)) => Destination::exchange(topic, ""),
            (None, None) => Destination::exchange(&self.exchange, &self.routing_key),
        };
        destination.on(broker)
    }

    fn read(table: &mut Table<'_>) -> Option<Self> {
        const FORMS: &str = "Write `{ broker = …, exchange = …, routing_key = … }`, `{ broker = …, queue = … }`, or \
                             `{ queue = … }` for an embedded queue.";
        let before = table.problems();
        let broker = table.optional("broker", |value| value.placed(Value::name));
        let text = |value: &Value<'_>| value.text().map(|text| text.value);
        let queue = table.optional("queue", Value::name);
        let exchange = table.or("exchange", String::new(), text);
        let routing_key = table.or("routing_key", String::new(), text);
        let topic = table.optional("topic", Value::name);
        if table.problems() > before {
            return None; // a key that could not be read would be taken for one that is missing
        }
        let is_routed = !exchange.is_empty() || !routing_key.is_empty();
        let forms = [queue.is_some(), topic.is_some(), is_routed];
        let is_clear = forms.into_iter().filter(|form| *form).count() == 1;
        if !is_clear || (broker.is_none() && queue.is_none()) {
            table.wrong("mixes or lacks the keys that a destination is told by", FORMS);
            return None;
        }
        Some(Self { broker, queue, exchange, routing_key, topic })
    }
}

impl Template {
    /// The parameter's name, if it is one.
    pub(crate) fn parameter(&self) -> Option<&str> {
        match self {
            Self::Parameter(name) => Some(name),
            Self::Text(_) => None,
        }
    }

    fn read(value: &Value<'_>) -> Option<Self> {
        value.text().map(|text| Self::parse(&text.value))
    }

    fn parse(text: &str) -> Self {
        match text.strip_prefix(':') {
            Some(rest) if rest.starts_with(':') => Self::Text(rest.to_owned()),
            Some(name) => Self::Parameter(name.to_owned()),
            None => Self::Text(text.to_owned()),
        }
    }
}

impl Body {
    fn read(value: &Value<'_>) -> Option<Self> {
        match value.any() {
            DeValue::String(_) => Template::read(value).map(Self::Template),
            DeValue::Integer(number) => Self::number(value, &number.to_string()),
            DeValue::Float(number) => Self::number(value, number.as_str()),
            DeValue::Boolean(boolean) => Some(Self::Boolean(*boolean)),
            DeValue::Array(_) => value.list(Self::read).map(Self::List),
            DeValue::Table(_) => value.entries(|_, value| Self::read(value)).map(Self::Object),
            DeValue::Datetime(_) => {
                value.wrong("is a date, which JSON does not have", "Put it in quotes.");
                None
            }
        }
    }

    /// TOML has numbers that JSON lacks: `inf`, `nan`, `0xff`.
    fn number(value: &Value<'_>, text: &str) -> Option<Self> {
        let text = text.trim_start_matches('+');
        let number = serde_json::from_str::<Box<serde_json::value::RawValue>>(text).ok();
        if number.is_none() {
            value.wrong("is a number that JSON cannot write", "Write a plain decimal number.");
        }
        number.map(|_| Self::Number(text.to_owned()))
    }

    fn collect_parameters<'a>(&'a self, names: &mut Vec<&'a str>) {
        match self {
            Self::Template(template) => names.extend(template.parameter()),
            Self::List(items) => items.iter().for_each(|item| item.collect_parameters(names)),
            Self::Object(members) => members.values().for_each(|member| member.collect_parameters(names)),
            Self::Number(_) | Self::Boolean(_) => {}
        }
    }
}

impl Http {
    /// Scheme, host and port, as they are written.
    pub(crate) fn origin(&self) -> String {
        let url = self.url.expose();
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        format!("{scheme}://{host}").to_ascii_lowercase()
    }

    fn read(value: &Value<'_>) -> Option<Self> {
        value.table(|table| {
            let method = table.or("method", Method::default(), Value::choice);
            let url = table.required("url", "Write `url = \"https://…\"`.", read_url);
            let headers = table.or("headers", BTreeMap::new(), |value| value.entries(read_header));
            let body = table.or("body", HttpBody::default(), Value::choice);
            let timeout = table.or("timeout", Duration::from_secs(10).into(), |value| {
                value.placed(Value::positive_duration)
            });
            let retry_on = table.or("retry_on", RetryOn::DEFAULT.to_vec(), |value| value.list(read_retry_on));
            let unknown_outcome = table.or("unknown_outcome", UnknownOutcome::default(), Value::choice);
            let tls = table.optional("tls", |value| value.table(Tls::read));
            let idempotency_key = table.or("idempotency_key", KeyOf::default(), Value::choice);
            Some(Self {
                method,
                url: url?,
                headers,
                body,
                timeout,
                retry_on,
                unknown_outcome,
                tls,
                idempotency_key,
            })
        })
    }
}

fn read_url(value: &Value<'_>) -> Option<SecretUrl> {
    let url = SecretUrl::new(value.name()?);
    let fits = matches!(url.scheme(), "http" | "https");
    if !fits {
        value.wrong("is no HTTP URL", "Begin it with `https://`.");
    }
    fits.then_some(url)
}

/// The key is the message's, and the length the body's.
fn read_header(name: &str, value: &Value<'_>) -> Option<Secret> {
    let is_ours = [
        "idempotency-key",
        "hapax-message-type",
        "content-length",
        "host",
        "transfer-encoding",
        "connection",
    ]
    .iter()
    .any(|ours| name.eq_ignore_ascii_case(ours));
    if is_ours {
        value.wrong_key("is a header that Hapax sets itself", "Remove it.");
        return None;
    }
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        value.wrong_key("is no name of a header", "Use letters, digits and `-`.");
        return None;
    }
    let text = value.text()?.value;
    if text.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        value.wrong("holds what a header cannot: a line break or another control character", "Remove it.");
        return None;
    }
    Some(Secret::new(text))
}

fn read_retry_on(value: &Value<'_>) -> Option<RetryOn> {
    let text = value.text()?;
    let outcome = RetryOn::parse(&text.value);
    if outcome.is_none() {
        let cure = "Write a status from 300 on (`429`), a class of them (`5xx`), `timeout` or `connect`.";
        value.wrong(format!("is no outcome of a call: `{}`", text.written), cure);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_colon_makes_a_parameter_and_two_make_a_text() {
        assert_eq!(Template::parse(":x"), Template::Parameter("x".into()));
        assert_eq!(Template::parse("::x"), Template::Text(":x".into()));
        assert_eq!(Template::parse("x:y"), Template::Text("x:y".into()));
    }

    #[test]
    fn outcomes_are_statuses_classes_and_two_words() {
        assert_eq!(RetryOn::parse("429"), Some(RetryOn::Status(429)));
        assert_eq!(RetryOn::parse("5xx"), Some(RetryOn::Class(5)));
        for refused in ["", "xx", "6xx", "2xx", "99", "200", "600", "-1", "time"] {
            assert_eq!(RetryOn::parse(refused), None, "{refused}");
        }
    }
}
