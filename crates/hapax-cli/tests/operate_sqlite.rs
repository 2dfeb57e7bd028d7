//! What an operator does beside running consumers, on SQLite: `migrate`, `send`, `inbox`, `dead`.

mod program;
mod shop;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use hapax_testkit::process::{Running, Subject};
use hapax_testkit::servers::eventually;
use program::{Ended, Folder, SOON};
use serde_json::{Value, json};

/// Runs the shop until its queue is empty, having sent these lines; the summary.
async fn handle(shop: &Folder, lines: &str) -> Value {
    shop.write("lines.jsonl", lines);
    shop.run("migrate -c @hapax.toml").await.exit(0);
    shop.run("send @lines.jsonl --queue orders -c @hapax.toml").await.exit(0);
    shop.run("run @hapax.toml --until-idle 100ms --json").await.json(0).remove(0)
}

async fn execute(shop: &Folder, sql: &'static str) {
    let mut database = shop.database("shop.db").await;
    sqlx::raw_sql(sql).execute(&mut database).await.expect(sql);
}

async fn scalar(shop: &Folder, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(&mut shop.database("shop.db").await).await.expect(sql)
}

/// The dead letters that `filter` leaves.
async fn dead(shop: &Folder, filter: &str) -> Vec<Value> {
    shop.run(&format!("dead list -c @hapax.toml --json {filter}")).await.json(0)
}

/// The number of the dead letter with this id.
async fn number(shop: &Folder, id: Option<&str>) -> i64 {
    let letters = dead(shop, "").await;
    let letter = letters.iter().find(|letter| letter["id"].as_str() == id);
    letter.and_then(|letter| letter["number"].as_i64()).unwrap_or_else(|| panic!("{id:?} in {letters:?}"))
}

/// The shop with payments for orders that do not exist, an unknown type, and a message without an id. The
/// last one's line has spaces and a sign beyond ASCII.
async fn with_dead_letters() -> Folder {
    let shop = shop::folder(&[]);
    let lines = [7, 8, 9].map(|order| shop::paid(&format!("p-{order}"), order)).concat();
    let others = "{\"id\":\"r-1\",\"type\":\"Refunded\"}\n{ \"id\":null,  \"type\":\"Paid\", \"order\":1,\"amount\":3.10, \"by\":\"Zoë\" }\n";
    let summary = handle(&shop, &(lines + others)).await;
    assert_eq!((&summary["handled"], &summary["dead"]), (&0.into(), &5.into()));
    shop
}

async fn ended(mut running: Running) -> Ended {
    running.terminate().expect("it can be asked to end");
    let ended = Ended::of(running).await;
    ended.exit(0);
    ended
}

#[tokio::test]
async fn migrate_prints_without_touching_checks_and_applies_once() {
    let shop = shop::folder(&[]);
    let printed = shop.run("migrate -c @hapax.toml --print").await.exit(0);
    assert!(printed.contains("CREATE TABLE hapax_inbox"), "{printed}");
    assert!(!shop.path("shop.db").exists());

    shop.write("shop.db", ""); // an empty database
    assert_eq!(shop.run("migrate -c @hapax.toml --check --json").await.exit(1), "{\"pending\":[1]}\n");
    assert_eq!(shop.run("migrate -c @hapax.toml --json").await.exit(0), "{\"applied\":[1]}\n");
    assert_eq!(shop.run("migrate -c @hapax.toml --json").await.exit(0), "{\"applied\":[]}\n");
    assert_eq!(shop.run("migrate -c @hapax.toml --check").await.exit(0), "the schema is up to date\n");

    // What is printed is what is applied: another tool can run it.
    execute(&shop, "DROP TABLE hapax_schema_version").await;
    std::fs::remove_file(shop.path("shop.db")).expect("it is there");
    let sql = sqlx::AssertSqlSafe(printed);
    let url = format!("sqlite:{}?mode=rwc", shop.path("shop.db").display());
    let mut database =
        <sqlx::SqliteConnection as sqlx::Connection>::connect(&url).await.expect("a new database");
    sqlx::raw_sql(sql).execute(&mut database).await.expect("the printed SQL runs");
    assert_eq!(shop.run("migrate -c @hapax.toml --check").await.exit(0), "the schema is up to date\n");
}

#[tokio::test]
async fn a_command_that_only_looks_makes_no_database_of_a_mistyped_path() {
    let shop = shop::folder(&[("\"apply\"\nsetup = \"schema.sql\"", "\"check\"")]);
    for command in [
        "inbox get p-1 --consumer orders",
        "inbox why p-1 --consumer orders",
        "inbox purge --consumer orders --yes",
        "inbox rename orders sales --yes",
        "dead list",
        "dead redrive 1 --yes",
        "migrate --check",
    ] {
        let by_url =
            shop.hapax(command).env("HAPAX_STORE", format!("sqlite:{}", shop.path("shop.db").display()));
        no_database(&shop, &Ended::of(by_url.start().expect("it starts")).await);
        no_database(&shop, &shop.run(&format!("{command} -c @hapax.toml")).await);
    }
    no_database(&shop, &shop.run("run @hapax.toml").await);
    shop.run("migrate -c @hapax.toml").await.exit(0);
    shop.run("dead list -c @hapax.toml").await.exit(0);
}

#[track_caller]
fn no_database(shop: &Folder, ended: &Ended) {
    assert_eq!(ended.exit(3), "");
    assert!(ended.stderr().contains("HX0010") && ended.stderr().contains("no database file"), "{ended}");
    assert!(!shop.path("shop.db").exists(), "{ended}");
}

#[tokio::test]
async fn a_message_that_failed_is_seen_waiting_and_then_done() {
    let shop = shop::folder(&[("\"reject\"", "\"retry\"")]);
    shop.write("lines.jsonl", &shop::paid("p-7", 7));
    shop.run("migrate -c @hapax.toml").await.exit(0);
    shop.run("send @lines.jsonl --queue orders -c @hapax.toml").await.exit(0);
    let running = shop.hapax("run @hapax.toml --json").start().expect("it starts");

    let why = async || shop.run("inbox why p-7 -c @hapax.toml --json").await;
    eventually("it failed at least twice", SOON, async || {
        let seen = why().await;
        seen.code == Some(0) && seen.json(0)[0]["waiting"]["failures"].as_i64() >= Some(2)
    })
    .await;
    let seen = why().await.json(0).remove(0);
    assert_eq!(seen["inbox"]["state"], "waiting", "{seen}");
    assert_eq!(seen["waiting"]["code"], "HX0054", "{seen}");
    let told = shop.run("inbox why p-7 -c @hapax.toml").await.exit(0);
    assert!(told.contains("touched 0 rows, and 1 were expected; due at"), "{told}");

    execute(&shop, "INSERT INTO orders (id) VALUES (7)").await;
    eventually("it took effect", SOON, async || why().await.json(0)[0]["inbox"]["state"] == "done").await;
    let seen = why().await.json(0).remove(0);
    assert_eq!(
        (&seen["waiting"], &seen["dead"], &seen["starts"]),
        (&Value::Null, &json!([]), &0.into()),
        "{seen}"
    );
    let summary = ended(running).await.json(0).remove(0);
    assert_eq!(
        (&summary["handled"], &summary["dead"], &summary["waiting"]),
        (&1.into(), &0.into(), &0.into())
    );
    assert!(summary["retried"].as_i64() >= Some(2), "{summary}");
}

#[tokio::test]
async fn dead_letters_are_listed_by_reason_shown_whole_and_discarded() {
    let shop = with_dead_letters().await;
    let ids = |letters: &[Value]| {
        let ids = letters.iter().map(|letter| letter["id"].as_str().unwrap_or("-").to_owned());
        ids.collect::<BTreeSet<_>>()
    };
    let of = |ids: &[&str]| ids.iter().copied().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(ids(&dead(&shop, "--reason HX0054").await), of(&["p-7", "p-8", "p-9"]));
    assert_eq!(ids(&dead(&shop, "--id r-1").await), of(&["r-1"]));
    assert_eq!(ids(&dead(&shop, "--consumer others").await), of(&[]));
    let listed = shop.run("dead list -c @hapax.toml --limit 2").await.exit(0);
    assert!(listed.lines().count() == 3 && listed.contains("2 of 5; --limit shows more"), "{listed}");

    let nameless = number(&shop, None).await;
    let shown = shop.run(&format!("dead show {nameless} -c @hapax.toml --json")).await.json(0).remove(0);
    assert_eq!(
        shown["body"], "{ \"id\":null,  \"type\":\"Paid\", \"order\":1,\"amount\":3.10, \"by\":\"Zoë\" }",
        "byte for byte"
    );
    assert_eq!((&shown["reason"], &shown["type"]), (&"HX0030".into(), &"Paid".into()), "{shown}");
    let text = shop.run(&format!("dead show {nameless} -c @hapax.toml")).await.exit(0);
    assert!(text.contains("id        (none)") && text.ends_with("\"by\":\"Zoë\" }\n"), "{text}");

    let refund = number(&shop, Some("r-1")).await;
    let discard = format!("dead discard {refund} -c @hapax.toml --json");
    refused(&shop, &discard).await;
    let discarded = shop.run(&format!("{discard} --yes")).await.exit(0);
    assert_eq!(discarded, "{\"discarded\":1,\"lost\":0}\n");
    assert_eq!(dead(&shop, "").await.len(), 4);

    for (command, code) in [
        (format!("{discard} --yes"), "HX0060"),
        (format!("dead show {refund} -c @hapax.toml"), "HX0060"),
        (format!("dead redrive {refund} -c @hapax.toml --yes"), "HX0060"),
    ] {
        let ended = shop.run(&command).await;
        ended.exit(1);
        assert!(ended.stderr().contains(code), "{ended}");
    }
    for command in [
        "dead discard -c @hapax.toml --yes",
        "dead redrive -c @hapax.toml --reason nonsense --yes",
        "dead redrive -c @hapax.toml --reason HX0054 --rate 0 --yes",
        "dead redrive -c @hapax.toml --reason HX0054 --id p-1 --yes",
        "dead list",
        "inbox get p-1 --store sqlite::memory:",
    ] {
        let ended = shop.run(command).await;
        ended.exit(2);
    }
    assert_eq!(dead(&shop, "").await.len(), 4);
}

/// Runs `hapax` with its standard output redirected by a shell.
async fn into(shop: &Folder, args: &str, redirection: &str) -> Ended {
    let program = env!("CARGO_BIN_EXE_hapax");
    let config = shop.path("hapax.toml");
    let args = args.replace("@hapax.toml", &config.display().to_string());
    let shell =
        Subject::new("/bin/bash").arg("-c").arg(format!("set -o pipefail; {program} {args} {redirection}"));
    Ended::of(shell.env_remove("HAPAX_STORE").start().expect("there is a shell")).await
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_cannot_be_printed_is_an_error_and_a_reader_that_has_gone_is_none() {
    let shop = with_dead_letters().await;
    for command in [
        "dead list -c @hapax.toml",
        "inbox get p-7 -c @hapax.toml --json",
        "migrate -c @hapax.toml --print",
        "run @hapax.toml --until-idle 10ms --json",
        "run @hapax.toml --check",
        "--help",
    ] {
        let full = into(&shop, command, "> /dev/full").await;
        full.exit(1);
        assert!(full.stderr().contains("cannot write to standard output: No space left"), "{full}");
        let closed = into(&shop, command, "| true").await;
        closed.exit(0);
        assert!(!closed.stderr().contains("standard output"), "{closed}");
    }
}

/// Without a terminal to ask on and without `--yes`, a command changes nothing.
async fn refused(shop: &Folder, command: &str) {
    let ended = shop.run(command).await;
    assert_eq!(ended.exit(2), "");
    assert!(ended.stderr().contains("HX0062") && ended.stderr().contains("--yes"), "{ended}");
}

#[tokio::test]
async fn a_canary_that_dies_again_saves_the_rest_and_one_that_lives_lets_them_follow() {
    let shop = with_dead_letters().await;
    let running = shop.hapax("run @hapax.toml --json").start().expect("it starts");
    let redrive = "dead redrive --reason HX0054 --canary 1 --rate 2 --wait -c @hapax.toml --json";
    refused(&shop, redrive).await;
    assert_eq!(dead(&shop, "--reason HX0054").await.len(), 3);

    let stopped = shop.run(&format!("{redrive} --yes")).await.json(1).remove(0);
    assert_eq!(
        stopped,
        json!({ "redriven": 1, "lost": 0, "without_id": 0, "handled": 0, "dead": 1, "skipped": 2 })
    );
    assert_eq!(dead(&shop, "--reason HX0054").await.len(), 3);

    execute(&shop, "INSERT INTO orders (id) VALUES (7), (8), (9)").await;
    let begun = Instant::now();
    let redriven = shop.run(&format!("{redrive} --yes")).await.json(0).remove(0);
    assert_eq!(
        redriven,
        json!({ "redriven": 3, "lost": 0, "without_id": 0, "handled": 3, "dead": 0, "skipped": 0 })
    );
    assert!(begun.elapsed() > Duration::from_millis(500), "the second after the canary waits for the rate");
    assert_eq!(dead(&shop, "--reason HX0054").await.len(), 0);
    assert_eq!(scalar(&shop, "SELECT count(*) FROM ledger").await, 3);
    assert_eq!(scalar(&shop, "SELECT sum(payments) FROM orders").await, 3);
    ended(running).await;
}

#[tokio::test]
async fn case_10_two_operators_redrive_one_dead_letter_to_one_effect() {
    let shop = with_dead_letters().await;
    execute(&shop, "INSERT INTO orders (id) VALUES (7)").await;
    let redrive = format!("dead redrive {} -c @hapax.toml --yes", number(&shop, Some("p-7")).await);
    let (one, other) = (shop.hapax(&redrive), shop.hapax(&redrive));
    let (one, other) = (one.start().expect("it starts"), other.start().expect("it starts"));
    let mut codes = [Ended::of(one).await.code, Ended::of(other).await.code];
    codes.sort_unstable();
    assert_eq!(codes, [Some(0), Some(1)]);

    let summary = handle(&shop, "").await;
    assert_eq!((&summary["handled"], &summary["duplicates"]), (&1.into(), &0.into()));
    assert_eq!(scalar(&shop, "SELECT payments FROM orders WHERE id = 7").await, 1);
    let operators = "SELECT count(*) FROM hapax_dead_letters WHERE redriven_by IS NOT NULL";
    assert_eq!(scalar(&shop, operators).await, 1, "the letter stays for the record");
}

#[tokio::test]
async fn a_dead_letter_without_an_id_is_redriven_only_under_a_given_one() {
    let shop = with_dead_letters().await;
    let redrive = format!("dead redrive {} -c @hapax.toml --yes --json", number(&shop, None).await);
    let refused = shop.run(&redrive).await.json(1).remove(0);
    assert_eq!((&refused["redriven"], &refused["without_id"]), (&0.into(), &1.into()));

    let given = format!("{redrive} --id given-1");
    assert_eq!(shop.run(&given).await.json(0)[0]["redriven"], 1);
    assert_eq!(handle(&shop, "").await["handled"], 1);

    handle(&shop, "{\"type\":\"Paid\"}\n{\"type\":\"Paid\"}\n").await;
    let canary = "dead redrive --reason HX0030 --canary 1 -c @hapax.toml --yes --json";
    let stopped = shop.run(canary).await.json(1).remove(0);
    assert_eq!((&stopped["without_id"], &stopped["skipped"]), (&1.into(), &1.into()), "it proves nothing");
    let again = format!("dead redrive {} -c @hapax.toml --yes --id given-1", number(&shop, None).await);
    let refused = shop.run(&again).await;
    assert_eq!(refused.code, Some(2), "as a copy of what was handled it would be lost\n{refused}");
    assert!(refused.stderr().contains("HX0063"), "{refused}");
    let why = shop.run("inbox why given-1 -c @hapax.toml --json").await.json(0).remove(0);
    assert_eq!(why["inbox"]["state"], "done", "{why}");
}

#[tokio::test]
async fn an_inbox_row_is_found_or_the_exit_code_says_that_it_is_not() {
    let shop = shop::folder(&[]);
    handle(&shop, &shop::paid("p-1", 1)).await;
    let row = shop.run("inbox get p-1 -c @hapax.toml --json").await.json(0).remove(0);
    assert_eq!(
        (&row["consumer"], &row["id"], &row["state"]),
        (&"orders".into(), &"p-1".into(), &"done".into())
    );
    assert_eq!(row["sent_at"], "2026-01-01T00:00:00Z");
    let told = shop.run("inbox get p-1 -c @hapax.toml --consumer orders").await.exit(0);
    assert!(told.starts_with("orders p-1 done since "), "{told}");
    for command in ["inbox get P-1", "inbox why P-1", "inbox get p-1 --consumer others"] {
        let missing = shop.run(&format!("{command} -c @hapax.toml --json")).await;
        assert_eq!(missing.exit(1), "null\n");
        assert!(missing.stderr().contains("no record of"), "{missing}");
    }
}

#[tokio::test]
async fn case_12_what_was_purged_and_comes_again_is_ambiguous_and_not_handled_twice() {
    let shop = shop::folder(&[]);
    let now = r#"{"id":"new","type":"Paid","sent_at":"2200-01-01T00:00:00Z","order":1,"amount":1}"#;
    let old = shop::paid("old", 1);
    handle(&shop, &format!("{old}{now}\n")).await;
    execute(&shop, "UPDATE hapax_inbox SET processed_at = processed_at - 7200000000").await; // two hours

    refused(&shop, "inbox purge --consumer orders --keep 1h -c @hapax.toml").await;
    let kept = shop.run("inbox purge --consumer orders -c @hapax.toml --yes --json").await.json(0);
    assert_eq!(kept[0]["purged"], 0, "the configuration keeps rows for 14 days");
    let purged = shop
        .run("inbox purge --consumer orders --keep 1h -c @hapax.toml --yes --json")
        .await
        .json(0)
        .remove(0);
    assert_eq!((&purged["horizon"], &purged["purged"]), (&"2026-01-01T00:00:00Z".into(), &1.into()));
    shop.run("inbox get old -c @hapax.toml").await.exit(1);
    shop.run("inbox get new -c @hapax.toml").await.exit(0);

    let summary = handle(&shop, &old).await;
    assert_eq!(
        (&summary["handled"], &summary["dead"], &summary["ambiguous"]),
        (&0.into(), &1.into(), &1.into())
    );
    assert_eq!(dead(&shop, "--reason HX0038").await.len(), 1);
    assert_eq!(scalar(&shop, "SELECT payments FROM orders WHERE id = 1").await, 2);
}

#[tokio::test]
async fn a_consumer_that_has_only_a_dead_letter_without_an_id_is_renamed_with_it() {
    let shop = shop::folder(&[]);
    handle(&shop, "{\"type\":\"Paid\"}\n").await;
    shop.run("inbox rename orders sales -c @hapax.toml --yes").await.exit(0);
    assert_eq!(dead(&shop, "--consumer sales").await.len(), 1);
}

#[tokio::test]
async fn a_renamed_consumer_keeps_its_records() {
    let shop = shop::folder(&[]);
    let lines = shop::paid("p-1", 1) + &shop::paid("p-9", 9);
    handle(&shop, &lines).await;
    refused(&shop, "inbox rename orders sales -c @hapax.toml").await;
    let mistyped = shop.run("inbox rename ordres sales -c @hapax.toml --yes").await;
    assert_eq!(mistyped.exit(1), "");
    assert!(mistyped.stderr().contains("HX0060") && mistyped.stderr().contains("`ordres`"), "{mistyped}");
    let mistyped = shop.run("inbox purge --consumer ordres -c @hapax.toml --yes").await;
    assert_eq!(mistyped.exit(0), "0 rows removed; horizon none\n");
    assert_eq!(
        shop.run("inbox rename orders sales -c @hapax.toml --yes --json").await.exit(0),
        "{\"renamed\":2}\n"
    );
    shop.run("inbox get p-1 -c @hapax.toml").await.exit(1);
    shop.run("inbox get p-1 --consumer sales -c @hapax.toml").await.exit(0);
    assert_eq!(dead(&shop, "--consumer sales").await.len(), 1);

    let sales = shop::CONFIG.replace("consumers.orders", "consumers.sales");
    shop.write("hapax.toml", &sales);
    let summary = handle(&shop, &lines).await;
    assert_eq!((&summary["handled"], &summary["duplicates"]), (&0.into(), &2.into()));

    shop.write("hapax.toml", shop::CONFIG);
    handle(&shop, &shop::paid("p-2", 2)).await;
    let taken = shop.run("inbox rename orders sales -c @hapax.toml --yes").await;
    taken.exit(2);
    assert!(taken.stderr().contains("HX0064"), "{taken}");
}
