//! What is wrong with a configuration is said once, with code, place, cause and cure, before the first
//! message is taken.

mod program;
mod shop;

use program::{Ended, Folder};

/// A payment that would be handled if anything were.
const FROM_FILE: (&str, &str) = (r#"source = { queue = "orders" }"#, r#"source = { file = "lines.jsonl" }"#);

/// Must appear nowhere.
const PASSWORD: &str = "hunter2";

/// What is changed, and what is then said.
struct Mistake {
    from: &'static str,
    to: &'static str,
    code: &'static str,
    exit: i32,
    /// What the line holds that the error points at.
    line: &'static str,
    says: &'static str,
}

const fn mistake(
    from: &'static str,
    to: &'static str,
    code: &'static str,
    exit: i32,
    line: &'static str,
    says: &'static str,
) -> Mistake {
    Mistake { from, to, code, exit, line, says }
}

const MISTAKES: &[Mistake] = &[
    mistake("setup =", "stup =", "HX0002", 2, "stup", "Did you mean `setup`?"),
    mistake("sqlite:shop.db", "${NO_SUCH_VARIABLE}", "HX0003", 2, "${NO", "Set `NO_SUCH_VARIABLE`"),
    mistake("sqlite:shop.db", "${file:gone}", "HX0003", 2, "${file", "cannot be read"),
    mistake("\"schema.sql\"", "\"gone.sql\"", "HX0003", 2, "gone.sql", "Create the file"),
    mistake("\"apply\"", "true", "HX0004", 2, "migrate", "must be a string"),
    mistake("\"int\"", "\"integer\"", "HX0004", 2, "integer", "Did you mean `int`?"),
    mistake("attempts = 1000", "attempts = \"many\"", "HX0004", 2, "many", "must be a whole number"),
    mistake("expect_rows = 1\n", "", "HX0004", 2, "[[consumers.orders.on.Paid.sql]]", "nothing to match"),
    mistake("sqlite:shop.db", "oracle:shop.db", "HX0004", 2, "oracle", "Begin the URL with `sqlite:`"),
    mistake("retry =", "order = \"key\"\nretry =", "HX0004", 2, "order = \"key\"", "needs to know the key"),
    mistake(":order\"", ":odrer\"", "HX0005", 2, ":odrer", "Did you mean `order`?"),
    mistake("VALUES (:id,", "VALUES ('',", "HX0005", 2, "id = { json", "never used"),
    mistake("= :order", "= ?1 + :order", "HX0005", 2, "?1", "bind it to NULL"),
    mistake("UPDATE orders", "COMMIT; -- orders", "HX0005", 2, "COMMIT", "Hapax begins and commits"),
    mistake("INTO ledger", "INTO legder", "HX0006", 2, "legder", "no such table: legder"),
    mistake("UPDATE orders", "UPDTE orders", "HX0006", 2, "UPDTE", "syntax error"),
    mistake(
        "sqlite:shop.db",
        "redis://shop:hunter2@localhost",
        "HX0007",
        2,
        "redis",
        "does not commit together",
    ),
    mistake(
        "sqlite:shop.db",
        "mongodb://shop:hunter2@localhost/shop",
        "HX0007",
        2,
        "mongodb",
        "not available",
    ),
    mistake("retry =", "strategy = \"lazy\"\nretry =", "HX0007", 2, "lazy", "transactional"),
    mistake(
        "source = { file = \"lines.jsonl\" }",
        "source = { queue = \"orders\" }\ndead_letters = { to = \"orders\" }",
        "HX0004",
        2,
        "dead_letters",
        "Name another queue",
    ),
    mistake("version = 1", "version = 2", "HX0008", 2, "version", "reads `version = 1`"),
    mistake("\"json:/id\"", "\"property:correlation_id\"", "HX0009", 2, "correlation", "shared by different"),
    mistake("sqlite:shop.db", "sqlite:no/such/folder/shop.db", "HX0010", 3, "no/such", "cannot connect"),
    mistake(
        "sqlite:shop.db",
        "postgres://shop:hunter2@127.0.0.1:1/shop",
        "HX0010",
        3,
        "127.0.0.1",
        "refused",
    ),
    mistake(
        "\"apply\"\nsetup = \"schema.sql\"",
        "\"check\"",
        "HX0010",
        3,
        "url",
        "there is no database file",
    ),
    mistake("lines.jsonl", "gone.jsonl", "HX0018", 2, "gone.jsonl", "cannot read"),
    mistake("setup = \"schema.sql\"", "setup = \"schema.sql\"\npool = 2", "HX0020", 2, "pool", "4 workers"),
    mistake("version = 1", "version = 1\nname = \"", "HX0001", 2, "name", "not valid TOML"),
];

/// An HTTP handler instead of the statements.
const HTTP: &str = "[consumers.orders.on.Paid.http]\nurl = \"https://mail.internal/send\"\nheaders = { Authorization = \"Bearer hunter2\" }\n";

/// A publish beside the statements.
const PUBLISH: &str = r#"
[[consumers.orders.on.Paid.publish]]
to = { broker = "rabbit", exchange = "events", routing_key = "order.paid" }
type = "OrderPaid"
key = ":order"
body = { order = ":order" }

[brokers.rabbit]
kind = "rabbitmq"
url = "amqp://shop:hunter2@localhost"
"#;

/// A broker that nobody can reach.
const UNREACHABLE: &str = r#"
[brokers.rabbit]
kind = "rabbitmq"
url = "amqp://shop:hunter2@127.0.0.1:1"
"#;

fn folder(config: &str) -> Folder {
    let shop = shop::folder(&[]);
    shop.write("hapax.toml", config);
    shop.write("lines.jsonl", &shop::paid("p-1", 1));
    shop
}

/// What a terminal shows as running text: without the frame, and not broken into lines.
fn running_text(ended: &Ended) -> String {
    let framed = ended.stderr();
    framed.replace(['│', '╭', '─', '╰', '·', '┬'], " ").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Asserts that a run said one thing, and that nothing was handled.
async fn says(shop: &Folder, ended: &Ended, code: &str, exit: i32, said: &str) {
    assert_eq!(ended.exit(exit), "", "no summary: {ended}");
    let text = running_text(ended);
    assert_eq!(text.matches(" × ").count(), 1, "one error: {ended}");
    assert!(text.contains(&format!("{code} × ")), "{code} is not said: {ended}");
    assert!(text.contains(said), "`{said}` is not said: {ended}");
    assert!(text.contains(" help: "), "no cure: {ended}");
    assert!(!text.contains(PASSWORD), "a secret is shown: {ended}");
    if !shop.path("shop.db").exists() {
        return;
    }
    let handled = "SELECT count(*) FROM hapax_inbox";
    let handled: Result<i64, _> =
        sqlx::query_scalar(handled).fetch_one(&mut shop.database("shop.db").await).await;
    assert_eq!(handled.unwrap_or(0), 0, "something was handled: {ended}");
}

/// The place as `hapax.toml:12`, of the line that holds a text.
fn place(config: &str, line: &str) -> String {
    let number = config.lines().position(|text| text.contains(line)).expect("the line is there") + 1;
    format!("hapax.toml:{number}:")
}

#[tokio::test]
async fn each_mistake_is_one_error_with_code_place_cause_and_cure() {
    for Mistake { from, to, code, exit, line, says: said } in MISTAKES {
        let mut changes = vec![FROM_FILE, (*from, *to)];
        if *code == "HX0004" && to.starts_with("order") {
            changes.push(("key = \"json:/order\"\n", ""));
        }
        let config = shop::changed(&changes);
        let shop = folder(&config);
        let ended = shop.run("run @hapax.toml --json").await;
        says(&shop, &ended, code, *exit, said).await;
        let place = place(&config, line);
        assert!(running_text(&ended).contains(&place), "{place} is not said: {ended}");
    }
    let shop = folder(&shop::changed(&[FROM_FILE]));
    assert_eq!(shop.run("run @hapax.toml --json").await.json(0)[0]["handled"], 1, "without a mistake");
}

#[tokio::test]
async fn a_call_in_the_transaction_is_refused_at_its_place() {
    let statements = &shop::CONFIG[shop::CONFIG.find("[consumers.orders.on.Paid.params]").expect("there")..];
    let http = shop::changed(&[FROM_FILE, (statements, HTTP)]);
    let shop = folder(&http);
    let ended = shop.run("run @hapax.toml").await;
    says(&shop, &ended, "HX0004", 2, "cannot join the transaction").await;
    assert!(running_text(&ended).contains(&place(&http, "on.Paid.http")), "{ended}");
}

#[cfg(not(feature = "mongodb"))]
#[tokio::test]
async fn a_store_whose_driver_was_left_out_is_refused_with_the_feature() {
    let shop = folder(&shop::changed(&[]));
    let ended = shop.run("outbox list --store mongodb://shop:hunter2@localhost/shop").await;
    says(&shop, &ended, "HX0007", 2, "--features mongodb").await;
}

#[tokio::test]
async fn a_publish_that_leads_nowhere_is_refused_at_its_place() {
    for (from, to, said) in [
        ("broker = \"rabbit\"", "broker = \"rabit\"", "Did you mean `rabbit`?"),
        ("broker = \"rabbit\", ", "", "mixes or lacks the keys that a destination is told by"),
        ("exchange = \"events\", ", "exchange = \"events\", queue = \"q\", ", "mixes or lacks"),
        (", exchange = \"events\", routing_key = \"order.paid\"", "", "mixes or lacks"),
    ] {
        let publish = PUBLISH.replacen(from, to, 1);
        assert_ne!(publish, PUBLISH);
        let config = shop::changed(&[FROM_FILE]) + &publish;
        let shop = folder(&config);
        let ended = shop.run("run @hapax.toml").await;
        says(&shop, &ended, "HX0004", 2, said).await;
        assert!(running_text(&ended).contains(&place(&config, "to = {")), "{ended}");
    }
    let undeclared = shop::changed(&[FROM_FILE]) + &PUBLISH.replacen("\":order\" }", "\":odrer\" }", 1);
    let shop = folder(&undeclared);
    says(&shop, &shop.run("run @hapax.toml").await, "HX0005", 2, "Did you mean `order`?").await;
}

#[tokio::test]
async fn a_consumer_that_cannot_start_keeps_the_others_from_starting() {
    let second = shop::CONFIG[shop::CONFIG.find("[consumers.orders]").expect("there")..]
        .replace("consumers.orders", "consumers.second");
    let rabbit = second.replace("{ queue = \"orders\" }", "{ broker = \"rabbit\", queue = \"orders\" }");
    for (second, code, exit, line) in [
        (second.replace("INTO ledger", "INTO legder"), "HX0006", 2, "legder"),
        (second.replace("{ queue = \"orders\" }", "{ file = \"gone.jsonl\" }"), "HX0018", 2, "gone.jsonl"),
        (rabbit + UNREACHABLE, "HX0015", 3, "amqp:"),
    ] {
        let config = shop::changed(&[FROM_FILE]) + &second;
        let shop = folder(&config);
        let ended = shop.run("run @hapax.toml --json").await;
        says(&shop, &ended, code, exit, "").await;
        assert!(running_text(&ended).contains(&place(&config, line)), "{ended}");
    }
}

#[tokio::test]
async fn a_schema_that_is_too_old_or_too_new_is_refused() {
    for (change, code) in [
        ("DELETE FROM hapax_schema_version", "HX0012"),
        ("INSERT INTO hapax_schema_version (version, name, applied_at) VALUES (99, 'later', 0)", "HX0013"),
    ] {
        let shop = folder(&shop::changed(&[FROM_FILE, ("\"apply\"\nsetup = \"schema.sql\"", "\"check\"")]));
        shop.run("migrate -c @hapax.toml").await.exit(0);
        sqlx::raw_sql(change).execute(&mut shop.database("shop.db").await).await.expect(change);
        let ended = shop.run("run @hapax.toml").await;
        says(&shop, &ended, code, 2, "hapax.toml:4:").await;
        let listed = shop.run("dead list -c @hapax.toml").await;
        listed.exit(2);
        assert!(listed.stderr().contains(code), "{listed}");
    }
}

#[tokio::test]
async fn secrets_are_never_printed() {
    let shop = folder(&shop::changed(&[FROM_FILE, ("\"sqlite:shop.db\"", "\"${STORE}\"")]));
    shop.write("dsn", "postgres://shop:hunter2@127.0.0.1:1/shop");
    for store in [
        "postgres://shop:hunter2@127.0.0.1:1/shop",
        "postgres://shop:hunter2@127.0.0.1:hunter2/shop",
        "postgres://shop:hunter2@[::1/shop",
        "postgres://127.0.0.1:1/shop?user=shop&password=hunter2",
        "oracle://shop:hunter2@127.0.0.1:1/shop",
    ] {
        for command in ["run @hapax.toml", "inbox get p-1 --consumer orders", "dead list --json", "migrate"] {
            let subject = shop.hapax(command).env("STORE", store).env("HAPAX_STORE", store);
            let ended = Ended::of(subject.start().expect("it starts")).await;
            assert!(matches!(ended.code, Some(2 | 3)), "{ended}");
            assert!(!ended.stderr().contains(PASSWORD), "{ended}");
        }
    }
    for broker in [
        "amqp://shop:hunter2@127.0.0.1:1",
        "amqp://shop:hunter2@127.0.0.1:hunter2",
        "amqp://shop:hunter2@[::1",
        "redis://shop:hunter2@127.0.0.1",
    ] {
        let subject = shop.hapax("send @lines.jsonl --queue orders --broker").arg(broker);
        let ended = Ended::of(subject.start().expect("it starts")).await;
        assert!(matches!(ended.code, Some(2 | 3)), "{ended}");
        assert!(!ended.stderr().contains(PASSWORD), "{}", ended.stderr());
    }
}
