//! `hapax outbox`: messages that are to be published.

use std::collections::BTreeSet;
use std::process::ExitCode;

use hapax::{Code, ErrorKind, MessageId, Outbox, OutboxFilter, OutboxNumber, OutboxRow, OutboxState};
use serde_json::{Value, json};

use super::inbox::{consumer, message_id};
use crate::args::{self, OutboxChange, OutboxList, OutboxShow};
use crate::open::{self, with_store};
use crate::out::say;
use crate::plan::confirm;
use crate::trouble::{FINDINGS, Trouble};

/// Rows read at a time.
const PAGE: u32 = 500;

/// Runs one of the subcommands.
pub(crate) async fn run(args: args::Outbox) -> Result<ExitCode, Trouble> {
    match args {
        args::Outbox::List(args) => {
            let (store, _) = open::store(&args.store).await?;
            with_store!(store, store => list(&args, &store).await)
        }
        args::Outbox::Show(args) => {
            let (store, _) = open::store(&args.store).await?;
            with_store!(store, store => show(&args, &store).await)
        }
        args::Outbox::Unpark(args) => {
            let (store, _) = open::store(&args.store).await?;
            with_store!(store, store => change(Change::Unpark, &args, &store).await)
        }
        args::Outbox::Discard(args) => {
            let (store, _) = open::store(&args.store).await?;
            with_store!(store, store => change(Change::Discard, &args, &store).await)
        }
    }
}

fn state(text: &str) -> Result<OutboxState, Trouble> {
    let states = [OutboxState::Unsent, OutboxState::Sent, OutboxState::Parked];
    states.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
        let message = format!("`{text}` is no state of a row");
        Trouble::usage(Code::UsageWrong, message, "Give unsent, parked or sent.")
    })
}

async fn list(args: &OutboxList, store: &impl Outbox) -> Result<ExitCode, Trouble> {
    let filter = OutboxFilter {
        state: args.state.as_deref().map(state).transpose()?,
        producer: args.consumer.as_deref().map(consumer).transpose()?,
        key: args.key.clone(),
        id: args.id.as_deref().map(message_id).transpose()?,
        failing: args.failing,
        after: None,
        limit: args.limit,
    };
    let rows = store.outbox(&filter).await?;
    for row in &rows {
        if args.json {
            say!("{}", row_json(row));
            continue;
        }
        let key = row.key.as_deref().map(|key| format!("  key {key}")).unwrap_or_default();
        let failed = match (row.code.as_deref(), row.error.as_deref()) {
            (Some(code), Some(error)) => format!("  {code} {error}"),
            _ => String::new(),
        };
        let attempts = if row.attempts > 0 { format!("  {} failures", row.attempts) } else { String::new() };
        say!(
            "{}  {}  {}  {}  to {}{key}{attempts}{failed}",
            row.number,
            row.created_at,
            row.state,
            row.kind,
            row.destination
        );
    }
    let all = store.count_outbox(&filter).await?;
    if !args.json && all > rows.len() as u64 {
        say!("{} of {all}; --limit shows more", rows.len());
    }
    Ok(ExitCode::SUCCESS)
}

/// A row without its body, for lists.
fn row_json(row: &OutboxRow) -> Value {
    json!({
        "number": row.number.0,
        "id": row.id.as_str(),
        "producer": row.producer.as_str(),
        "cause": row.cause.as_ref().map(MessageId::as_str),
        "type": row.kind,
        "key": row.key,
        "broker": row.destination.broker,
        "destination": row.destination.name,
        "routing_key": row.destination.routing_key,
        "state": row.state.as_str(),
        "attempts": row.attempts,
        "code": row.code,
        "error": row.error,
        "created_at": row.created_at.to_string(),
        "due_at": row.due_at.to_string(),
        "sent_at": row.sent_at.map(|at| at.to_string()),
        "parked_at": row.parked_at.map(|at| at.to_string()),
    })
}

async fn one(store: &impl Outbox, number: OutboxNumber) -> Result<OutboxRow, Trouble> {
    let after = Some(OutboxNumber(number.0.saturating_sub(1)));
    let filter = OutboxFilter { after, limit: 1, ..OutboxFilter::default() };
    let found = store.outbox(&filter).await?.into_iter().find(|row| row.number == number);
    found.ok_or_else(|| {
        let message = format!("there is no row {number} in the outbox: it may have been published");
        Trouble::usage(Code::NotFound, message, "`hapax outbox list` shows those that are there.")
    })
}

async fn show(args: &OutboxShow, store: &impl Outbox) -> Result<ExitCode, Trouble> {
    let row = one(store, OutboxNumber(args.number)).await?;
    let body = String::from_utf8_lossy(&row.envelope.body);
    if args.json {
        let mut shown = row_json(&row);
        shown["headers"] = json!(row.envelope.headers);
        shown["properties"] = json!(row.envelope.properties);
        shown["body"] = json!(body);
        say!("{shown}");
        return Ok(ExitCode::SUCCESS);
    }
    say!("number    {}", row.number);
    say!("id        {}", row.id);
    say!("type      {}", row.kind);
    say!("to        {}", row.destination);
    say!("key       {}", row.key.as_deref().unwrap_or("(none)"));
    say!(
        "from      {}, handling {}",
        row.producer,
        row.cause.as_ref().map_or("(nothing)", MessageId::as_str)
    );
    say!("state     {}, {} failures", row.state, row.attempts);
    if let (Some(code), Some(error)) = (&row.code, &row.error) {
        say!("reason    {code} {}", code.parse::<Code>().map_or("", Code::summary));
        say!("error     {error}");
    }
    say!("written   {}, due {}", row.created_at, row.due_at);
    for (name, value) in row.envelope.headers.iter() {
        say!("header    {name}: {value}");
    }
    say!("\n{body}");
    Ok(ExitCode::SUCCESS)
}

/// What is done to rows.
#[derive(Clone, Copy)]
enum Change {
    Unpark,
    Discard,
}

/// The rows that a command is about: by number, or all that are parked.
async fn select(args: &OutboxChange, store: &impl Outbox) -> Result<Vec<OutboxNumber>, Trouble> {
    if !args.parked {
        if args.numbers.is_empty() {
            let cure = "Give numbers, or --parked for all that are parked.";
            return Err(Trouble::usage(Code::UsageWrong, "no rows are named", cure));
        }
        let numbers: BTreeSet<OutboxNumber> = args.numbers.iter().copied().map(OutboxNumber).collect();
        for number in &numbers {
            one(store, *number).await?;
        }
        return Ok(numbers.into_iter().collect());
    }
    let state = Some(OutboxState::Parked);
    let mut filter = OutboxFilter { state, limit: PAGE, ..OutboxFilter::default() };
    let mut numbers = Vec::new();
    loop {
        let page = store.outbox(&filter).await?;
        let Some(last) = page.last() else { return Ok(numbers) };
        filter.after = Some(last.number);
        numbers.extend(page.iter().map(|row| row.number));
    }
}

async fn change(change: Change, args: &OutboxChange, store: &impl Outbox) -> Result<ExitCode, Trouble> {
    let numbers = select(args, store).await?;
    let (plan, done) = match change {
        Change::Unpark => (format!("make {} rows due now", numbers.len()), "unparked"),
        Change::Discard => (format!("remove {} rows for good, unpublished", numbers.len()), "discarded"),
    };
    confirm(&plan, args.yes)?;
    let (mut changed, mut lost) = (0_u64, 0_u64);
    for number in numbers {
        let result = match change {
            Change::Unpark => store.unpark(number).await,
            Change::Discard => store.discard_unsent(number).await,
        };
        match result {
            Ok(()) => changed += 1,
            Err(error) if error.kind() == ErrorKind::NotFound => lost += 1,
            Err(error) => return Err(error.into()),
        }
    }
    if args.json {
        say!("{}", json!({ done: changed, "lost": lost }));
    } else {
        say!("{changed} {done}");
        if lost > 0 {
            say!("{lost} were published or discarded meanwhile");
        }
    }
    Ok(if lost == 0 { ExitCode::SUCCESS } else { ExitCode::from(FINDINGS) })
}
