//! The configuration of `hapax run`: one TOML file, read whole and checked whole before anything is
//! connected to.
//!
//! Reading takes three steps. The typed reader ([`read`]) turns the document into the structures below and
//! notes every unknown key and wrong value; `check` looks at what must fit together; [`unavailable`] at what
//! this release cannot do. Every mistake has a code, its place in the file, the cause and the cure, and all
//! that a step finds are reported together.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::DeTable;

pub(crate) mod admin;
pub(crate) mod available;
pub(crate) mod broker;
mod check;
pub(crate) mod consumer;
mod decimal;
pub(crate) mod field;
pub(crate) mod handler;
pub(crate) mod interpolate;
pub(crate) mod log;
mod nearest;
pub(crate) mod parameter;
pub(crate) mod policy;
pub(crate) mod problem;
mod read;
pub(crate) mod relay;
pub(crate) mod secret;
pub(crate) mod source;
pub(crate) mod store;
#[cfg(test)]
mod tests;
mod timestamp;
mod unit;

use admin::Admin;
use available::unavailable;
use broker::Broker;
use consumer::Consumer;
use hapax::Code;
use interpolate::Surroundings;
use log::Log;
use policy::Policy;
use problem::{Origin, Placed, Problem, Report};
use read::{Reading, Table};
use relay::Relay;
use store::Store;

/// The version of the format that this release reads.
const VERSION: i64 = 1;

/// A configuration in which every value is right by itself and fits the others.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The database.
    pub store: Store,
    /// The brokers by name.
    pub brokers: BTreeMap<String, Broker>,
    /// The consumers by name. Never empty.
    pub consumers: BTreeMap<String, Consumer>,
    /// The relay.
    pub relay: Relay,
    /// The admin listener and the shutdown.
    pub admin: Admin,
    /// The log.
    pub log: Log,
    /// The file, for reports about places in it.
    pub origin: Origin,
}

impl Config {
    /// Reads and checks the file at `path`, and refuses what this release cannot do.
    pub(crate) fn load(path: &Path, around: &Surroundings<'_>) -> Result<Self, Report> {
        let name = path.display().to_string();
        let text = (around.file)(path).map_err(|error| unreadable(&name, &error))?;
        let base = path.parent().unwrap_or(Path::new(""));
        let config = Self::parse(&name, &text, base, around)?;
        match config.origin.report(unavailable(&config)) {
            Some(report) => Err(report),
            None => Ok(config),
        }
    }

    /// Reads and checks a text. `name` is what reports call it; relative paths in it start at `base`.
    pub(crate) fn parse(
        name: &str,
        text: &str,
        base: &Path,
        around: &Surroundings<'_>,
    ) -> Result<Self, Report> {
        let origin = Origin::new(name, text);
        let fail_with = |problems| origin.report(problems).map_or(Ok(()), Err);
        let (document, errors) = DeTable::parse_recoverable(text);
        fail_with(errors.iter().map(not_toml).collect())?;

        let reading = Reading::new(text, base, around);
        let config = reading.root(document.get_ref(), |table| Self::read(table, origin.clone()));
        fail_with(reading.into_problems())?;
        // What cannot be read has noted why, and then the line above has returned.
        let Some(config) = config else { return Err(unexplained(&origin)) };

        fail_with(check::check(&config))?;
        Ok(config)
    }

    /// Whether anything is published through the outbox.
    pub(crate) fn publishes(&self) -> bool {
        let publishes = |consumer: &Consumer| {
            consumer.dead_letters.is_some() || consumer.on.values().any(|handler| !handler.publish.is_empty())
        };
        self.consumers.values().any(publishes)
    }

    /// Whether anything is published to a broker.
    pub(crate) fn publishes_to(&self, broker: &str) -> bool {
        let is_it = |name: Option<&Placed<String>>| name.is_some_and(|name| name.value == broker);
        self.consumers.values().any(|consumer| {
            let copies = consumer.dead_letters.is_some() && is_it(consumer.source.broker());
            let mut targets =
                consumer.on.values().flat_map(|handler| &handler.publish).map(|publish| &publish.to);
            copies || targets.any(|target| is_it(target.value.broker.as_ref()))
        })
    }

    /// The complete configuration with every default, as commented TOML: what `--print-defaults` prints.
    pub(crate) fn defaults() -> &'static str {
        include_str!("config/defaults.toml")
    }

    /// What is worth telling although the program runs, for [`Origin::report`].
    pub(crate) fn notes(&self) -> Vec<Problem> {
        check::notes(self)
    }

    fn read(table: &mut Table<'_>, origin: Origin) -> Option<Self> {
        if !has_known_version(table) {
            // Another version may mean anything by the other keys.
            table.accept_everything();
            return None;
        }
        let store = table.required("store", "Add `[store]` with `url = \"sqlite:hapax.db\"`.", Store::read);
        let brokers =
            table.or("brokers", BTreeMap::new(), |value| value.entries(|_, value| Broker::read(value)));
        let defaults = table.or("defaults", Policy::default(), |value| {
            value.table(|table| Some(Policy::read(table, &Policy::default())))
        });
        let consumers = table.required("consumers", "Add `[consumers.NAME]`.", |value| {
            value.entries(|name, value| Consumer::read(name, value, &defaults))
        });
        let relay = table.or("relay", Relay::default(), Relay::read);
        let admin = table.or("admin", Admin::default(), Admin::read);
        let log = table.or("log", Log::default(), Log::read);
        Some(Self { store: store?, brokers, consumers: consumers?, relay, admin, log, origin })
    }
}

fn has_known_version(table: &mut Table<'_>) -> bool {
    let cure = format!("This release reads `version = {VERSION}`.");
    let Some(version) = table.take("version") else {
        table.note(Code::ConfigVersion, "the file does not say which version of the format it has", cure);
        return false;
    };
    if version.any().as_integer().is_some_and(|version| version.to_string() == VERSION.to_string()) {
        return true;
    }
    version.wrong_as(Code::ConfigVersion, "is no version that this release reads", cure);
    false
}

fn unreadable(name: &str, error: &std::io::Error) -> Report {
    let message = format!("the configuration `{name}` cannot be read: {error}");
    let problem =
        Problem::of_file(Code::ConfigUnreadable, message).help("Check the path, and who may read it.");
    Report::single(&Origin::new(name, ""), problem)
}

fn not_toml(error: &toml::de::Error) -> Problem {
    let message = format!("the file is not valid TOML: {}", error.message());
    let help = "See https://toml.io for how keys, strings and tables are written.";
    match error.span() {
        Some(span) => Problem::new(Code::ConfigUnreadable, span.into(), message).help(help),
        None => Problem::of_file(Code::ConfigUnreadable, message).help(help),
    }
}

fn unexplained(origin: &Origin) -> Report {
    Report::single(origin, Problem::of_file(Code::ConfigUnreadable, "the configuration cannot be read"))
}
