//! `hapax run`: the consumers of a configuration file.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use hapax::sql::{Migration, SqlStore};
use hapax::{Code, Error, ErrorKind, Health, Relay, RelaySummary, Summary};
use serde::Serialize;
use serde_json::json;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::relay::{LAST_LOOK, left};
use crate::admin::Desk;
use crate::args::Run;
use crate::config::Config;
use crate::config::log::LogFormat;
use crate::config::store::Migrate;
use crate::consume::{Configured, at_source, build, check_calls, check_source, open_source, parts};
use crate::open::{self, Missing, with_sql_store};
use crate::out::say;
use crate::relay::{check_brokers, relay_of};
use crate::sql::SqlTarget;
use crate::trouble::Trouble;
use crate::{admin, logs, progress, shutdown};

/// Runs, checks or prints defaults.
pub(crate) async fn run(args: Run) -> Result<ExitCode, Trouble> {
    let Some(path) = args.config.as_deref().filter(|_| !args.print_defaults) else {
        say!("{}", Config::defaults().trim_end());
        return Ok(ExitCode::SUCCESS);
    };
    let config = open::config(path)?;
    logs::start(config.log.format);
    if let Some(report) = config.origin.report(config.notes()) {
        report.problems().for_each(|note| warn!("{}", note.one_line()));
    }
    let applies = config.store.migrate == Migrate::Apply;
    let store = open::configured(&config, if applies { Missing::Create } else { Missing::Refuse }).await?;
    with_sql_store!(store, store => if args.check { check(&config, &store, args.json).await } else { consume(&config, &store, &args).await })
}

/// Asks everything that `run` would ask, and changes nothing.
async fn check<D: SqlTarget>(
    config: &Config,
    store: &SqlStore<D>,
    as_json: bool,
) -> Result<ExitCode, Trouble> {
    check_connections(config)?;
    let pending = store.pending().await?;
    let applies = config.store.migrate == Migrate::Apply;
    if !applies {
        open::ready(config, store).await?;
    }
    for settings in config.consumers.values() {
        if pending.is_empty() {
            drop(parts(config, settings, store).await?);
        }
        check_calls(config, settings)?;
        check_source(config, settings, store).await?;
    }
    check_brokers(config).await?;
    print_check(config, &pending, as_json);
    Ok(ExitCode::SUCCESS)
}

fn print_check(config: &Config, pending: &[Migration], as_json: bool) {
    let names = config.consumers.values().map(|settings| settings.name.value.as_str());
    if as_json {
        let state = if pending.is_empty() { "ok" } else { "statements not checked" };
        let consumers: BTreeMap<_, _> = names.map(|name| (name, state)).collect();
        let versions: Vec<_> = pending.iter().map(|migration| migration.version).collect();
        say!("{}", json!({ "consumers": consumers, "pending": versions }));
        return;
    }
    for migration in pending {
        say!("would apply {}", migration.name);
    }
    for name in names {
        if !pending.is_empty() {
            say!("consumer {name}: its statements can be checked once the tables are there");
        }
        say!("consumer {name}: ok");
    }
}

/// Runs every consumer until all have ended, a signal comes, or one fails for good.
async fn consume<D: SqlTarget>(
    config: &Config,
    store: &SqlStore<D>,
    args: &Run,
) -> Result<ExitCode, Trouble> {
    check_connections(config)?;
    open::ready(config, store).await?;
    // All are asked about before the first source is opened, since that is already given messages.
    let mut proven = Vec::new();
    for settings in config.consumers.values() {
        proven.push(parts(config, settings, store).await?);
        if !args.declare {
            check_source(config, settings, store).await?;
        }
    }
    let mut sources = Vec::new();
    for settings in config.consumers.values() {
        sources.push(open_source(config, settings, store, args.declare).await?);
    }
    let mut consumers = Vec::new();
    for (((name, settings), parts), source) in config.consumers.iter().zip(proven).zip(sources) {
        let mut consumer = build(config, settings, store, source, parts)?;
        if let Some(silence) = args.until_idle {
            consumer = consumer.until_idle(silence);
        }
        consumers.push((name.clone(), consumer));
    }
    let healths: Vec<_> =
        consumers.iter().map(|(name, consumer)| (name.clone(), consumer.health())).collect();
    // What an earlier configuration published is published all the same.
    let has_work = config.publishes() || left(store).await? > 0;
    let relay = if has_work { Some(relay_of(config, store).await?) } else { None };
    let done = CancellationToken::new();
    let desk = Desk::new(healths.clone(), relay.as_ref().map(Relay::health));
    admin::serve(&config.admin, admin::recorder()?, desk, done.clone()).await?;
    let shown = show_progress(config.log.format, healths, done.clone());
    let signal = shutdown::on_signal();
    let relaying = relay.map(|relay| tokio::spawn(relay.run_until(done.clone().cancelled_owned())));
    let ended = run_all(config, consumers, signal.clone()).await;
    done.cancel();
    if let Some(relaying) = relaying {
        end_relay(config, store, relaying, &signal).await?;
    }
    if let Some(shown) = shown {
        let _ = shown.await; // a spinner that panicked is no reason to fail
    }
    print_summary(&ended?, args.json);
    Ok(ExitCode::SUCCESS)
}

/// Waits for the relay; where the run ended by itself, what its last messages published goes out as well.
async fn end_relay<D: SqlTarget>(
    config: &Config,
    store: &SqlStore<D>,
    relaying: JoinHandle<Result<RelaySummary, Error>>,
    signal: &CancellationToken,
) -> Result<(), Trouble> {
    if let Ok(ended) = relaying.await {
        ended?;
    }
    if signal.is_cancelled() {
        return Ok(());
    }
    let last = relay_of(config, store).await?.until_idle(LAST_LOOK);
    // A broker that is away must not hold up the end for ever.
    let enough = async {
        let _ = tokio::time::timeout(config.admin.drain, signal.cancelled()).await;
    };
    last.run_until(enough).await?;
    let left = left(store).await?;
    if left > 0 {
        warn!("{left} messages are still in the outbox; `hapax outbox list` tells why");
    }
    Ok(())
}

/// Each worker keeps a connection, and the consumers share the store's.
fn check_connections(config: &Config) -> Result<(), Trouble> {
    let workers: u32 = config.consumers.values().map(|settings| settings.policy.concurrency.value).sum();
    if workers <= config.store.pool.value {
        return Ok(());
    }
    let context = format!(
        "the consumers have {workers} workers together, and the store {} connections",
        config.store.pool.value
    );
    Err(open::placed(
        config,
        &config.store.pool,
        Error::new(ErrorKind::Setup, Code::TooFewConnections, context),
    ))
}

/// Runs the consumers side by side; the first error stops the others in order.
async fn run_all<D: SqlTarget>(
    config: &Config,
    consumers: Vec<(String, Configured<D>)>,
    stop: CancellationToken,
) -> Result<BTreeMap<String, Summary>, Trouble> {
    let mut running = JoinSet::new();
    for (name, consumer) in consumers {
        let stop = stop.clone();
        running.spawn(async move {
            info!(consumer = %name, "starts");
            (name, consumer.run_until(stop.cancelled_owned()).await)
        });
    }
    let mut summaries = BTreeMap::new();
    let mut failed: Option<(String, Error)> = None;
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok((name, Ok(summary))) => {
                summaries.insert(name, summary);
            }
            Ok((name, Err(error))) => {
                stop.cancel();
                failed.get_or_insert((name, error));
            }
            Err(panic) => {
                stop.cancel();
                warn!(%panic, "a consumer ended badly");
            }
        }
    }
    match failed {
        None => Ok(summaries),
        Some((name, error)) => Err(match config.consumers.get(&name) {
            Some(settings) if is_of_source(&error) => at_source(config, settings, error),
            _ => error.into(),
        }),
    }
}

fn is_of_source(error: &Error) -> bool {
    matches!(
        error.code(),
        Code::BrokerUnavailable | Code::BrokerRefused | Code::QueueMissing | Code::SourceUnreadable
    )
}

/// Shows counts while it runs, on a terminal.
fn show_progress(
    format: LogFormat,
    consumers: Vec<(String, Health)>,
    done: CancellationToken,
) -> Option<tokio::task::JoinHandle<()>> {
    if format == LogFormat::Json || !std::io::stderr().is_terminal() {
        return None;
    }
    Some(tokio::spawn(async move {
        let spinner = progress::spinner();
        while tokio::time::timeout(Duration::from_millis(200), done.cancelled()).await.is_err() {
            let total = total(consumers.iter().map(|(_, health)| health.summary()));
            spinner.set_message(format!(
                "{} handled, {} duplicates, {} dead",
                total.handled, total.duplicates, total.dead
            ));
        }
        spinner.finish_and_clear();
    }))
}

fn total(summaries: impl Iterator<Item = Summary>) -> Summary {
    summaries.fold(Summary::default(), |mut sum, next| {
        sum.handled += next.handled;
        sum.duplicates += next.duplicates;
        sum.retried += next.retried;
        sum.dead += next.dead;
        sum.ambiguous += next.ambiguous;
        sum.waiting += next.waiting;
        sum
    })
}

/// The counts as JSON, in the order in which they are documented.
#[derive(Serialize)]
struct Counts {
    handled: u64,
    duplicates: u64,
    retried: u64,
    dead: u64,
    ambiguous: u64,
    waiting: u64,
}

fn print_summary(consumers: &BTreeMap<String, Summary>, as_json: bool) {
    let Summary { handled, duplicates, retried, dead, ambiguous, waiting, .. } =
        total(consumers.values().copied());
    if as_json {
        let counts = Counts { handled, duplicates, retried, dead, ambiguous, waiting };
        say!("{}", serde_json::to_string(&counts).unwrap_or_default()); // integers only: cannot fail
        return;
    }
    for (name, Summary { handled, duplicates, retried, dead, ambiguous, waiting, .. }) in consumers {
        say!(
            "{name}: {handled} handled, {duplicates} duplicates, {retried} retried, {dead} dead, {ambiguous} ambiguous, {waiting} waiting"
        );
    }
    if dead > 0 {
        say!("`hapax dead list` tells why {dead} were set aside");
    }
}
