//! Payments without any server: SQLite, with the queue in it.

mod program;

use hapax::BoxError;
use hapax::sqlx::{self, Connection as _, SqliteConnection};
use program::client::Answer;
use program::{SOON, Service, checkout, clean, store_in};
use serde_json::{Value, json};

/// Nobody listens there: nothing is charged, and nothing of what is tested here waits for it.
const NOBODY: &str = "http://127.0.0.1:9";
const PAYMENT: &str = r#"{"account":"ada","amount":"25.00"}"#;

#[test]
fn every_payment_is_made_and_charged_once() {
    let found = clean(&["--payments", "60", "--copies", "3", "--kills", "5"]);
    assert_eq!((&found["payments"], &found["kills"]), (&60.into(), &5.into()), "{found}");
    assert!(found["calls"].as_u64() > Some(60), "some answers of the provider are lost: {found}");
}

async fn pay(service: &Service, key: &str, body: &str) -> Result<Answer, BoxError> {
    service.post("/payments", &[("idempotency-key", key)], body.as_bytes()).await
}

/// Refused with this status, as a problem, and without a trace in the books.
#[track_caller]
fn is_problem(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert_eq!(answer.header("content-type"), "application/problem+json");
    let problem: Value = serde_json::from_slice(&answer.body).expect("a problem is JSON");
    assert_eq!(problem["status"], status, "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
}

#[tokio::test]
async fn a_payment_is_accepted_once_under_a_key_and_told_the_same() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let service = Service::serve(&store_in(folder.path()), NOBODY, &[]).await?;
    let first = pay(&service, "\"k1\"", PAYMENT).await?;
    assert_eq!(first.status, 201);
    assert_eq!(first.header("idempotency-replayed"), "");
    assert!(!first.header("idempotency-key-expires").is_empty(), "clients are told how long they may retry");
    let payment: Value = serde_json::from_slice(&first.body)?;
    assert_eq!(first.header("location"), format!("/payments/{}", payment["id"].as_str().unwrap()));

    let copy = pay(&service, "\"k1\"", PAYMENT).await?;
    assert_eq!(copy.header("idempotency-replayed"), "true");
    assert_eq!((copy.status, &copy.body), (first.status, &first.body));
    assert_eq!(copy.header("location"), first.header("location"));

    assert_eq!(service.get(first.header("location")).await?, payment);
    let account = json!({ "name": "ada", "total": "25.00", "payments": 1 });
    assert_eq!(service.get("/accounts/ada").await?, account);
    let other = pay(&service, "\"k2\"", r#"{"account":"ada","amount":"0.10"}"#).await?;
    assert_ne!(other.header("location"), first.header("location"));
    assert_eq!(service.get("/accounts/ada").await?["total"], "25.10");
    Ok(())
}

#[tokio::test]
async fn case_31_another_body_under_the_key_is_422() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let service = Service::serve(&store_in(folder.path()), NOBODY, &[]).await?;
    assert_eq!(pay(&service, "\"k1\"", PAYMENT).await?.status, 201);
    is_problem(&pay(&service, "\"k1\"", r#"{"account":"ada","amount":"25.01"}"#).await?, 422);
    is_problem(&pay(&service, "\"k1\"", r#"{ "account":"ada","amount":"25.00"}"#).await?, 422);
    assert_eq!(service.get("/accounts/ada").await?["total"], "25.00");
    Ok(())
}

#[tokio::test]
async fn case_32_copies_at_the_same_moment_are_one_payment() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let service = Service::serve(&store_in(folder.path()), NOBODY, &[]).await?;
    let copies = std::iter::repeat_with(|| pay(&service, "\"k1\"", PAYMENT)).take(20);
    let answers = futures::future::try_join_all(copies).await?;
    assert!(
        answers.iter().all(|answer| answer.body == answers[0].body && answer.status == 201),
        "{answers:?}"
    );
    assert_eq!(service.get("/accounts/ada").await?["payments"], 1);
    Ok(())
}

#[tokio::test]
async fn case_33_a_request_without_one_good_key_is_400() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let service = Service::serve(&store_in(folder.path()), NOBODY, &[]).await?;
    is_problem(&service.post("/payments", &[], PAYMENT.as_bytes()).await?, 400);
    let long = "k".repeat(256);
    for key in ["", "\"\"", "\"a\", \"b\"", &format!("\"{long}\""), &long, "\"a"] {
        is_problem(&pay(&service, key, PAYMENT).await?, 400);
    }
    let twice = [("idempotency-key", "\"a\""), ("idempotency-key", "\"a\"")];
    is_problem(&service.post("/payments", &twice, PAYMENT.as_bytes()).await?, 400);
    assert_eq!(service.get("/payments").await?, json!([]));
    assert_eq!(pay(&service, &long[..255], PAYMENT).await?.status, 201, "255 characters are a key");
    Ok(())
}

#[tokio::test]
async fn what_is_no_payment_is_refused_and_the_refusal_is_kept() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let service = Service::serve(&store_in(folder.path()), NOBODY, &[]).await?;
    let bad = [
        (r#"{"account":"ada","amount":25.00}"#, 422),
        (r#"{"account":"ada","amount":"-25.00"}"#, 422),
        (r#"{"account":"ada","amount":"0.00"}"#, 422),
        (r#"{"account":"ada","amount":"25"}"#, 422),
        (r#"{"account":"ada","amount":"25.00","currency":"EUR"}"#, 422),
        (r#"{"account":"ada","account":"bob","amount":"25.00"}"#, 422),
        (r#"{"account":"","amount":"25.00"}"#, 422),
        (r#"{"account":"a\u0000","amount":"25.00"}"#, 422),
        (r#"{"account":"ada"}"#, 422),
        (r#" ["ada","25.00"]"#, 422),
        (r#"{"account":"ada","amount":"25.00""#, 400),
        ("", 400),
    ];
    for (number, (body, status)) in bad.into_iter().enumerate() {
        let key = format!("\"bad-{number}\"");
        let first = pay(&service, &key, body).await?;
        is_problem(&first, status);
        let copy = pay(&service, &key, body).await?;
        assert_eq!((copy.status, copy.body), (first.status, first.body));
    }
    assert_eq!(service.get("/payments").await?, json!([]));
    for path in ["/payments/none", "/accounts/none", "/accounts/a%00b"] {
        is_problem(&program::client::send(&service.server, program::client::get(path)?).await?, 404);
    }
    is_problem(&service.post("/elsewhere", &[], b"").await?, 404);
    is_problem(&service.post("/accounts", &[], b"").await?, 405);
    Ok(())
}

#[tokio::test]
async fn a_payment_is_charged_once_although_the_provider_loses_answers() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let provider = Service::start(&["provider", "--lose", "0.7", "--slow", "10", "--seed", "1"]).await?;
    let service = Service::serve(&store_in(folder.path()), &provider.url(), &[]).await?;
    let output =
        checkout(&["pay", "--url", &service.url(), "--account", "ada", "--amount", "25.00", "--key", "k1"]);
    let said = String::from_utf8(output.stdout)?;
    assert!(output.status.success() && said.starts_with("201 Created\n{"), "{said}");
    let again =
        checkout(&["pay", "--url", &service.url(), "--account", "ada", "--amount", "25.00", "--key", "k1"]);
    let (head, body) = said.split_once('\n').unwrap();
    assert_eq!(String::from_utf8(again.stdout)?, format!("{head} (replayed)\n{body}"));

    let payment: Value = serde_json::from_str(body)?;
    let path = format!("/payments/{}", payment["id"].as_str().unwrap());
    service.until(&path, |payment| payment["receipt"] == "receipt-1" && payment["charges"] == 1).await;
    let charges = provider.get("/charges").await?;
    assert_eq!(charges.as_array().map(Vec::len), Some(1), "{charges}");
    assert!(charges[0]["asked"].as_u64() > Some(1), "answers were lost: {charges}");
    Ok(())
}

#[tokio::test]
async fn a_key_whose_record_is_gone_is_a_new_payment_and_is_charged() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let provider = Service::start(&["provider"]).await?;
    let service = Service::serve(&store_in(folder.path()), &provider.url(), &[]).await?;
    for charged in 1..=2 {
        assert_eq!(pay(&service, "\"k1\"", PAYMENT).await?.status, 201);
        service.until("/progress", |progress| progress["charged"] == charged).await;
        // What the janitor does after a day. The charges' records are kept for two weeks.
        let mut database = SqliteConnection::connect(&store_in(folder.path())).await?;
        let expire = "DELETE FROM hapax_inbox WHERE consumer = 'http.payments'";
        assert_eq!(sqlx::query(expire).execute(&mut database).await?.rows_affected(), 1);
    }
    assert_eq!(provider.get("/charges").await?.as_array().map(Vec::len), Some(2));
    Ok(())
}

#[tokio::test]
async fn the_provider_refuses_another_charge_under_a_key() -> Result<(), BoxError> {
    let provider = Service::start(&["provider"]).await?;
    let charge = async |key: &str, amount: &str| {
        let body = json!({ "payment": "p", "account": "ada", "amount": amount }).to_string();
        provider.post("/charges", &[("idempotency-key", key)], body.as_bytes()).await
    };
    let first = charge("k", "1.00").await?;
    assert_eq!(first.status, 201);
    assert_eq!(charge("k", "1.00").await?.body, first.body);
    is_problem(&charge("k", "2.00").await?, 422);
    is_problem(&charge("", "1.00").await?, 400);
    Ok(())
}

#[tokio::test]
async fn it_is_alive_and_ends_in_order_when_it_is_told_to() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let mut service = Service::serve(&store_in(folder.path()), NOBODY, &[]).await?;
    let live = program::client::send(&service.server, program::client::get("/live")?).await?;
    assert_eq!(live.status, 200);
    service.running.terminate()?;
    assert!(service.running.wait_exit(SOON).await.success());
    Ok(())
}
