//! `hapax dead`: messages that were set aside.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use hapax::{
    Code, ConsumerStore, DeadFilter, DeadLetter, DeadNumber, InboxState, MessageId, Redrive as Wish,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::inbox::{consumer, message_id};
use crate::args::{Dead, DeadList, DeadShow, Discard, Redrive, Which};
use crate::open::{self, with_store};
use crate::out::{one_line, say};
use crate::plan::confirm;
use crate::progress;
use crate::trouble::{FINDINGS, Trouble};

/// Letters read at a time.
const PAGE: u32 = 500;
/// How often a redriven message is looked at while its end is awaited.
const LOOK: Duration = Duration::from_millis(250);

/// Runs one of the subcommands.
pub(crate) async fn run(args: Dead) -> Result<ExitCode, Trouble> {
    match args {
        Dead::List(args) => {
            let (store, _) = open::store(&args.store).await?;
            with_store!(store, store => list(&args, &store).await)
        }
        Dead::Show(args) => {
            let (store, _) = open::store(&args.store).await?;
            with_store!(store, store => show(&args, &store).await)
        }
        Dead::Redrive(args) => {
            let (store, _) = open::store(&args.store).await?;
            with_store!(store, store => redrive(&args, &store).await)
        }
        Dead::Discard(args) => {
            let (store, _) = open::store(&args.store).await?;
            with_store!(store, store => discard(&args, &store).await)
        }
    }
}

fn reason(text: Option<&str>) -> Result<Option<Code>, Trouble> {
    let parse = |text: &str| {
        text.parse().map_err(|_| {
            let message = format!("`{text}` is no reason code");
            Trouble::usage(
                Code::UsageWrong,
                message,
                "Give a code as `hapax dead list` prints it, such as HX0041.",
            )
        })
    };
    text.map(parse).transpose()
}

async fn list(args: &DeadList, store: &impl ConsumerStore) -> Result<ExitCode, Trouble> {
    let filter = DeadFilter {
        consumer: args.consumer.as_deref().map(consumer).transpose()?,
        reason: reason(args.reason.as_deref())?,
        id: args.id.as_deref().map(message_id).transpose()?,
        after: None,
        limit: args.limit,
    };
    let letters = store.dead(&filter).await?;
    for letter in &letters {
        if args.json {
            say!("{}", letter_json(letter));
        } else {
            let id = one_line(letter.id.as_ref().map_or("(no id)", MessageId::as_str));
            say!(
                "{}  {}  {}  {}  {id}  {}",
                letter.number,
                letter.died_at,
                letter.consumer,
                letter.reason,
                one_line(&letter.error)
            );
        }
    }
    let all = store.count_dead(&filter).await?;
    if !args.json && all > letters.len() as u64 {
        say!("{} of {all}; --limit shows more", letters.len());
    }
    Ok(ExitCode::SUCCESS)
}

/// A dead letter without its body, for lists.
pub(crate) fn letter_json(letter: &DeadLetter) -> Value {
    json!({
        "number": letter.number.0,
        "consumer": letter.consumer.as_str(),
        "id": letter.id.as_ref().map(MessageId::as_str),
        "type": letter.kind,
        "reason": letter.reason,
        "error": letter.error,
        "failures": letter.failures,
        "crashes": letter.crashes,
        "first_failed_at": letter.first_failed_at.to_string(),
        "died_at": letter.died_at.to_string(),
        "source": letter.envelope.origin.source,
        "position": letter.envelope.origin.position,
    })
}

async fn one(store: &impl ConsumerStore, number: DeadNumber) -> Result<DeadLetter, Trouble> {
    let before = DeadNumber(number.0.saturating_sub(1));
    let filter = DeadFilter { after: Some(before), limit: 1, ..DeadFilter::default() };
    let found = store.dead(&filter).await?.into_iter().find(|letter| letter.number == number);
    found.ok_or_else(|| {
        let message = format!("there is no dead letter {number}: it may have been redriven or discarded");
        Trouble::usage(Code::NotFound, message, "`hapax dead list` shows those that are there.")
    })
}

async fn show(args: &DeadShow, store: &impl ConsumerStore) -> Result<ExitCode, Trouble> {
    let letter = one(store, DeadNumber(args.number)).await?;
    let body = String::from_utf8_lossy(&letter.envelope.body);
    if args.json {
        let mut shown = letter_json(&letter);
        shown["headers"] = json!(letter.envelope.headers);
        shown["properties"] = json!(letter.envelope.properties);
        shown["body"] = json!(body);
        say!("{shown}");
        return Ok(ExitCode::SUCCESS);
    }
    say!("number    {}", letter.number);
    say!("consumer  {}", letter.consumer);
    say!("id        {}", one_line(letter.id.as_ref().map_or("(none)", MessageId::as_str)));
    say!("type      {}", one_line(&letter.kind));
    say!("reason    {} {}", letter.reason, summary_of(&letter.reason));
    say!("error     {}", letter.error);
    say!("failures  {}, crashes {}", letter.failures, letter.crashes);
    say!("failed    {}, set aside {}", letter.first_failed_at, letter.died_at);
    let position =
        letter.envelope.origin.position.as_deref().map(|at| format!(" at {at}")).unwrap_or_default();
    say!("from      {}{position}", letter.envelope.origin.source);
    for (name, value) in letter.envelope.headers.iter() {
        say!("header    {name}: {value}");
    }
    say!("\n{body}");
    Ok(ExitCode::SUCCESS)
}

fn summary_of(reason: &str) -> &'static str {
    reason.parse::<Code>().map_or("", Code::summary)
}

/// The letters that a command is about: by number, or by consumer and reason.
async fn select(which: &Which, store: &impl ConsumerStore) -> Result<Vec<DeadLetter>, Trouble> {
    if !which.numbers.is_empty() {
        let mut letters = Vec::with_capacity(which.numbers.len());
        for number in which.numbers.iter().copied().collect::<BTreeSet<_>>() {
            letters.push(one(store, DeadNumber(number)).await?);
        }
        return Ok(letters);
    }
    if which.consumer.is_none() && which.reason.is_none() {
        let cure = "Give numbers, or --consumer NAME, --reason CODE or both.";
        return Err(Trouble::usage(Code::UsageWrong, "no dead letters are named", cure));
    }
    let mut filter = DeadFilter {
        consumer: which.consumer.as_deref().map(consumer).transpose()?,
        reason: reason(which.reason.as_deref())?,
        limit: PAGE,
        ..DeadFilter::default()
    };
    let mut letters = Vec::new();
    loop {
        let page = store.dead(&filter).await?;
        let Some(last) = page.last() else { return Ok(letters) };
        filter.after = Some(last.number);
        letters.extend(page);
    }
}

/// What became of redriven messages.
#[derive(Debug, Default)]
struct Redriven {
    sent: u64,
    lost: u64,
    without_id: u64,
    handled: u64,
    dead: u64,
    skipped: u64,
}

async fn redrive(args: &Redrive, store: &impl ConsumerStore) -> Result<ExitCode, Trouble> {
    let letters = select(&args.which, store).await?;
    let given = args.id.as_deref().map(message_id).transpose()?;
    if given.is_some() && letters.len() != 1 {
        let message = format!("--id names one message, and {} dead letters are meant", letters.len());
        return Err(Trouble::usage(Code::UsageWrong, message, "Give one number with --id."));
    }
    if let (Some(id), [letter]) = (&given, letters.as_slice()) {
        refuse_known(store, letter, id).await?;
    }
    if args.rate == Some(0) {
        return Err(Trouble::usage(
            Code::UsageWrong,
            "--rate 0 would never redrive anything",
            "Give a rate of at least 1.",
        ));
    }
    confirm(&format!("redrive {} dead letters", letters.len()), args.yes)?;

    let canaries = args.canary.unwrap_or(0).min(letters.len());
    let (first, rest) = letters.split_at(canaries);
    let mut done = Redriven::default();
    send_all(first, given.as_ref(), args.rate, store, &mut done).await?;
    if !first.is_empty() {
        await_ends(first, given.as_ref(), store, &mut done).await?;
    }
    let canaries_failed = done.handled < first.len() as u64;
    if canaries_failed {
        done.skipped = rest.len() as u64;
    } else {
        send_all(rest, given.as_ref(), args.rate, store, &mut done).await?;
        if args.wait {
            await_ends(rest, given.as_ref(), store, &mut done).await?;
        }
    }
    say(args, &done, canaries_failed);
    let clean = done.lost == 0 && done.without_id == 0 && done.dead == 0;
    Ok(if clean { ExitCode::SUCCESS } else { ExitCode::from(FINDINGS) })
}

/// Under an id that was handled a letter would count as a duplicate, and be gone without an effect.
async fn refuse_known(
    store: &impl ConsumerStore,
    letter: &DeadLetter,
    id: &MessageId,
) -> Result<(), Trouble> {
    if letter.id.is_some() {
        return Ok(()); // it keeps its own
    }
    let row = store.look(&letter.consumer, std::slice::from_ref(id)).await?.into_iter().flatten().next();
    let Some(row) = row.filter(|row| row.state != InboxState::Dead) else { return Ok(()) };
    let message =
        format!("consumer `{}` knows a message `{id}` already: it is {}", letter.consumer, row.state);
    Err(Trouble::usage(Code::RedriveNeedsId, message, "Give an id that no other message has."))
}

fn say(args: &Redrive, done: &Redriven, canaries_failed: bool) {
    if args.json {
        say!(
            "{}",
            json!({
                "redriven": done.sent, "lost": done.lost, "without_id": done.without_id,
                "handled": done.handled, "dead": done.dead, "skipped": done.skipped,
            })
        );
        return;
    }
    say!("{} redriven", done.sent);
    if done.handled + done.dead > 0 {
        say!("{} handled, {} dead again", done.handled, done.dead);
    }
    if done.lost > 0 {
        say!("{} were redriven or discarded by somebody else meanwhile", done.lost);
    }
    if done.without_id > 0 {
        say!("{} have no id: redrive each with --id", done.without_id);
    }
    if canaries_failed {
        say!("a canary was not handled; {} were not redriven", done.skipped);
    }
}

/// Redrives letters one by one, at most `rate` a second.
async fn send_all(
    letters: &[DeadLetter],
    given: Option<&MessageId>,
    rate: Option<u32>,
    store: &impl ConsumerStore,
    done: &mut Redriven,
) -> Result<(), Trouble> {
    let bar = progress::bar(letters.len() as u64, "redriving");
    let begun = Instant::now();
    let by = operator();
    for (sent, letter) in (0_u32..).zip(letters) {
        if let Some(rate) = rate {
            tokio::time::sleep_until(begun + Duration::from_secs(1) * sent / rate).await;
        }
        let wish = Wish { number: letter.number, id: given, by: &by };
        match store.redrive(&wish).await {
            Ok(()) => done.sent += 1,
            Err(error) if error.code() == Code::RedriveLost => done.lost += 1,
            Err(error) if error.code() == Code::RedriveNeedsId => done.without_id += 1,
            Err(error) => return Err(error.into()),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Who asks, for the record.
fn operator() -> String {
    std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_else(|_| "unknown".to_owned())
}

/// Waits until each redriven message is handled or dead again. Some consumer must be running.
async fn await_ends(
    letters: &[DeadLetter],
    given: Option<&MessageId>,
    store: &impl ConsumerStore,
    done: &mut Redriven,
) -> Result<(), Trouble> {
    let bar = progress::bar(letters.len() as u64, "waiting");
    let mut open: Vec<_> =
        letters.iter().filter_map(|letter| Some((&letter.consumer, letter.id.as_ref().or(given)?))).collect();
    while !open.is_empty() {
        let mut still = Vec::with_capacity(open.len());
        for (consumer, id) in open {
            let row = store.look(consumer, std::slice::from_ref(id)).await?.into_iter().flatten().next();
            match row.map(|row| row.state) {
                Some(InboxState::Done) | None => done.handled += 1,
                Some(InboxState::Dead) => done.dead += 1,
                Some(_) => {
                    still.push((consumer, id));
                    continue;
                }
            }
            bar.inc(1);
        }
        open = still;
        if !open.is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    }
    bar.finish_and_clear();
    Ok(())
}

async fn discard(args: &Discard, store: &impl ConsumerStore) -> Result<ExitCode, Trouble> {
    let letters = select(&args.which, store).await?;
    confirm(&format!("remove {} dead letters for good", letters.len()), args.yes)?;
    let (mut discarded, mut lost) = (0_u64, 0_u64);
    for letter in &letters {
        match store.discard(letter.number).await {
            Ok(()) => discarded += 1,
            Err(error) if matches!(error.code(), Code::RedriveLost | Code::NotFound) => lost += 1,
            Err(error) => return Err(error.into()),
        }
    }
    if args.json {
        say!("{}", json!({ "discarded": discarded, "lost": lost }));
    } else {
        say!("{discarded} discarded");
    }
    Ok(if lost == 0 { ExitCode::SUCCESS } else { ExitCode::from(FINDINGS) })
}
