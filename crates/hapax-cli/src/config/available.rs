//! What a configuration may say and this release cannot do yet. A release that learns one of these deletes
//! its lines here.

use super::Config;
use super::broker::BrokerKind;
use super::consumer::Consumer;
use super::policy::Strategy;
use super::problem::{Place, Problem};
use super::store::StoreKind;
use hapax::Code;

/// Everything that the configuration asks for and this release cannot do, each with its place.
pub(crate) fn unavailable(config: &Config) -> Vec<Problem> {
    let mut found: Vec<Problem> = Vec::new();
    found.extend(store(config));
    found.extend(
        config.brokers.values().filter_map(|broker| self::broker(broker.kind.value, broker.kind.place)),
    );
    for consumer in config.consumers.values() {
        found.extend(strategy(consumer));
    }
    found
}

fn refuse(place: Place, what: &str, cure: &str) -> Problem {
    let message = format!("{what} is not available in this release");
    Problem::new(Code::NotAvailable, place, message).label("not available").help(cure)
}

fn store(config: &Config) -> Option<Problem> {
    let place = config.store.url.place;
    match config.store.kind {
        StoreKind::MongoDb => Some(refuse(
            place,
            "a configuration's store on MongoDB",
            "Use `sqlite:`, `postgres:` or `mysql:`, or the library.",
        )),
        StoreKind::Sqlite if !cfg!(feature = "sqlite") => Some(left_out(place, "sqlite")),
        StoreKind::Postgres if !cfg!(feature = "postgres") => Some(left_out(place, "postgres")),
        StoreKind::MySql if !cfg!(feature = "mysql") => Some(left_out(place, "mysql")),
        StoreKind::Sqlite | StoreKind::Postgres | StoreKind::MySql => None,
    }
}

fn broker(kind: BrokerKind, place: Place) -> Option<Problem> {
    let is_here = match kind {
        BrokerKind::RabbitMq => cfg!(feature = "rabbitmq"),
        BrokerKind::Kafka => cfg!(feature = "kafka"),
        BrokerKind::Nats => cfg!(feature = "nats"),
        BrokerKind::Sqs => cfg!(feature = "sqs"),
        BrokerKind::Redis => cfg!(feature = "redis"),
    };
    (!is_here).then(|| left_out(place, kind.feature()))
}

fn strategy(consumer: &Consumer) -> Option<Problem> {
    let (name, cure) = match consumer.policy.strategy.value {
        Strategy::Transactional | Strategy::Eager => return None,
        Strategy::Lazy => ("lazy", "`hapax::Idempotent::wrap` has it in the library."),
        Strategy::Natural => ("natural", "The library has it."),
    };
    let cure = format!("Use `strategy = \"transactional\"` for SQL handlers. {cure}");
    Some(refuse(consumer.policy.strategy.place, &format!("`strategy = \"{name}\"` of `hapax run`"), &cure))
}

fn left_out(place: Place, feature: &str) -> Problem {
    let cure = format!("Build it with `--features {feature}`.");
    Problem::new(Code::NotAvailable, place, format!("this build was made without `{feature}`")).help(cure)
}
