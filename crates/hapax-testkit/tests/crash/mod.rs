//! The crash suite: a consumer is killed at a step, started again, and its effects are counted from a
//! second connection.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hapax::mongodb::bson::{Document, doc};
use hapax::sqlx::{self, Connection as _};
use hapax_core::{DeadFilter, DeadLetters, Envelope};
use hapax_testkit::process::{Running, Subject};

/// A debug build that starts while others compile may take its time.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// The steps of a delivery at which the process can end.
pub(crate) const STEPS: [&str; 11] = [
    "after-receive",
    "before-claim",
    "after-claim",
    "after-handler",
    "before-commit",
    "store-before-commit",
    "store-after-commit",
    "after-commit",
    "before-ack",
    "after-ack",
    "after-rollback",
];

/// The steps of setting a message aside.
pub(crate) const ASIDE: [&str; 2] = ["before-set-aside", "after-set-aside"];

/// The steps of a delivery that calls the outside before its transaction.
pub(crate) const OUTSIDE: [&str; 10] = [
    "before-begin",
    "after-begin",
    "call-begun",
    "call-made",
    "call-recorded",
    "after-prepare",
    "after-claim",
    "before-commit",
    "after-commit",
    "before-ack",
];

/// A subject that calls the outside, and the file of its calls.
pub(crate) fn eager(subject: Subject, folder: &Path) -> (Subject, PathBuf) {
    let calls = folder.join("calls");
    (subject.arg("eager").env("HAPAX_SUBJECT_CALLS", &calls), calls)
}

/// What is wrong with the calls of [`messages`], of which one may have been made twice: a message that was not
/// called for, or not always under one key.
pub(crate) fn verdict_on_calls(calls: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(calls).expect("calls were made");
    let mut keys: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (id, key) in text.lines().filter_map(|line| line.split_once(' ')) {
        keys.entry(id).or_default().push(key);
    }
    let repeated = keys.values().map(|keys| keys.len() - 1).sum::<usize>();
    let mut wrong: Vec<String> = (0..20)
        .filter(|n| !keys.contains_key(format!("m{n}").as_str()))
        .map(|n| format!("m{n} was not called for"))
        .collect();
    wrong.extend(
        keys.iter()
            .filter(|(_, keys)| keys.iter().any(|key| *key != keys[0]))
            .map(|(id, _)| format!("{id} had two keys")),
    );
    if repeated > 2 {
        wrong.push(format!("{repeated} calls were repeated, though two workers were killed once"));
    }
    wrong
}

/// The program that is killed.
pub(crate) fn subject(store: &str, source: &str) -> Subject {
    Subject::example("subject").expect("a test has a path").arg(store).arg(source)
}

/// Twenty messages, with every third copied at once and again at the end, one that fails once and one
/// that is rejected.
pub(crate) fn messages() -> Vec<String> {
    let line = |n: usize| {
        let what = match n {
            5 => "fail once",
            11 => "reject",
            _ => "pay",
        };
        format!(r#"{{"id":"m{n}","key":"k{}","do":"{what}"}}"#, n % 7)
    };
    let mut lines: Vec<String> =
        (0..20).flat_map(|n| std::iter::repeat_n(line(n), if n % 3 == 0 { 2 } else { 1 })).collect();
    lines.extend((0..20).step_by(3).map(line));
    lines
}

/// As envelopes.
pub(crate) fn envelopes() -> Vec<Envelope> {
    messages().into_iter().map(Envelope::new).collect()
}

/// What is wrong with the effects of [`messages`]; empty if nothing is.
pub(crate) fn verdict(effects: &BTreeMap<String, i64>) -> Vec<String> {
    let expected = |n: usize| i64::from(n != 11);
    let wrong = (0..20).filter_map(|n| {
        let found = effects.get(&format!("m{n}")).copied().unwrap_or(0);
        (found != expected(n)).then(|| format!("m{n} took effect {found} times"))
    });
    wrong.collect()
}

/// Counts the effects through a connection of its own.
pub(crate) async fn effects(url: &str) -> BTreeMap<String, i64> {
    const COUNT: &str = "SELECT message_id, count(*) FROM ledger GROUP BY message_id";
    if url.starts_with("mongodb:") {
        return effects_in_mongodb(url).await;
    }
    let rows: sqlx::Result<Vec<(String, i64)>> = if url.starts_with("sqlite:") {
        let mut conn = sqlx::SqliteConnection::connect(url).await.expect("the database opens");
        sqlx::query_as(COUNT).fetch_all(&mut conn).await
    } else if url.starts_with("mysql:") {
        let mut conn = sqlx::MySqlConnection::connect(url).await.expect("the database opens");
        sqlx::query_as(COUNT).fetch_all(&mut conn).await
    } else {
        let mut conn = sqlx::PgConnection::connect(url).await.expect("the database opens");
        sqlx::query_as(COUNT).fetch_all(&mut conn).await
    };
    rows.expect("the ledger is there").into_iter().collect()
}

async fn effects_in_mongodb(url: &str) -> BTreeMap<String, i64> {
    use futures::TryStreamExt as _;
    let client = hapax::mongodb::Client::with_uri_str(url).await.expect("the server answers");
    let ledger = client.default_database().expect("a database").collection::<Document>("ledger");
    let count = doc! { "$group": { "_id": "$message_id", "count": { "$sum": 1_i64 } } };
    let rows = ledger.aggregate([count]).await.expect("the ledger is read");
    let rows: Vec<Document> = rows.try_collect().await.expect("the ledger is read");
    let pair = |row: &Document| Some((row.get_str("_id").ok()?.to_owned(), row.get_i64("count").ok()?));
    rows.iter().map(|row| pair(row).expect("an id and a count")).collect()
}

/// The ids that were set aside, with their reasons.
pub(crate) async fn dead(store: &impl DeadLetters) -> Vec<(String, String)> {
    let letters =
        store.dead(&DeadFilter { limit: 1_000, ..DeadFilter::default() }).await.expect("letters are listed");
    letters
        .into_iter()
        .map(|letter| (letter.id.map(|id| id.to_string()).unwrap_or_default(), letter.reason))
        .collect()
}

/// Kills a subject at a step and runs it again to its end.
pub(crate) async fn kill_and_run_again(subject: &Subject, step: &str, nth: u32) {
    let mut first = subject.clone().crash_at(step, nth).start().expect("the subject starts");
    first.wait_killed(PATIENCE).await;
    run_to_end(subject).await;
}

/// Runs a subject until it ends by itself.
pub(crate) async fn run_to_end(subject: &Subject) -> Running {
    let mut running = subject.start().expect("the subject starts");
    let status = running.wait_exit(PATIENCE).await;
    assert!(status.success(), "{running}");
    running
}
