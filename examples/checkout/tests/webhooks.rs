//! Webhooks from the sender to their effect: over HTTP into the queue, and from there through `hapax run`.

mod program;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use hapax::sqlx::{self, Connection as _, PgConnection, SqliteConnection};
use hapax::{BoxError, SqliteStore};
use hapax_testkit::process::Subject;
use program::sent::{self, GITHUB, SECRETS, seconds_ago};
use program::{SOON, Service, store_in};
use serde_json::Value;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/webhooks.toml");
const PAYLOADS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/github");
/// Nothing is charged here.
const NOBODY: &str = "http://127.0.0.1:9";

/// The program `hapax`, which is another package's. A run of all tests builds it into the folder above the one that
/// this test lies in; a run of this package alone may have to build it.
fn hapax() -> Result<PathBuf, BoxError> {
    let test = std::env::current_exe()?;
    let folder = test.ancestors().nth(2).ok_or("a test lies in target/PROFILE/deps")?;
    let program = folder.join("hapax");
    if !program.exists() {
        let profile = folder.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let built =
            Command::new(cargo).args(["build", "-p", "hapax-cli", "--profile"]).arg(profile).status()?;
        assert!(built.success() && program.exists(), "{} is not built", program.display());
    }
    Ok(program)
}

/// Consumes the queue to its end, and answers with the summary.
async fn consume(store: &str) -> Result<Value, BoxError> {
    let subject = Subject::new(hapax()?).env_remove("HAPAX_LOG").env("CHECKOUT_STORE", store);
    let args = ["run", CONFIG, "--until-idle", "1s", "--json"];
    let mut running = args.iter().fold(subject, Subject::arg).start()?;
    assert!(running.wait_exit(SOON).await.success(), "{running}");
    Ok(serde_json::from_str(&running.stdout())?)
}

/// How often each type of event took effect.
type Counts = BTreeMap<String, i64>;

const COUNTS: &str = "SELECT type, CAST(times AS BIGINT) FROM events";

async fn counted(store: &str) -> Result<Counts, BoxError> {
    let rows: Vec<(String, i64)> = if store.starts_with("sqlite:") {
        sqlx::query_as(COUNTS).fetch_all(&mut SqliteConnection::connect(store).await?).await?
    } else {
        sqlx::query_as(COUNTS).fetch_all(&mut PgConnection::connect(store).await?).await?
    };
    Ok(rows.into_iter().collect())
}

async fn post(
    service: &Service,
    kind: &str,
    headers: &[(&str, String)],
    body: &[u8],
) -> Result<u16, BoxError> {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Ok(service.post(&format!("/webhooks/{kind}"), &headers, body).await?.status.as_u16())
}

/// GitHub's own examples: the event, which the name of the file begins with, and the payload.
fn payloads() -> Result<Vec<(String, Vec<u8>)>, BoxError> {
    let mut payloads = Vec::new();
    for file in std::fs::read_dir(PAYLOADS)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let name = path.file_name().and_then(|name| name.to_str()).ok_or("a name of plain text")?;
            let event = name.split('.').next().unwrap_or_default().to_owned();
            payloads.push((event, std::fs::read(&path)?));
        }
    }
    Ok(payloads)
}

/// Sends every payload twice, all of them shuffled, and consumes them.
async fn send_twice_and_consume(store: &str) -> Result<(), BoxError> {
    let service = Service::serve(store, NOBODY, &SECRETS).await?;
    let payloads = payloads()?;
    assert!(payloads.len() > 40);
    let mut expected = Counts::new();
    let mut copies = Vec::new();
    for (event, body) in &payloads {
        *expected.entry(event.clone()).or_insert(0) += 1;
        let headers = sent::github(GITHUB, &uuid::Uuid::now_v7().to_string(), event, body);
        copies.extend([(headers.clone(), body), (headers, body)]);
    }
    fastrand::shuffle(&mut copies);
    for (headers, body) in copies {
        assert_eq!(post(&service, "github", &headers, body).await?, 202);
    }

    let summary = consume(store).await?;
    assert_eq!(summary["handled"], payloads.len(), "{summary}");
    assert_eq!(summary["duplicates"], payloads.len(), "{summary}");
    assert_eq!(summary["dead"], 0, "{summary}");
    assert_eq!(counted(store).await?, expected);
    Ok(())
}

#[tokio::test]
async fn events_of_github_that_are_sent_twice_in_any_order_take_effect_once() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    send_twice_and_consume(&store_in(folder.path())).await
}

#[tokio::test]
async fn what_is_not_proved_leaves_no_trace_and_sent_properly_it_takes_effect() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let service = Service::serve(&store_in(folder.path()), NOBODY, &SECRETS).await?;
    let (_, body) =
        payloads()?.into_iter().find(|(event, _)| event == "pull_request").ok_or("there is one")?;
    let event = br#"{"id": "evt_1", "type": "charge.succeeded"}"#;
    let settled = br#"{"type":"payment.settled","amount":"25.00"}"#;

    // The same JSON, and not the same bytes.
    let serialised_anew = serde_json::to_vec_pretty(&serde_json::from_slice::<Value>(&body)?)?;
    let signed = sent::github(GITHUB, "d1", "pull_request", &body);
    assert_eq!(post(&service, "github", &signed, &serialised_anew).await?, 401);
    let by_another = sent::github("another secret", "d1", "pull_request", &body);
    assert_eq!(post(&service, "github", &by_another, &body).await?, 401);
    assert_eq!(post(&service, "github", &signed[1..], &body).await?, 400, "there is no signature");
    let old = seconds_ago(3_600);
    assert_eq!(post(&service, "standard", &sent::standard("msg_1", &old, settled), settled).await?, 401);
    assert_eq!(post(&service, "stripe", &sent::stripe(&old, event), event).await?, 401);
    let queue = SqliteStore::connect(&store_in(folder.path())).await?.queue("webhooks");
    assert_eq!(queue.depth().await?, 0);

    let now = seconds_ago(0);
    assert_eq!(post(&service, "github", &signed, &body).await?, 202);
    assert_eq!(post(&service, "standard", &sent::standard("msg_1", &now, settled), settled).await?, 202);
    assert_eq!(post(&service, "stripe", &sent::stripe(&now, event), event).await?, 202);
    assert_eq!(queue.depth().await?, 3);
    assert_eq!(consume(&store_in(folder.path())).await?["handled"], 3);
    let expected = ["charge.succeeded", "payment.settled", "pull_request"].map(|kind| (kind.to_owned(), 1));
    assert_eq!(counted(&store_in(folder.path())).await?, Counts::from(expected));
    Ok(())
}

#[tokio::test]
async fn an_endpoint_without_a_secret_is_not_there() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let service = Service::serve(&store_in(folder.path()), NOBODY, &[]).await?;
    let body = b"{}";
    assert_eq!(post(&service, "github", &sent::github(GITHUB, "d1", "push", body), body).await?, 404);
    Ok(())
}

mod server {
    use hapax::BoxError;
    use hapax_testkit::servers::{Server, TestDatabase, require};

    use super::send_twice_and_consume;

    #[tokio::test]
    async fn events_of_github_that_are_sent_twice_in_any_order_take_effect_once() -> Result<(), BoxError> {
        if !require(Server::Postgres) {
            return Ok(());
        }
        let database = TestDatabase::create().await?;
        send_twice_and_consume(database.url()).await?;
        database.remove().await?;
        Ok(())
    }
}
