//! The bank without any server: SQLite, with a queue in each database.

mod program;

use hapax::sqlx::{self, Connection as _, SqliteConnection};
use hapax::{BoxError, Envelope, SqliteStore};
use hapax_testkit::servers::eventually;
use program::client::{get, send};
use program::{SOON, Service, accounts_url, bank, clean, movement, pasted, transfers_url};
use serde_json::Value;

#[test]
fn every_cent_is_where_it_belongs() {
    let found = clean(&["--embedded", "--transfers", "150", "--duplicates", "0.3", "--kills", "4"]);
    assert_eq!((&found["transfers"], &found["kills"]), (&150.into(), &4.into()), "{found}");
    assert!(found["duplicates_seen"].as_u64() > Some(0), "{found}");
    let count = |name: &str| found[name].as_u64().unwrap_or_default();
    assert_eq!(count("completed") + count("failed"), 150, "{found}");
    assert!(count("compensated") > 0 && count("completed") > count("compensated"), "{found}");
}

#[test]
fn with_all_defences_in_place_nothing_breaks() {
    let output = bank(&["break", "--embedded", "--only", "Hapax: nothing"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("| clean |"), "{said}");
}

#[test]
fn without_its_defences_money_is_invented_or_stuck() {
    for (taken_away, column) in
        [("both indexes", 3), ("a step of its own", 3), ("in Redis", 5), ("no outbox", 5)]
    {
        let output = bank(&["break", "--embedded", "--only", taken_away]);
        let said = String::from_utf8_lossy(&output.stdout);
        let row = said.lines().find(|line| line.contains(taken_away)).expect("its row");
        let damage: u32 = row.split('|').nth(column + 1).unwrap().trim().parse().unwrap();
        assert!(damage > 0, "{said}");
    }
}

/// Puts a body and nothing else into the account service's queue, so many times.
async fn paste(url: &str, queue: &str, body: &bytes::Bytes, times: usize) -> Result<(), BoxError> {
    SqliteStore::connect(url).await?.send(queue, &vec![Envelope::new(body.clone()); times]).await?;
    Ok(())
}

#[tokio::test]
async fn case_44_a_message_pasted_twice_moves_the_balance_once() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let accounts = Service::accounts_in(folder.path(), &[]).await?;
    accounts.open("ada", "100.00").await?;
    let order = pasted("m1", "Transfer.Requested", &movement("t1", "debit", "ada", "25.00"));
    paste(&accounts_url(folder.path()), "account-service", &order, 2).await?;
    accounts.until_health("handled", 1).await;
    accounts.until_health("duplicates", 1).await;
    assert_eq!(accounts.balance("ada").await?, "75.00");
    Ok(())
}

#[tokio::test]
async fn case_44_without_both_indexes_it_moves_twice_and_with_one_of_them_once() -> Result<(), BoxError> {
    for (dropped, balance) in [
        (&["processed_once", "ledger_once"][..], "50.00"),
        (&["processed_once"], "75.00"),
        (&["ledger_once"], "75.00"),
    ] {
        let folder = tempfile::tempdir()?;
        let accounts = Service::accounts_in(folder.path(), &["--without", "hapax"]).await?;
        let url = accounts_url(folder.path());
        let mut database = SqliteConnection::connect(&url).await?;
        for index in dropped {
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("DROP INDEX {index}"))).execute(&mut database).await?;
        }
        accounts.open("ada", "100.00").await?;
        let order = pasted("m1", "Transfer.Requested", &movement("t1", "debit", "ada", "25.00"));
        paste(&url, "account-service", &order, 2).await?;
        let seen = async || {
            accounts.get("/health").await.is_ok_and(|health| {
                health["handled"].as_u64().unwrap_or_default()
                    + health["duplicates"].as_u64().unwrap_or_default()
                    == 2
            })
        };
        eventually("both are seen", SOON, seen).await;
        assert_eq!(accounts.balance("ada").await?, balance, "{dropped:?}");
    }
    Ok(())
}

#[tokio::test]
async fn news_that_has_overtaken_other_news_waits_and_news_that_never_fits_is_set_aside()
-> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let transfers = Service::transfers_in(folder.path()).await?;
    let url = transfers_url(folder.path());
    let say = async |id: &str, kind: &str, payload: Value| {
        paste(&url, "transfer-service", &pasted(id, kind, &payload), 1).await
    };
    for account in ["ada", "bob"] {
        say(account, "Account.Opened", serde_json::json!({ "account": account })).await?;
    }
    transfers.until_known(2).await;
    let asked = transfers.ask(Some("k1"), r#"{"from":"ada","to":"bob","amount":"25.00"}"#).await?;
    let transfer: Value = serde_json::from_slice(&asked.body)?;
    let id = transfer["id"].as_str().ok_or("it has an id")?;

    say("late", "Account.Credited", movement(id, "credit", "bob", "25.00")).await?;
    transfers.until_health("waiting", 1).await;
    say("early", "Account.Debited", movement(id, "debit", "ada", "25.00")).await?;
    transfers.until_state(id, "completed").await;
    transfers.until_health("waiting", 0).await;

    say("never", "Account.Credited", movement(id, "refund", "ada", "25.00")).await?;
    transfers.until_health("dead", 1).await;
    transfers.until_state(id, "completed").await;
    Ok(())
}

/// Both services, with an account each for ada and bob, of which both know.
async fn bank_in(folder: &std::path::Path) -> Result<(Service, Service), BoxError> {
    let transfers = Service::transfers_in(folder).await?;
    let accounts = Service::accounts_in(folder, &[]).await?;
    for account in ["ada", "bob"] {
        accounts.open(account, "100.00").await?;
    }
    transfers.until_known(2).await;
    Ok((transfers, accounts))
}

#[tokio::test]
async fn a_bad_request_is_refused_with_a_problem_document() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let (transfers, accounts) = bank_in(folder.path()).await?;
    for (body, status, kind) in [
        (r#"{"from":"ada","to":"bob","amount":"-5.00"}"#, 422, "invalid-amount"),
        (r#"{"from":"ada","to":"bob","amount":"0.00"}"#, 422, "invalid-amount"),
        (r#"{"from":"ada","to":"bob","amount":25.5}"#, 422, "invalid-field"),
        (r#"{"from":"ada","to":"bob","amount":"25.5"}"#, 422, "invalid-field"),
        (r#"{"from":"ada","to":"bob"}"#, 422, "invalid-field"),
        (r#"["ada","bob","5.00"]"#, 422, "invalid-field"),
        (r#"{"from":"ada","to":"bob","amount":"5.00","fee":"1.00"}"#, 422, "invalid-field"),
        (r#"{"from":"ada","to":"ada","amount":"5.00"}"#, 422, "same-account"),
        (r#"{"from":"ada","to":"eve","amount":"5.00"}"#, 422, "unknown-account"),
        (r#"{"from":"eve","to":"bob","amount":"5.00"}"#, 422, "unknown-account"),
        (r#"{"from":"ada","#, 400, "not-json"),
        ("", 400, "not-json"),
    ] {
        let answer = transfers.ask(Some("k1"), body).await?;
        is_problem(&answer, status, kind)?;
    }
    let good = r#"{"from":"ada","to":"bob","amount":"5.00"}"#;
    let long = "k".repeat(256);
    for key in [None, Some(""), Some("\"\""), Some(long.as_str())] {
        is_problem(&transfers.ask(key, good).await?, 400, "idempotency-key")?;
    }
    is_problem(&transfers.ask(Some("k1"), &" ".repeat(3_000_000)).await?, 413, "unreadable-body")?;
    is_problem(&send(transfers.address, get("/nowhere")?).await?, 404, "not-found")?;
    is_problem(&send(transfers.address, get("/transfers/none")?).await?, 404, "not-found")?;
    is_problem(&send(accounts.address, get("/accounts/eve")?).await?, 404, "not-found")?;
    assert_eq!(
        transfers.get("/transfers").await?,
        Value::Array(Vec::new()),
        "no refusal has left anything behind"
    );

    let first = transfers.ask(Some("k1"), good).await?;
    assert_eq!(first.status, 202, "{first:?}");
    Ok(())
}

fn is_problem(answer: &program::client::Answer, status: u16, kind: &str) -> Result<(), BoxError> {
    let problem: Value = serde_json::from_slice(&answer.body)?;
    assert_eq!(answer.status.as_u16(), status, "{problem}");
    assert_eq!(answer.content_type, "application/problem+json");
    assert_eq!(problem["type"], format!("urn:bank:{kind}"), "{problem}");
    assert_eq!(problem["status"], status);
    assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
    Ok(())
}

#[tokio::test]
async fn a_key_stands_for_one_transfer() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let (transfers, accounts) = bank_in(folder.path()).await?;
    let body = r#"{"from":"ada","to":"bob","amount":"25.00"}"#;
    let first: Value = serde_json::from_slice(&transfers.ask(Some("k1"), body).await?.body)?;
    let id = first["id"].as_str().ok_or("it has an id")?;
    transfers.until_state(id, "completed").await;

    let spaced = body.replace(',', ", ");
    for same in [body, spaced.as_str()] {
        let again: Value = serde_json::from_slice(&transfers.ask(Some("k1"), same).await?.body)?;
        assert_eq!((&again["id"], &again["state"]), (&first["id"], &"completed".into()));
    }
    let other = transfers.ask(Some("k1"), r#"{"from":"ada","to":"bob","amount":"26.00"}"#).await?;
    is_problem(&other, 422, "key-reused")?;
    let another: Value = serde_json::from_slice(&transfers.ask(Some("k2"), body).await?.body)?;
    assert_ne!(another["id"], first["id"]);
    transfers.until_state(another["id"].as_str().ok_or("it has an id")?, "completed").await;
    assert_eq!(
        (accounts.balance("ada").await?, accounts.balance("bob").await?),
        ("50.00".into(), "150.00".into())
    );
    Ok(())
}
