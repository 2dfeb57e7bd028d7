//! The failures that users of comparable software reported in public, and to which systems each applies.

use Scope::{All, None, Only};

/// A failure told in one line.
pub(super) struct Case {
    pub(super) number: u32,
    pub(super) title: &'static str,
    pub(super) stores: Scope,
    pub(super) brokers: Scope,
}

/// The systems that a case applies to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// Every one.
    All,
    /// Those with one of these words in their tests' names.
    Only(&'static [&'static str]),
    /// It is about something else.
    None,
}

impl Scope {
    pub(super) fn covers(self, word: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(words) => words.contains(&word),
            Self::None => false,
        }
    }
}

const fn case(number: u32, stores: Scope, brokers: Scope, title: &'static str) -> Case {
    Case { number, title, stores, brokers }
}

/// The brokers that are a server of their own.
const SERVERS: Scope = Only(&["rabbitmq", "kafka", "nats", "sqs", "redis"]);
/// The stores in which handlers write SQL.
const SQL: Scope = Only(&["sqlite", "postgres", "mariadb"]);

pub(super) const CASES: [Case; 50] = [
    case(1, All, None, "a message that failed after its id was noted comes again"),
    case(2, All, None, "two transactions claim one id at once, then run more SQL"),
    case(
        3,
        Only(&["postgres", "mongodb"]),
        None,
        "a handler swallows a statement's error and returns success",
    ),
    case(4, All, None, "fifty tasks deliver one id at once, some fail"),
    case(5, All, All, "killed between the change and the record, at every point"),
    case(6, All, None, "the claim itself is lost, and the message comes again"),
    case(7, All, None, "one event, two consumers, one database"),
    case(8, All, None, "dead-lettered, left for days, redriven"),
    case(9, All, All, "a processed message is redriven or sent again"),
    case(10, All, None, "two operators redrive one dead letter"),
    case(11, All, None, "purges on several instances under load"),
    case(12, All, None, "stopped for longer than the retention, then replayed"),
    case(13, None, All, "a handler outlives the broker's ack timeout or visibility"),
    case(14, None, Only(&["sqs"]), "prefetched messages whose visibility passes"),
    case(15, All, All, "a message that ends the process each time"),
    case(16, All, All, "the database is away under load"),
    case(17, None, SERVERS, "the broker is away under load"),
    case(18, None, Only(&["kafka"]), "a partition is revoked while its messages are handled"),
    case(19, None, Only(&["kafka"]), "killed between poll and claim"),
    case(20, All, None, "eager: the process dies after recording in progress"),
    case(21, All, None, "eager: a healthy handler runs for three leases"),
    case(22, All, None, "eager: the first owner finishes after a takeover"),
    case(23, All, None, "eager: a lease of zero, or none"),
    case(
        24,
        Only(&["postgres", "mariadb"]),
        None,
        "a lower outbox id commits after a higher one was relayed",
    ),
    case(25, None, Only(&["rabbitmq"]), "a relay dies after publishing, before marking"),
    case(26, None, SERVERS, "unreachable, routed nowhere, or refused by the broker"),
    case(27, None, Only(&["rabbitmq", "kafka", "nats", "sqs"]), "an outbox row that can never be sent"),
    case(28, All, None, "three outbox rows of one key, the first fails"),
    case(29, All, None, "a duplicate of an input whose outputs are published"),
    case(30, None, Only(&["rabbitmq"]), "many outbox transactions of one row, several relays"),
    case(31, None, None, "the same request key with another body"),
    case(32, None, None, "the same request key while the first request runs"),
    case(33, None, None, "a request without its key, or with a malformed one"),
    case(34, None, None, "two tenants use one key"),
    case(35, All, None, "the process dies between a call and its record"),
    case(36, All, All, "ids that look alike, are too long, or hold odd characters"),
    case(37, All, All, "ids of two fields that would run together"),
    case(38, None, All, "empty, null and missing ids"),
    case(39, None, All, "payloads that are no JSON, lack a field, or are too large"),
    case(40, SQL, All, "amounts that a float would change"),
    case(41, None, All, "a message type nobody handles"),
    case(42, None, All, "a batch of a hundred in which two fail"),
    case(43, All, All, "cancelled at every await"),
    case(44, None, None, "a message published twice by hand"),
    case(45, All, None, "an absolute write that arrives after a newer one"),
    case(46, SQL, None, "DDL, COMMIT or ROLLBACK in a handler"),
    case(47, All, None, "the same id with another payload"),
    case(48, None, None, "everything fails for five minutes"),
    case(49, All, None, "order by key, and the first message of a key fails"),
    case(50, Only(&["postgres", "mariadb"]), None, "eight workers, batches, random rows"),
];
