//! What must fit together across a configuration, once every value in it is right by itself.

use std::collections::BTreeMap;

use super::Config;
use super::broker::BrokerKind;
use super::consumer::Consumer;
use super::field::TypeOf;
use super::handler::{Handler, KeyOf};
use super::nearest::suggestion;
use super::parameter::Parameter;
use super::policy::{Order, Strategy};
use super::problem::{Place, Placed, Problem};
use super::source::Source;
use super::store::StoreKind;
use hapax::Code;

/// Everything that does not fit together.
pub(super) fn check(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(shared_services(config));
    for consumer in config.consumers.values() {
        problems.extend(broker(config, consumer));
        problems.extend(lines(consumer));
        problems.extend(policy(consumer));
        problems.extend(always(consumer));
        problems.extend(copies(consumer));
        for handler in consumer.on.values() {
            problems.extend(publishes(config, handler));
            problems.extend(work(handler));
            problems.extend(call(consumer, handler));
            problems.extend(parameters(handler));
            problems.extend(foreign_placeholders(config, handler));
        }
    }
    problems
}

/// What is worth knowing although the program runs.
pub(super) fn notes(config: &Config) -> Vec<Problem> {
    let prefetch = config.consumers.values().filter_map(small_prefetch);
    prefetch.map(Problem::into_note).collect()
}

fn wrong(place: Place, message: impl Into<String>, help: impl Into<String>) -> Problem {
    Problem::new(Code::ConfigWrongValue, place, message).help(help)
}

fn unknown_broker(config: &Config, broker: &Placed<String>) -> Option<Problem> {
    if config.brokers.contains_key(&broker.value) {
        return None;
    }
    let known: Vec<_> = config.brokers.keys().map(String::as_str).collect();
    let help = if known.is_empty() {
        "Define it: `[brokers.NAME]` with its `kind`.".to_owned()
    } else {
        suggestion(&broker.value, &known)
    };
    Some(wrong(broker.place, "this broker is not defined under `[brokers]`", help))
}

/// A source names a broker that exists, in the form that its kind has.
fn broker(config: &Config, consumer: &Consumer) -> Option<Problem> {
    let name = consumer.source.broker()?;
    let Some(broker) = config.brokers.get(&name.value) else {
        return unknown_broker(config, name);
    };
    let kind = broker.kind.value;
    let other_form = match (kind, &consumer.source) {
        (BrokerKind::RabbitMq | BrokerKind::Sqs, Source::Topics { .. } | Source::Stream { .. }) => {
            "Write `queue = …`."
        }
        (BrokerKind::Kafka, Source::Stream { .. }) => "Write `topics = […]` and `group = …`.",
        (BrokerKind::Nats, Source::Topics { .. }) => "Write `stream = …` and `consumer = …`.",
        (BrokerKind::Redis, Source::Topics { .. }) => "Write `stream = …` and `group = …`.",
        _ => return foreign_key(kind, &consumer.source),
    };
    Some(wrong(name.place, "this broker's kind has another form of source", other_form))
}

/// A key of a source that means nothing on its broker.
fn foreign_key(kind: BrokerKind, source: &Source) -> Option<Problem> {
    if let Some(group) = source.group()
        && matches!(kind, BrokerKind::RabbitMq | BrokerKind::Sqs)
    {
        let message = format!("{} has no groups: whoever reads a queue shares it", kind.name());
        return Some(wrong(group.place, message, "Remove it."));
    }
    if let Source::Queue { prefetch: Some(prefetch), .. } = source
        && kind != BrokerKind::RabbitMq
    {
        let message = format!("{} has no prefetch", kind.name());
        return Some(wrong(
            prefetch.place,
            message,
            "Remove it; `batch` and `concurrency` say how much is fetched.",
        ));
    }
    None
}

/// A line of a file is the body and nothing else: it has no properties and no headers.
fn lines(consumer: &Consumer) -> Vec<Problem> {
    let Source::File(file) = &consumer.source else { return Vec::new() };
    let Consumer { id, type_of, key, sent_at, .. } = consumer;
    let fields = [
        ("id", id.place, id.is_in_body(), "`id = \"json:/pointer\"` or `id = \"cloudevents\"`"),
        (
            "type",
            type_of.place,
            type_of.is_in_body(),
            "`type = \"json:/pointer\"` or `type = \"always:NAME\"`",
        ),
    ];
    let key = key.as_ref().map(|key| ("key", key.place, key.is_in_body(), "`key = \"json:/pointer\"`"));
    let sent_at = sent_at
        .as_ref()
        .map(|sent_at| ("sent_at", sent_at.place, sent_at.is_in_body(), "`sent_at = \"json:/pointer\"`"));
    let outside = fields.into_iter().chain(key).chain(sent_at).filter(|(_, _, is_in_body, _)| !is_in_body);
    outside
        .map(|(name, place, _, cure)| {
            let place = if place.is_nowhere() { file.place } else { place };
            let message = format!("a line of a file has no properties and no headers to take `{name}` from");
            wrong(place, message, format!("Write {cure}."))
        })
        .collect()
}

fn policy(consumer: &Consumer) -> Vec<Problem> {
    let policy = &consumer.policy;
    let mut problems = Vec::new();
    if policy.strategy.value == Strategy::Eager && policy.lease.is_none() {
        problems.push(wrong(
            policy.strategy.place,
            "`strategy = \"eager\"` needs a `lease`: without one, a message whose process died would wait forever",
            "Add `lease = \"30s\"`; it is renewed while the handler runs.",
        ));
    }
    if policy.order.value == Order::Key && consumer.key.is_none() {
        problems.push(wrong(
            policy.order.place,
            format!("`order = \"key\"` needs to know the key of `{}`'s messages", consumer.name.value),
            "Add `key = \"json:/pointer\"` to the consumer, or write `order = \"none\"`.",
        ));
    }
    problems
}

/// With one type for all messages and no handler for it, every message would be set aside.
fn always(consumer: &Consumer) -> Option<Problem> {
    let TypeOf::Always(name) = &consumer.type_of.value else { return None };
    let known: Vec<_> = consumer.on.keys().map(String::as_str).collect();
    (!known.contains(&name.as_str())).then(|| {
        let message = "every message is of this type, and it has no handler";
        wrong(consumer.type_of.place, message, suggestion(name, &known))
    })
}

/// Copies of dead letters that go where the messages come from would be redriven at once, and die again.
fn copies(consumer: &Consumer) -> Option<Problem> {
    let to = &consumer.dead_letters.as_ref()?.to;
    let queue = consumer.source.queue()?;
    (queue.value == to.value).then(|| {
        let message = "this is the queue that the messages come from: each copy would come back, be redriven, and die again";
        wrong(to.place, message, "Name another queue.")
    })
}

fn publishes(config: &Config, handler: &Handler) -> Vec<Problem> {
    let brokers = handler.publish.iter().filter_map(|publish| publish.to.value.broker.as_ref());
    brokers.filter_map(|broker| unknown_broker(config, broker)).collect()
}

/// A handler does something, and either in the transaction or over HTTP.
fn work(handler: &Handler) -> Option<Problem> {
    let in_transaction = !handler.sql.is_empty() || !handler.publish.is_empty();
    let name = &handler.type_name;
    match &handler.http {
        None if !in_transaction => Some(wrong(
            name.place,
            format!("the handler for `{}` does nothing", name.value),
            "Add a statement: `[[consumers.NAME.on.TYPE.sql]]` with `run = \"…\"`; or a call: `[consumers.NAME.on.TYPE.http]`.",
        )),
        Some(http) if in_transaction => Some(wrong(
            http.place,
            format!("the handler for `{}` mixes an HTTP call with SQL or publishes", name.value),
            "Split it into two consumers: a call cannot be rolled back with the transaction.",
        )),
        _ => None,
    }
}

/// Two consumers of one message are two effects. A service that both call must be able to tell them apart.
fn shared_services(config: &Config) -> Vec<Problem> {
    let mut known: BTreeMap<String, &str> = BTreeMap::new();
    let mut problems = Vec::new();
    for consumer in config.consumers.values() {
        let calls = consumer.on.values().filter_map(|handler| handler.http.as_ref());
        for http in calls.filter(|http| http.idempotency_key == KeyOf::Id) {
            let name = consumer.name.value.as_str();
            let first = *known.entry(http.origin()).or_insert(name);
            if first != name {
                let message = format!(
                    "`{first}` calls this service, too, and with the same Idempotency-Key for the same message"
                );
                let cure = "Add `idempotency_key = \"consumer-id\"` to one of the two calls.";
                problems.push(wrong(http.place, message, cure));
            }
        }
    }
    problems
}

/// A call is made outside the transaction, so its message is on record before it; and its own time limit is the one
/// that counts, since the message's would leave open what became of it.
fn call(consumer: &Consumer, handler: &Handler) -> Option<Problem> {
    let http = handler.http.as_ref().filter(|_| handler.sql.is_empty() && handler.publish.is_empty())?;
    let policy = &consumer.policy;
    if policy.strategy.value != Strategy::Eager {
        let message = "a call over HTTP cannot join the transaction of the message's record";
        let cure = "Add `strategy = \"eager\"` and `lease = \"30s\"` to the consumer.";
        return Some(wrong(http.place, message, cure));
    }
    (http.timeout.value >= policy.timeout).then(|| {
        let message =
            format!("a call may take {:?}, and the whole message only {:?}", *http.timeout, policy.timeout);
        let place = if http.timeout.place.is_nowhere() { http.place } else { http.timeout.place };
        wrong(place, message, "Raise the consumer's `timeout`, or lower the call's.")
    })
}

/// Statements and publishes use what is declared, and what is declared is used.
fn parameters(handler: &Handler) -> Vec<Problem> {
    let in_sql = handler.sql.iter().flat_map(|sql| &sql.uses).map(|used| (used.value.as_str(), used.place));
    let uses: Vec<_> = in_sql.chain(handler.published()).collect();
    let undeclared: Vec<_> =
        uses.iter().filter_map(|(name, place)| undeclared(handler, name, *place)).collect();
    if !undeclared.is_empty() {
        return undeclared; // a slip in a name also leaves the right one unused: one mistake, told once
    }
    let unused =
        handler.params.values().filter(|declared| uses.iter().all(|(name, _)| *name != declared.name));
    unused.map(never_used).collect()
}

fn undeclared(handler: &Handler, name: &str, place: Place) -> Option<Problem> {
    if handler.params.contains_key(name) {
        return None;
    }
    let declared: Vec<_> = handler.params.keys().map(String::as_str).collect();
    let help = if declared.is_empty() {
        format!("Declare it: `{name} = {{ json = \"/{name}\", type = \"text\" }}` under `params`.")
    } else {
        suggestion(name, &declared)
    };
    let message = format!("the parameter `:{name}` is not declared");
    Some(Problem::new(Code::StatementParameter, place, message).label("used here").help(help))
}

fn never_used(parameter: &Placed<Parameter>) -> Problem {
    let name = &parameter.name;
    Problem::new(Code::StatementParameter, parameter.place, format!("the parameter `{name}` is never used"))
        .label("declared here")
        .help(format!("Use it as `:{name}` in a statement, or remove it."))
}

/// SQLite runs a statement whose placeholder nobody bound, with NULL in its place.
fn foreign_placeholders(config: &Config, handler: &Handler) -> Vec<Problem> {
    if config.store.kind != StoreKind::Sqlite {
        return Vec::new();
    }
    let placeholders = handler.sql.iter().filter_map(|sql| sql.sqlite_placeholder.as_ref());
    placeholders
        .map(|placeholder| {
            let message =
                format!("SQLite takes `{}` for a parameter, and would bind it to NULL", placeholder.value);
            Problem::new(Code::StatementParameter, placeholder.place, message)
                .help("Declare a parameter, and write it as `:name`.")
        })
        .collect()
}

fn small_prefetch(consumer: &Consumer) -> Option<Problem> {
    let Source::Queue { prefetch: Some(prefetch), .. } = &consumer.source else { return None };
    let batch = if consumer.policy.strategy.value == Strategy::Eager { 1 } else { consumer.policy.batch.max };
    let in_flight = consumer.policy.concurrency.value.saturating_mul(batch);
    (u32::from(prefetch.value) < in_flight).then(|| {
        let message = format!("a prefetch of {} leaves workers waiting", prefetch.value);
        let help = format!(
            "{} workers with batches of {} hold {in_flight} messages: raise `prefetch`, or lower the others.",
            consumer.policy.concurrency.value, batch
        );
        Problem::new(Code::ConfigWrongValue, prefetch.place, message).help(help)
    })
}
