//! `hapax run` on SQLite, from a file, standard input and the embedded queue: no server is needed.

mod payments;
mod program;
mod shop;

use hapax_testkit::process::{Running, Subject};
use hapax_testkit::servers::eventually;
use program::{Ended, Folder, SOON, open};
use sqlx::{Connection as _, SqliteConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Reads the shop's messages from a file.
const FROM_FILE: (&str, &str) = (r#"source = { queue = "orders" }"#, r#"source = { file = "lines.jsonl" }"#);

/// Makes the tables and puts lines into the shop's queue.
async fn send(shop: &Folder, lines: &str) {
    shop.write("lines.jsonl", lines);
    shop.run("migrate -c @hapax.toml").await.exit(0);
    shop.run("send @lines.jsonl --queue orders -c @hapax.toml").await.exit(0);
}

/// The ledger, oldest first: what was booked, and how much.
async fn ledger(database: &mut SqliteConnection) -> Vec<(String, String)> {
    let booked = sqlx::query_as("SELECT id, amount FROM ledger ORDER BY n").fetch_all(database).await;
    booked.unwrap_or_default() // the set-up may not have run yet
}

async fn count(database: &mut SqliteConnection, of: &'static str) -> i64 {
    sqlx::query_scalar(of).fetch_one(database).await.unwrap_or(-1)
}

#[tokio::test]
async fn the_demo_takes_effect_once_however_often_it_runs() {
    let demo = payments::folder(&[]);
    let first = demo.run("run @hapax.toml --json").await.exit(0);
    assert_eq!(
        first,
        "{\"handled\":1000,\"duplicates\":230,\"retried\":0,\"dead\":20,\"ambiguous\":0,\"waiting\":0}\n"
    );
    let rows = payments::rows(&demo).await;
    let mut database = demo.database("payments.db").await;
    let totals = "SELECT sum(payments), sum(refunds), sum(parcels), sum(balance_cents) FROM orders";
    let totals: (i64, i64, i64, i64) = sqlx::query_as(totals).fetch_one(&mut database).await.unwrap();
    assert_eq!(totals, (640, 160, 200, 909_727_124_782_847_080), "as the demo's README says");
    for amount in ["2500.10", "9007199254740993"] {
        assert!(rows.iter().any(|row| row.contains(&format!(" {amount} "))), "case 40: {amount}");
    }
    let alike = "SELECT count(*) FROM hapax_inbox WHERE trim(lower(id)) = 'pay-0042' AND state = 0";
    assert!(count(&mut database, alike).await > 2, "case 36: ids that differ in case or a space");

    let second = demo.run("run @hapax.toml --json").await.exit(0);
    assert_eq!(
        second,
        "{\"handled\":0,\"duplicates\":1242,\"retried\":0,\"dead\":8,\"ambiguous\":0,\"waiting\":0}\n"
    );
    let third = demo.run("run @hapax.toml").await.exit(0);
    assert_eq!(
        third,
        "payments: 0 handled, 1242 duplicates, 0 retried, 8 dead, 0 ambiguous, 0 waiting\n\
         `hapax dead list` tells why 8 were set aside\n"
    );
    assert_eq!(payments::rows(&demo).await, rows);
}

#[tokio::test]
async fn case_05_a_run_killed_at_any_moment_and_started_again_ends_in_the_same_tables() {
    const SEED: u64 = 20_260_302;
    let whole = payments::folder(&[]);
    whole.run("run @hapax.toml").await.exit(0);

    // In small batches, so that there are many moments.
    let killed = payments::folder(&[("retention =", "batch = { max = 5 }\nretention =")]);
    let database = killed.path("payments.db");
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut moments: Vec<i64> = (0..8).map(|_| random.i64(0..900)).collect();
    moments.sort_unstable();
    moments[0] = -1; // before there is a table
    for moment in moments {
        let mut running = killed.hapax("run @hapax.toml").start().unwrap();
        eventually("it got so far", SOON, async || match open(&database).await {
            Ok(mut seen) => count(&mut seen, "SELECT count(*) FROM hapax_inbox").await >= moment,
            Err(_) => false,
        })
        .await;
        running.kill().unwrap();
        running.wait_killed(SOON).await;
    }
    killed.run("run @hapax.toml").await.exit(0);
    assert!(payments::rows(&killed).await == payments::rows(&whole).await, "seed {SEED}");
}

#[tokio::test]
async fn two_processes_that_start_together_on_an_empty_folder_share_the_work() {
    let (demo, whole) = (payments::folder(&[]), payments::folder(&[]));
    whole.run("run @hapax.toml").await.exit(0);
    let (one, other) = (demo.hapax("run @hapax.toml --json"), demo.hapax("run @hapax.toml --json"));
    let (one, other) = (one.start().unwrap(), other.start().unwrap());
    let summaries = [Ended::of(one).await.json(0).remove(0), Ended::of(other).await.json(0).remove(0)];
    let handled: i64 = summaries.iter().filter_map(|summary| summary["handled"].as_i64()).sum();
    assert_eq!(handled, 1000);
    assert!(payments::rows(&demo).await == payments::rows(&whole).await);
}

/// The demo's whole database, with what its log still holds.
async fn bytes(demo: &Folder) -> Vec<u8> {
    let mut database = demo.database("payments.db").await;
    sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut database).await.expect("a checkpoint");
    database.close().await.expect("it closes");
    std::fs::read(demo.path("payments.db")).expect("it is there")
}

#[tokio::test]
async fn a_check_asks_everything_and_changes_nothing() {
    let demo = payments::folder(&[]);
    let fresh = demo.run("run @hapax.toml --check").await.exit(0);
    assert!(fresh.contains("would apply"), "{fresh}");
    let fresh = demo.run("run @hapax.toml --check --json").await.exit(0);
    assert_eq!(fresh, "{\"consumers\":{\"payments\":\"statements not checked\"},\"pending\":[1]}\n");
    let mut database = demo.database("payments.db").await;
    assert_eq!(count(&mut database, "SELECT count(*) FROM sqlite_master").await, 0);
    drop(database);

    demo.run("run @hapax.toml").await.exit(0);
    let before = bytes(&demo).await;
    assert_eq!(demo.run("run @hapax.toml --check").await.exit(0), "consumer payments: ok\n");
    let checked = demo.run("run @hapax.toml --check --json").await.exit(0);
    assert_eq!(checked, "{\"consumers\":{\"payments\":\"ok\"},\"pending\":[]}\n");
    assert!(bytes(&demo).await == before);

    demo.write("payments.jsonl", "");
    std::fs::remove_file(demo.path("payments.jsonl")).unwrap();
    let gone = demo.run("run @hapax.toml --check").await;
    gone.exit(2);
    assert!(gone.stderr().contains("HX0018"), "{gone}");
}

#[tokio::test]
async fn the_printed_defaults_are_a_configuration() {
    let folder =
        Folder::with(&[("schema.sql", "CREATE TABLE example (id INTEGER PRIMARY KEY, seen INTEGER)")]);
    let defaults = folder.run("run --print-defaults").await.exit(0);
    let check = r#"migrate = "check""#;
    assert!(defaults.contains(check));
    folder.write("hapax.toml", &defaults.replacen(check, "migrate = \"apply\"\nsetup = \"schema.sql\"", 1));
    let summary = folder.run("run @hapax.toml --until-idle 10ms").await.exit(0);
    assert_eq!(summary, "example: 0 handled, 0 duplicates, 0 retried, 0 dead, 0 ambiguous, 0 waiting\n");
}

#[tokio::test]
async fn what_is_sent_twice_and_shuffled_takes_effect_once() {
    let shop = shop::folder(&[]);
    let lines: String = (0..60).map(|n| shop::paid(&format!("p-{n}"), n % 3 + 1)).collect();
    send(&shop, "").await;
    shop.write("lines.jsonl", &lines);
    let sent = shop.run("send @lines.jsonl --queue orders -c @hapax.toml --twice --shuffle --json").await;
    assert_eq!(sent.exit(0), "{\"sent\":120,\"unsent\":0}\n");
    let summary = &shop.run("run @hapax.toml --until-idle 100ms --json").await.json(0)[0];
    assert_eq!((&summary["handled"], &summary["duplicates"]), (&60.into(), &60.into()));

    let mut database = shop.database("shop.db").await;
    assert_eq!(count(&mut database, "SELECT count(DISTINCT id) FROM ledger").await, 60);
    assert_eq!(count(&mut database, "SELECT sum(payments) FROM orders").await, 60);
    assert_eq!(count(&mut database, "SELECT count(*) FROM hapax_queue").await, 0, "handled is deleted");
}

#[tokio::test]
async fn standard_input_is_a_source() {
    let shop = shop::folder(&[(r#"{ queue = "orders" }"#, r#"{ file = "-" }"#)]);
    shop.write("lines.jsonl", &(shop::paid("p-1", 1) + "\r\n" + shop::paid("p-1", 1).trim()));
    let shell = Subject::new("sh")
        .current_dir(shop.path("."))
        .arg("-c")
        .arg("exec \"$0\" run hapax.toml --json <lines.jsonl");
    let ended = Ended::of(shell.arg(env!("CARGO_BIN_EXE_hapax")).start().unwrap()).await;
    assert_eq!((&ended.json(0)[0]["handled"], &ended.json(0)[0]["duplicates"]), (&1.into(), &1.into()));
}

#[tokio::test]
async fn case_40_decimals_keep_every_digit() {
    let shop = shop::folder(&[FROM_FILE]);
    let amounts = [
        ("2500.10", "2500.10"),
        ("9007199254740993", "9007199254740993"),
        ("-0.000000000000000001", "-0.000000000000000001"),
        ("123456789012345678901234567890.123456789", "123456789012345678901234567890.123456789"),
        ("\"12.50\"", "12.50"),
        ("1.5e3", "1500"),
    ];
    let line = |(n, (amount, _)): (usize, &(&str, &str))| {
        format!("{{\"id\":\"p-{n}\",\"type\":\"Paid\",\"order\":1,\"amount\":{amount}}}\n")
    };
    shop.write("lines.jsonl", &amounts.iter().enumerate().map(line).collect::<String>());
    shop.run("run @hapax.toml").await.exit(0);
    let booked = ledger(&mut shop.database("shop.db").await).await;
    let booked: Vec<_> = booked.iter().map(|(_, amount)| amount.as_str()).collect();
    assert_eq!(booked, amounts.map(|(_, amount)| amount));
}

#[tokio::test]
async fn cases_39_and_41_what_cannot_be_handled_is_set_aside_with_its_reason_and_the_rest_goes_on() {
    let shop = shop::folder(&[FROM_FILE]);
    let huge = format!(
        "{{\"id\":\"huge\",\"type\":\"Paid\",\"order\":1,\"amount\":1,\"x\":\"{}\"}}\n",
        "x".repeat(10 << 20)
    );
    let lines = [
        "not JSON at all\n",
        r#"{"id":"no-amount","type":"Paid","order":1}"#,
        "\n",
        r#"{"id":"worded","type":"Paid","order":"one","amount":1}"#,
        "\n",
        &huge,
        r#"{"id":"unknown","type":"Refunded","order":1}"#,
        "\n",
        r#"{"id":"typeless","order":1}"#,
        "\n",
        r#"{"id":"","type":"Paid","order":1,"amount":1}"#,
        "\n",
        r#"{"id":null,"type":"Paid","order":1,"amount":1}"#,
        "\n",
        &shop::paid("p-1", 1),
    ];
    shop.write("lines.jsonl", &lines.concat());
    let summary = &shop.run("run @hapax.toml --json").await.json(0)[0];
    assert_eq!((&summary["handled"], &summary["dead"]), (&1.into(), &8.into()));

    let letters = shop.run("dead list -c @hapax.toml --json").await.json(0);
    let mut reasons: Vec<_> = letters
        .iter()
        .map(|letter| (letter["id"].as_str().unwrap_or("-"), letter["reason"].as_str().unwrap()))
        .collect();
    reasons.sort_unstable();
    let expected = [
        ("-", "HX0030"),
        ("-", "HX0030"),
        ("-", "HX0035"),
        ("-", "HX0036"),
        ("no-amount", "HX0039"),
        ("typeless", "HX0033"),
        ("unknown", "HX0034"),
        ("worded", "HX0039"),
    ];
    assert_eq!(reasons, expected);
}

#[tokio::test]
async fn case_41_an_unknown_type_is_recorded_without_effect_where_that_is_configured() {
    let shop = shop::folder(&[FROM_FILE, ("sent_at =", "unknown_type = \"ignore\"\nsent_at =")]);
    shop.write("lines.jsonl", "{\"id\":\"r-1\",\"type\":\"Refunded\"}\n");
    let summary = &shop.run("run @hapax.toml --json").await.json(0)[0];
    assert_eq!((&summary["handled"], &summary["dead"]), (&1.into(), &0.into()));
    assert_eq!(shop.run("inbox get r-1 -c @hapax.toml --json").await.json(0)[0]["state"], "done");
}

#[tokio::test]
async fn case_49_with_order_by_key_those_behind_a_failing_message_wait_and_others_pass() {
    let shop = shop::folder(&[("sent_at =", "order = \"key\"\nsent_at ="), ("\"reject\"", "\"retry\"")]);
    let ids = [("a-1", 7), ("b-1", 1), ("a-2", 7), ("b-2", 1), ("b-3", 2), ("a-3", 7)];
    send(&shop, &ids.map(|(id, order)| shop::paid(id, order)).concat()).await;
    let running = shop.hapax("run @hapax.toml --until-idle 200ms --json").start().unwrap();
    let mut database = shop.database("shop.db").await;
    eventually("the others pass while the first of order 7 fails again and again", SOON, async || {
        let failures = "SELECT failures FROM hapax_waiting WHERE id = 'a-1'";
        ledger(&mut database).await.len() == 3 && count(&mut database, failures).await >= 2
    })
    .await;
    sqlx::raw_sql("INSERT INTO orders (id) VALUES (7)").execute(&mut database).await.unwrap();
    let summary = &Ended::of(running).await.json(0)[0];
    assert!(summary["handled"] == 6 && summary["dead"] == 0 && summary["waiting"] == 0, "{summary}");
    assert!(summary["retried"].as_i64() >= Some(2), "{summary}");
    let booked = ledger(&mut database).await;
    let booked: Vec<_> = booked.iter().map(|(id, _)| id.as_str()).collect();
    assert_eq!(booked[3..], ["a-1", "a-2", "a-3"], "{booked:?}");
}

/// Waits until the shop has booked so many payments.
async fn booked(shop: &Folder, running: &Running, payments: usize) {
    let mut database = shop.database("shop.db").await;
    let what = format!("{payments} payments are booked by {}", running.id());
    eventually(&what, SOON, async || ledger(&mut database).await.len() == payments).await;
}

#[tokio::test]
async fn sigterm_ends_it_in_order_with_a_summary() {
    let shop = shop::folder(&[]);
    send(&shop, &shop::paid("p-1", 1)).await;
    let running = shop.hapax("run @hapax.toml --json").start().unwrap();
    booked(&shop, &running, 1).await;
    let mut running = running;
    running.terminate().unwrap();
    let summary = Ended::of(running).await.json(0).remove(0);
    assert_eq!((&summary["handled"], &summary["waiting"]), (&1.into(), &0.into()));
    let unclean = "SELECT count(*) FROM hapax_instances WHERE ended_at IS NULL";
    assert_eq!(count(&mut shop.database("shop.db").await, unclean).await, 0);
}

#[tokio::test]
async fn sigterm_ends_it_while_a_read_of_its_pipe_is_open() {
    let shop = shop::folder(&[("{ queue = \"orders\" }", "{ file = \"pipe\" }")]);
    let made = std::process::Command::new("mkfifo").arg(shop.path("pipe")).status();
    assert!(made.expect("mkfifo runs").success());
    let mut pipe = std::fs::File::options().read(true).write(true).open(shop.path("pipe")).unwrap();
    std::io::Write::write_all(&mut pipe, shop::paid("p-1", 1).as_bytes()).unwrap();
    let mut running = shop.hapax("run @hapax.toml").env("HAPAX_LOG", "hapax=debug").start().unwrap();
    running.wait_output("received", SOON).await;
    running.terminate().unwrap();
    Ended::of(running).await.exit(0);
    drop(pipe);
}

/// A GET request: the status and the body.
async fn get(address: &str, path: &str) -> std::io::Result<(String, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    Ok((head.split(' ').nth(1).unwrap_or_default().to_owned(), body.to_owned()))
}

#[tokio::test]
async fn the_admin_listener_answers_while_it_runs_and_shows_no_ids() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let listen = format!("[admin]\nlisten = \"{free}\"\n\n[consumers.orders]");
    let shop = shop::folder(&[("[consumers.orders]", &listen)]);
    send(
        &shop,
        &(shop::paid("secret-id-1", 1) + &shop::paid("secret-id-1", 1) + &shop::paid("secret-id-2", 9)),
    )
    .await;
    let mut running = shop.hapax("run @hapax.toml").start().unwrap();
    let counts = [
        r#"hapax_messages_total{consumer="orders",outcome="handled"} 1"#,
        r#"hapax_messages_total{consumer="orders",outcome="duplicate"} 1"#,
        r#"hapax_messages_total{consumer="orders",outcome="dead"} 1"#,
    ];
    eventually("the metrics count each outcome", SOON, async || {
        let metrics = get(&free, "/metrics").await;
        metrics.is_ok_and(|(_, text)| counts.iter().all(|count| text.contains(count)))
    })
    .await;
    assert_eq!(get(&free, "/live").await.unwrap(), ("200".to_owned(), "live\n".to_owned()));
    assert_eq!(get(&free, "/ready").await.unwrap(), ("200".to_owned(), "ready\n".to_owned()));
    let (status, metrics) = get(&free, "/metrics").await.unwrap();
    assert_eq!(status, "200");
    assert!(!metrics.contains("secret-id"), "{metrics}");
    for metric in ["hapax_batch_size", "hapax_claim_seconds", "hapax_handle_seconds", "hapax_commit_seconds"]
    {
        assert!(metrics.contains(&format!("# TYPE {metric} ")), "{metric} is missing:\n{metrics}");
    }
    running.terminate().unwrap();
    Ended::of(running).await.exit(0);
    assert!(get(&free, "/live").await.is_err(), "the port is closed with the process");
}

#[tokio::test]
async fn a_full_database_stops_fetching_and_when_there_is_room_nothing_is_lost_and_no_attempt_spent() {
    // SQLite says the same as of a full disk when a table has given out its last row number.
    let shop = shop::folder(&[("attempts = 1000", "attempts = 2")]);
    let schema = std::fs::read_to_string(shop.path("schema.sql")).unwrap();
    let schema = schema.replacen("n INTEGER PRIMARY KEY", "n INTEGER PRIMARY KEY AUTOINCREMENT", 1);
    let last = "INSERT INTO sqlite_sequence (name, seq) VALUES ('ledger', 9223372036854775807);";
    shop.write("schema.sql", &(schema + last));
    send(&shop, &(1..=5).map(|n| shop::paid(&format!("p-{n}"), 1)).collect::<String>()).await;

    let mut running = shop.hapax("run @hapax.toml --until-idle 200ms --json").start().unwrap();
    running.wait_output("HX0014", SOON).await;
    let stderr = running.stderr();
    assert!(stderr.contains("the store is away"), "{running}");
    eventually("it asks again and again", SOON, async || running.stderr().matches("HX0014").count() >= 3)
        .await;
    assert!(running.is_running(), "{running}");
    let mut database = shop.database("shop.db").await;
    assert_eq!(count(&mut database, "SELECT count(*) FROM ledger").await, 0);
    assert_eq!(count(&mut database, "SELECT count(*) FROM hapax_waiting").await, 0);

    sqlx::raw_sql("DELETE FROM sqlite_sequence").execute(&mut database).await.unwrap();
    let summary = Ended::of(running).await.exit(0);
    assert_eq!(
        summary,
        "{\"handled\":5,\"duplicates\":0,\"retried\":0,\"dead\":0,\"ambiguous\":0,\"waiting\":0}\n"
    );
    assert_eq!(count(&mut database, "SELECT count(DISTINCT id) FROM ledger").await, 5);
}
