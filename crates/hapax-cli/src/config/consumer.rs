//! `[consumers.NAME]`: a consumer, whose name is the scope of deduplication.

use std::collections::BTreeMap;

use super::field::{self, Field, Id, Pointer, SentAt, TypeOf};
use super::handler::Handler;
use super::policy::Policy;
use super::problem::Placed;
use super::read::{Table, Value};
use super::source::Source;

/// The longest name of a consumer.
const LONGEST_NAME: usize = 64;

/// A consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Consumer {
    /// The name, and where it stands.
    pub name: Placed<String>,
    /// Where the messages come from.
    pub source: Source,
    /// What identifies a message.
    pub id: Placed<Id>,
    /// What tells the handler.
    pub type_of: Placed<TypeOf>,
    /// Where in the body the payload is.
    pub payload: Pointer,
    /// What tells the messages that must not be handled side by side.
    pub key: Option<Placed<Field>>,
    /// When the message was sent; none leaves it to the header of Hapax's own.
    pub sent_at: Option<Placed<SentAt>>,
    /// Where copies of dead letters are published, beside being kept in the store.
    pub dead_letters: Option<DeadLetters>,
    /// How it goes about its messages, with what `[defaults]` says already merged in.
    pub policy: Policy,
    /// The handlers by message type. Never empty.
    pub on: BTreeMap<String, Handler>,
}

/// Where copies of dead letters are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeadLetters {
    /// A queue of the consumer's own broker.
    pub to: Placed<String>,
}

impl Consumer {
    pub(super) fn read(name: &str, value: &Value<'_>, defaults: &Policy) -> Option<Self> {
        check_name(name, value);
        value.table(|table| {
            let source = table.required("source", "Say where its messages come from.", Source::read);
            let id = table.or("id", Id::default().into(), |value| value.placed(Id::read));
            let type_of = table.or("type", TypeOf::default().into(), |value| value.placed(TypeOf::read));
            let payload = table.or("payload", Pointer::whole(), field::read_payload);
            let key = table.optional("key", |value| value.placed(field::read_key));
            let sent_at = table.optional("sent_at", |value| value.placed(SentAt::read));
            let dead_letters = table.optional("dead_letters", |value| value.table(DeadLetters::read));
            let policy = Policy::read(table, defaults);
            let on = read_handlers(table);
            let name = Placed::new(name.to_owned(), value.key());
            Some(Self {
                name,
                source: source?,
                id,
                type_of,
                payload,
                key,
                sent_at,
                dead_letters,
                policy,
                on: on?,
            })
        })
    }
}

/// The name is a column of every table and part of log lines and metric labels.
fn check_name(name: &str, value: &Value<'_>) {
    let fits = (1..=LONGEST_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if !fits {
        value.wrong_key(
            "is no name for a consumer",
            format!("Use 1 to {LONGEST_NAME} letters, digits, `.`, `_` and `-`."),
        );
    }
}

fn read_handlers(table: &mut Table<'_>) -> Option<BTreeMap<String, Handler>> {
    let cure = "Add a handler: `[[consumers.NAME.on.TYPE.sql]]` with `run = \"…\"`.";
    let on = table.required("on", cure, |value| value.entries(Handler::read))?;
    if on.is_empty() {
        table.wrong("has no handler", cure);
    }
    Some(on)
}

impl DeadLetters {
    fn read(table: &mut Table<'_>) -> Option<Self> {
        let to = table
            .required("to", "Name a queue, or remove `dead_letters`.", |value| value.placed(Value::name));
        Some(Self { to: to? })
    }
}
