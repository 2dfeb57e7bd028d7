//! `hapax inbox`: a consumer's records.

use std::process::ExitCode;

use hapax::{
    CallRecords, CallRow, Code, ConsumerName, ConsumerStore, DeadFilter, InboxRow, Janitor, Keep, MessageId,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::args::{Inbox, OneMessage, Purge, Rename};
use crate::config::Config;
use crate::consume::retentions;
use crate::open::{self, with_store};
use crate::out::say;
use crate::plan::confirm;
use crate::trouble::{FINDINGS, Trouble};

/// Runs one of the subcommands.
pub(crate) async fn run(args: Inbox) -> Result<ExitCode, Trouble> {
    match args {
        Inbox::Get(args) => {
            let (store, config) = open::store(&args.store).await?;
            with_store!(store, store => get(&args, &store, config.as_ref()).await)
        }
        Inbox::Why(args) => {
            let (store, config) = open::store(&args.store).await?;
            with_store!(store, store => why(&args, &store, config.as_ref()).await)
        }
        Inbox::Purge(args) => {
            let (store, config) = open::store(&args.store).await?;
            with_store!(store, store => purge(&args, &store, config.as_ref()).await)
        }
        Inbox::Rename(args) => {
            let (store, _) = open::store(&args.store).await?;
            with_store!(store, store => rename(&args, &store).await)
        }
    }
}

/// Checks a consumer's name from the command line.
pub(crate) fn consumer(name: &str) -> Result<ConsumerName, Trouble> {
    ConsumerName::new(name).map_err(|error| {
        Trouble::usage(Code::UsageWrong, error.to_string(), "Give the name that stands under [consumers].")
    })
}

/// Checks a message id from the command line.
pub(crate) fn message_id(id: &str) -> Result<MessageId, Trouble> {
    MessageId::new(id).map_err(|error| {
        Trouble::usage(
            Code::UsageWrong,
            error.to_string(),
            "Give the id that the message's producer assigned.",
        )
    })
}

/// The consumers that a command about one message is about.
fn consumers(args: &OneMessage, config: Option<&Config>) -> Result<Vec<ConsumerName>, Trouble> {
    match (&args.consumer, config) {
        (Some(name), _) => Ok(vec![consumer(name)?]),
        (None, Some(config)) => config.consumers.keys().map(|name| consumer(name)).collect(),
        (None, None) => Err(Trouble::usage(
            Code::UsageWrong,
            "no consumer is named",
            "Give --consumer NAME, or --config FILE to ask all its consumers.",
        )),
    }
}

async fn get(
    args: &OneMessage,
    store: &impl ConsumerStore,
    config: Option<&Config>,
) -> Result<ExitCode, Trouble> {
    let id = message_id(&args.id)?;
    let mut found = false;
    for consumer in consumers(args, config)? {
        let rows = store.look(&consumer, std::slice::from_ref(&id)).await?;
        for row in rows.into_iter().flatten() {
            found = true;
            if args.json {
                say!("{}", row_json(&consumer, &row));
            } else {
                say!("{}", row_text(&consumer, &row));
            }
        }
    }
    Ok(not_found_unless(found, &id, args.json))
}

fn not_found_unless(found: bool, id: &MessageId, as_json: bool) -> ExitCode {
    if found {
        return ExitCode::SUCCESS;
    }
    if as_json {
        say!("null");
    }
    eprintln!("no record of `{id}`");
    ExitCode::from(FINDINGS)
}

fn row_json(consumer: &ConsumerName, row: &InboxRow) -> Value {
    json!({
        "consumer": consumer.as_str(),
        "id": row.id.as_str(),
        "state": row.state.as_str(),
        "digest": row.digest.to_string(),
        "sent_at": row.sent_at.map(|time| time.to_string()),
        "processed_at": row.processed_at.to_string(),
        "lease_until": row.lease_until.map(|time| time.to_string()),
    })
}

fn row_text(consumer: &ConsumerName, row: &InboxRow) -> String {
    let sent = row.sent_at.map_or_else(|| "unknown".to_owned(), |time| time.to_string());
    let lease = row.lease_until.map_or_else(String::new, |time| format!(", somebody's until {time}"));
    format!(
        "{consumer} {} {} since {}{lease}, sent {sent}, payload {}",
        row.id, row.state, row.processed_at, row.digest
    )
}

fn call_json(call: &CallRow) -> Value {
    json!({
        "label": call.label,
        "key": call.key,
        "request": String::from_utf8_lossy(&call.request),
        "result": call.result.as_deref().map(String::from_utf8_lossy),
        "started_at": call.started_at.to_string(),
        "finished_at": call.finished_at.map(|time| time.to_string()),
        "lease_until": call.lease_until.map(|time| time.to_string()),
        "key_valid_until": call.key_valid_until.to_string(),
    })
}

fn call_text(call: &CallRow) -> String {
    let request = String::from_utf8_lossy(&call.request);
    let head = format!(
        "call `{}` under key {}, first made at {}: {request}\n   ",
        call.label, call.key, call.started_at
    );
    match (&call.result, call.finished_at) {
        (Some(result), Some(at)) => {
            format!("{head} answered at {at} with {}", String::from_utf8_lossy(result))
        }
        _ => format!("{head} no answer is recorded; it may be repeated until {}", call.key_valid_until),
    }
}

/// Everything that the store knows of a message, as a story.
async fn why(
    args: &OneMessage,
    store: &(impl ConsumerStore + CallRecords),
    config: Option<&Config>,
) -> Result<ExitCode, Trouble> {
    let id = message_id(&args.id)?;
    let mut found = false;
    for consumer in consumers(args, config)? {
        let row = store.look(&consumer, std::slice::from_ref(&id)).await?.into_iter().flatten().next();
        let waiting = store.waiting(&consumer, &id).await?;
        let filter = DeadFilter {
            consumer: Some(consumer.clone()),
            id: Some(id.clone()),
            limit: 100,
            ..DeadFilter::default()
        };
        let dead = store.dead(&filter).await?;
        let starts = store.starts(&consumer, &id).await?;
        let calls = store.calls(&consumer, &id).await?;
        if row.is_none() && waiting.is_none() && dead.is_empty() && starts == 0 && calls.is_empty() {
            continue;
        }
        found = true;
        if args.json {
            say!(
                "{}",
                json!({
                    "consumer": consumer.as_str(),
                    "id": id.as_str(),
                    "inbox": row.as_ref().map(|row| row_json(&consumer, row)),
                    "waiting": waiting.as_ref().map(|waiting| json!({
                        "failures": waiting.failures,
                        "code": waiting.code,
                        "error": waiting.error,
                        "due_at": waiting.due_at.to_string(),
                        "parked_at": waiting.parked_at.to_string(),
                    })),
                    "dead": dead.iter().map(super::dead::letter_json).collect::<Vec<_>>(),
                    "starts": starts,
                    "calls": calls.iter().map(call_json).collect::<Vec<_>>(),
                })
            );
            continue;
        }
        match &row {
            Some(row) => say!("{}", row_text(&consumer, row)),
            None => say!("{consumer} {id} has no inbox row"),
        }
        if let Some(waiting) = &waiting {
            let failed = match waiting.failures {
                0 => "waiting without a failure".to_owned(),
                failures => format!("failed {failures} times, last with {}", waiting.error),
            };
            say!("  {failed}; due at {}", waiting.due_at);
        }
        for letter in &dead {
            say!("  dead letter {}: {} {}", letter.number, letter.reason, letter.error);
        }
        for call in &calls {
            say!("  {}", call_text(call));
        }
        if starts > 0 {
            say!("  {starts} starts are recorded: the process ended while it ran alone, or it runs now");
        }
    }
    Ok(not_found_unless(found, &id, args.json))
}

async fn purge(
    args: &Purge,
    store: &impl ConsumerStore,
    config: Option<&Config>,
) -> Result<ExitCode, Trouble> {
    let name = consumer(&args.consumer)?;
    let configured = config.and_then(|config| retentions(config).remove(name.as_str()));
    let keep = match (args.keep, configured) {
        (Some(keep), _) if keep < Keep::LEAST => {
            let message = format!("rows are kept for at least {:?}", Keep::LEAST);
            return Err(Trouble::usage(Code::UsageWrong, message, "Give a longer --keep."));
        }
        (Some(keep), _) => Keep::for_at_least(keep),
        (None, Some(keep)) => keep,
        (None, None) => Keep::default(),
    };
    confirm(&format!("remove the records of `{name}` that are older than its retention"), args.yes)?;
    let sweep = Janitor::new(store.clone(), name, keep).sweep(&CancellationToken::new()).await?;
    let horizon = sweep.horizon.map(|time| time.to_string());
    if args.json {
        say!("{}", json!({ "purged": sweep.rows, "horizon": horizon }));
    } else {
        say!("{} rows removed; horizon {}", sweep.rows, horizon.as_deref().unwrap_or("none"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn rename(args: &Rename, store: &impl ConsumerStore) -> Result<ExitCode, Trouble> {
    let (from, to) = (consumer(&args.from)?, consumer(&args.to)?);
    confirm(&format!("move every record of `{from}` to `{to}`; stop its consumers first"), args.yes)?;
    let rows = store.rename(&from, &to).await?;
    if rows == 0 && has_nothing(store, &to).await? {
        let message = format!("there are no records of `{from}`, and nothing was moved");
        let cure = "Check the name, and that the command looks into the right store.";
        return Err(Trouble::usage(Code::NotFound, message, cure));
    }
    if args.json {
        say!("{}", json!({ "renamed": rows }));
    } else {
        say!("{rows} inbox rows moved from `{from}` to `{to}`");
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a consumer without inbox rows has nothing else either: a message without an id can be dead, and
/// rows that were purged leave a horizon.
async fn has_nothing(store: &impl ConsumerStore, name: &ConsumerName) -> Result<bool, Trouble> {
    let filter = DeadFilter { consumer: Some(name.clone()), ..DeadFilter::default() };
    Ok(store.count_dead(&filter).await? == 0 && store.horizon(name).await?.is_none())
}
