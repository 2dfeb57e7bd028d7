//! What a user sees for a configuration: the structures it becomes, or the report about it.

use std::io;
use std::path::Path;
use std::time::Duration;

use hapax::Code;
use miette::{GraphicalReportHandler, GraphicalTheme};
use proptest::prelude::*;

use super::Config;
use super::available::unavailable;
use super::broker::{BrokerKind, Connection};
use super::consumer::Consumer;
use super::field::{Field, Id, Pointer, Property, SentAt};
use super::handler::OnMismatch;
use super::interpolate::Surroundings;
use super::parameter::ParamType;
use super::policy::{Policy, Retry};
use super::problem::{Located, Report};
use super::secret::Secret;
use super::source::{Lines, Source};
use super::store::StoreKind;

/// A configuration that is right; each test spoils one thing.
const GOOD: &str = r#"
version = 1
[store]
url = "sqlite:shop.db"
[brokers.rabbit]
kind = "rabbitmq"
url = "amqp://localhost"
[consumers.orders]
source = { broker = "rabbit", queue = "orders" }
[consumers.orders.on.Paid]
params.id = { json = "/id", type = "int" }
sql = [{ run = "UPDATE orders SET paid = 1 WHERE id = :id" }]
"#;

fn around() -> Surroundings<'static> {
    Surroundings {
        variable: &|name| match name {
            "DATABASE_URL" => Some("postgres://shop:hunter2@db/shop".to_owned()),
            "POOL" => Some("12".to_owned()),
            "HUNTER" => Some("hunter2".to_owned()),
            _ => None,
        },
        file: &|path| match path.to_str() {
            Some("/etc/hapax/gone") => Err(io::ErrorKind::NotFound.into()),
            Some("/etc/hapax/empty") => Ok("\n".to_owned()),
            Some("/run/secrets/mq-user") => Ok("shop\n".to_owned()),
            Some("/etc/ssl/ca.pem") => Ok("-----BEGIN CERTIFICATE-----\n".to_owned()),
            _ => Ok(format!("hunter2 of {}\n", path.display())),
        },
    }
}

fn parse(text: &str) -> Result<Config, Report> {
    Config::parse("hapax.toml", text, Path::new("/etc/hapax"), &around())
}

fn good(text: &str) -> Config {
    parse(text).unwrap_or_else(|report| panic!("{}", render(&report)))
}

fn render(report: &Report) -> String {
    let mut rendered = String::new();
    GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
        .with_width(400)
        .render_report(&mut rendered, report)
        .expect("a string takes everything");
    rendered
}

/// Asserts that a text is refused with one problem, whose report shows the code, the place and the cure, and
/// no secret.
#[track_caller]
fn refused(text: &str, code: Code, place: &str, says: &[&str]) {
    let report = parse(text).map(|config| config.consumers.len()).expect_err("refused");
    let rendered = render(&report);
    let codes: Vec<_> = report.problems().map(|located| located.problem().code).collect();
    assert_eq!(codes, [code], "{rendered}");
    let (line, column) = report.problems().next().and_then(Located::line_and_column).expect("a place");
    assert_eq!(format!("{line}:{column}"), place, "{rendered}");
    for said in [code.as_str(), &format!("hapax.toml:{place}"), "help: "].iter().chain(says) {
        assert!(rendered.contains(said), "`{said}` is missing in:\n{rendered}");
    }
    assert!(!rendered.contains("hunter2"), "{rendered}");
}

/// [`refused`] for the good configuration with one text replaced by another.
#[track_caller]
fn spoiled(from: &str, to: &str, code: Code, place: &str, says: &[&str]) {
    assert!(GOOD.contains(from), "{from}");
    refused(&GOOD.replacen(from, to, 1), code, place, says);
}

#[test]
fn the_documented_configuration_is_read_whole() {
    let config = good(include_str!("../../tests/fixtures/full.toml"));
    assert_eq!(config.store.kind, StoreKind::Postgres);
    assert_eq!(config.store.url.to_string(), "postgres://shop:***@db/shop");

    let Connection::RabbitMq(rabbit) = &config.brokers["rabbit"].connection else { panic!("RabbitMQ") };
    assert_eq!(rabbit.username, Some(Secret::new("shop")));
    assert_eq!(rabbit.password, Some(Secret::new("hunter2 of /run/secrets/mq-pass")));
    assert_eq!(rabbit.tls.as_ref().map(|tls| tls.ca.as_path()), Some(Path::new("/etc/ssl/ca.pem")));
    let Connection::Kafka(kafka) = &config.brokers["log"].connection else { panic!("Kafka") };
    assert_eq!(kafka.servers, ["kafka-1:9093"]);
    assert_eq!(kafka.properties["security.protocol"].expose(), "ssl");

    let orders = &config.consumers["orders"];
    let Source::Queue { prefetch: Some(prefetch), .. } = &orders.source else {
        panic!("{:?}", orders.source)
    };
    assert_eq!(prefetch.value, 400);
    assert_eq!(orders.id.value, Id::Fields(vec![Field::Property(Property::MessageId)]));
    assert_eq!(orders.sent_at.as_deref(), Some(&SentAt::Field(pointer("/sent_at"))));
    assert_eq!(orders.key.as_deref(), Some(&pointer("/order_id")));
    let paid = &orders.on["PaymentReceived"];
    assert_eq!(paid.params["order_id"].kind, ParamType::Int);
    assert!(paid.params["note"].nullable);
    assert_eq!(paid.sql[0].run.parameters(), ["amount", "note", "order_id"]);
    assert_eq!((paid.sql[0].expect_rows, paid.sql[0].on_mismatch), (Some(1), OnMismatch::Reject));
    assert_eq!(paid.publish[0].to.routing_key, "order.paid");
    assert_eq!(
        paid.published().map(|(name, _)| name).collect::<Vec<_>>(),
        ["order_id", "amount", "order_id"]
    );

    let emails = &config.consumers["emails"];
    assert_eq!(emails.policy.lease.as_deref(), Some(&Duration::from_secs(30)));
    let http = emails.on["OrderPaid"].http.as_ref().expect("HTTP");
    assert_eq!(http.headers["Authorization"].expose(), "Bearer hunter2 of /run/secrets/mail");
    assert_eq!(http.retry_on.len(), 4);
    assert_eq!(config.admin.listen.as_deref().map(ToString::to_string).as_deref(), Some("127.0.0.1:9464"));

    assert!(config.notes().is_empty());
    assert!(!format!("{config:#?}").contains("hunter2"));
}

fn prefetch(consumer: &Consumer) -> Option<u16> {
    match &consumer.source {
        Source::Queue { prefetch, .. } => prefetch.as_ref().map(|prefetch| prefetch.value),
        _ => None,
    }
}

fn pointer(text: &str) -> Field {
    Field::Json(Pointer::parse(text).expect("a pointer"))
}

#[test]
fn what_this_release_cannot_do_is_refused_all_at_once() {
    let config = good(include_str!("../../tests/fixtures/full.toml"));
    let kafka: &[usize] = if cfg!(feature = "kafka") { &[] } else { &[20] };
    let report = config.origin.report(unavailable(&config));
    let refused = report.iter().flat_map(Report::problems);
    let lines: Vec<_> = refused.map(|located| located.line_and_column().expect("a place").0).collect();
    assert_eq!(lines, kafka);
    assert!(unavailable(&config).iter().all(|problem| problem.code == Code::NotAvailable));
    for strategy in ["lazy", "natural"] {
        let config =
            good(&GOOD.replacen("source", &format!("strategy = \"{strategy}\"\nlease = \"30s\"\nsource"), 1));
        assert_eq!(unavailable(&config).len(), 1, "{strategy}");
    }
    let mysql = GOOD.replacen("sqlite:shop.db", "mysql://db/shop", 1);
    assert_eq!(unavailable(&good(&mysql)).len(), usize::from(!cfg!(feature = "mysql")));
    let nats = GOOD.replacen("kind = \"rabbitmq\"", "kind = \"nats\"", 1).replacen("amqp://", "nats://", 1);
    assert_eq!(unavailable(&good(&nats)).len(), usize::from(!cfg!(feature = "nats")));
}

#[test]
fn the_printed_defaults_are_the_defaults() {
    let printed = good(Config::defaults());
    let bare = good(
        "version = 1\nstore.url = \"sqlite:hapax.db\"\n[consumers.example]\nsource.queue = \"example\"\n[consumers.\
         example.on.Example]\nparams.id = { json = \"/id\", type = \"int\" }\nsql = [{ run = \"UPDATE example SET \
         seen = 1 WHERE id = :id\" }]\n",
    );
    assert_eq!(printed.store, bare.store);
    assert_eq!(printed.brokers, bare.brokers);
    assert_eq!(printed.consumers, bare.consumers);
    assert_eq!(printed.consumers["example"].policy, Policy::default());
    assert_eq!(printed.relay, bare.relay);
    assert_eq!(printed.admin, bare.admin);
    assert_eq!(printed.log, bare.log);
    assert_eq!(unavailable(&printed), []);
}

#[test]
fn every_key_is_among_the_printed_defaults() {
    let everywhere = include_str!("../../tests/fixtures/full.toml")
        .lines()
        .map(|line| if line.starts_with('[') { format!("{line}\nxyz = 1") } else { line.to_owned() })
        .collect::<Vec<_>>()
        .join("\n")
        .replace("retry = { attempts", "retry = { xyz = 1, attempts")
        .replace("retention = { keep", "retention = { xyz = 1, keep")
        .replace("batch = { max", "batch = { xyz = 1, max")
        .replace("tls = { ca", "tls = { xyz = 1, ca")
        .replace("prefetch = 400 }", "xyz = 1 }")
        .replace("id\", type = \"int\" }", "id\", type = \"int\", xyz = 1 }");
    let report = parse(&everywhere).expect_err("unknown keys");
    let mut checked = 0;
    for problem in
        report.problems().map(Located::problem).filter(|problem| problem.code == Code::ConfigUnknownKey)
    {
        // What this release cannot do is not offered.
        if problem.message.contains("publish") {
            continue;
        }
        for key in problem.help.split('`').skip(1).step_by(2) {
            let named = [
                format!("{key} ="),
                format!("[{key}]"),
                format!("[{key}."),
                format!(".{key}]"),
                format!(".{key}."),
            ];
            let known = named.iter().any(|named| Config::defaults().contains(named));
            assert!(known || key == "publish", "`{key}` of: {}", problem.message);
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked}");
}

#[test]
fn a_consumer_overrides_the_defaults_key_by_key() {
    let config = good(&format!(
        "{}\n[defaults]\nretry = {{ attempts = 9, max = \"1h\" }}\nbatch.max = 7\nretention.keep = \"2d\"\n",
        GOOD.replacen(
            "source",
            "retry.first = \"2s\"\nretention = { slack = \"0s\" }\nconcurrency = 2\nsource",
            1
        )
    ));
    let policy = &config.consumers["orders"].policy;
    let retry =
        Retry { attempts: 9, first: Duration::from_secs(2), max: Duration::from_hours(1), jitter: true };
    assert_eq!(policy.retry, retry);
    assert_eq!((policy.batch.max, policy.concurrency.value), (7, 2));
    assert_eq!((policy.retention.keep, policy.retention.slack), (Duration::from_hours(48), Duration::ZERO));
    assert_eq!(prefetch(&config.consumers["orders"]), None);
}

#[test]
fn a_source_has_one_form() {
    for (source, form) in [
        (r#"{ file = "-" }"#, Source::File(Lines::StandardInput.into())),
        (r#"{ file = "in.jsonl" }"#, Source::File(Lines::File("/etc/hapax/in.jsonl".into()).into())),
        (r#"{ queue = "q" }"#, Source::Embedded { queue: "q".to_owned().into() }),
    ] {
        let fields = "id = \"json:/id\"\ntype = \"always:Paid\"\nsource";
        let config = good(
            &GOOD
                .replacen(r#"{ broker = "rabbit", queue = "orders" }"#, source, 1)
                .replacen("source", fields, 1),
        );
        assert_eq!(config.consumers["orders"].source, form);
    }
    for mixed in [
        r#"{ file = "-", queue = "q" }"#,
        "{}",
        r#"{ broker = "rabbit" }"#,
        r#"{ queue = "q", prefetch = 1 }"#,
    ] {
        let from = r#"{ broker = "rabbit", queue = "orders" }"#;
        spoiled(
            from,
            mixed,
            Code::ConfigWrongValue,
            "9:10",
            &["`consumers.orders.source` mixes or lacks", "{ queue = … }"],
        );
    }
}

#[test]
fn redis_is_no_store() {
    let redis = GOOD.replacen("sqlite:shop.db", "redis://shop:hunter2@cache", 1);
    refused(
        &redis,
        Code::NotAvailable,
        "4:7",
        &["does not commit together", "the database that your handlers change"],
    );
}

/// The good configuration with another broker and another source.
fn on(broker: &str, source: &str) -> String {
    GOOD.replacen("kind = \"rabbitmq\"\nurl = \"amqp://localhost\"", broker, 1).replacen(
        r#"{ broker = "rabbit", queue = "orders" }"#,
        source,
        1,
    )
}

#[test]
fn a_broker_is_told_by_its_kind_or_its_url() {
    let queue = r#"{ broker = "rabbit", queue = "orders" }"#;
    for (broker, kind) in [
        ("url = \"amqps://mq\"", BrokerKind::RabbitMq),
        ("url = \"kafka://one:9092,two\"", BrokerKind::Kafka),
        ("kind = \"kafka\"\nservers = [\"one\"]", BrokerKind::Kafka),
        ("url = \"nats://n\"\ntoken = \"hunter2\"", BrokerKind::Nats),
        ("url = \"sqs://localhost:4566?region=eu-central-1\"", BrokerKind::Sqs),
        ("kind = \"sqs\"", BrokerKind::Sqs),
        ("kind = \"redis\"\nurl = \"rediss://r\"", BrokerKind::Redis),
    ] {
        let config = good(&on(broker, queue));
        assert_eq!(config.brokers["rabbit"].kind.value, kind, "{broker}");
        assert!(!format!("{config:?}").contains("hunter2"), "{broker}");
    }
    let Connection::Kafka(kafka) =
        &good(&on("url = \"kafka://one:9092,two\"", queue)).brokers["rabbit"].connection
    else {
        panic!("Kafka")
    };
    assert_eq!(kafka.servers, ["one:9092", "two"]);
    for (broker, place, says) in [
        ("kind = \"nats\"\nurl = \"amqp://mq\"", "7:7", "is no NATS URL"),
        ("url = \"http://mq\"", "6:7", "is no URL of a broker"),
        ("kind = \"redis\"", "5:10", "lacks `url`"),
        ("kind = \"kafka\"", "5:10", "lacks `servers`"),
        ("kind = \"kafka\"\nservers = []", "7:11", "is empty"),
        ("url = \"kafka://a\"\nservers = [\"b\"]", "7:11", "given twice"),
        ("kind = \"sqs\"\naccess_key_id = \"hunter2\"", "5:10", "half of a key"),
        ("", "5:10", "lacks `kind`"),
    ] {
        refused(&on(broker, queue), Code::ConfigWrongValue, place, &[says]);
    }
}

#[test]
fn a_source_has_the_form_that_its_broker_has() {
    let [rabbit, kafka, nats] = ["amqp", "kafka", "nats"].map(|scheme| format!("url = \"{scheme}://host\""));
    for (broker, source) in [
        (&kafka, r#"{ broker = "rabbit", topics = ["a", "b"], group = "orders" }"#),
        (&kafka, r#"{ broker = "rabbit", queue = "a" }"#),
        (&nats, r#"{ broker = "rabbit", stream = "a", consumer = "b" }"#),
    ] {
        good(&on(broker, source));
    }
    for (broker, source, says) in [
        (&rabbit, r#"{ broker = "rabbit", topics = ["a"] }"#, "another form"),
        (&kafka, r#"{ broker = "rabbit", stream = "a" }"#, "another form"),
        (&nats, r#"{ broker = "rabbit", topics = ["a"] }"#, "another form"),
        (&rabbit, r#"{ broker = "rabbit", queue = "a", group = "b" }"#, "RabbitMQ has no groups"),
        (&kafka, r#"{ broker = "rabbit", queue = "a", prefetch = 9 }"#, "Kafka has no prefetch"),
        (&nats, r#"{ broker = "rabbit", stream = "a", consumer = "b", group = "b" }"#, "mixes or lacks"),
        (&kafka, r#"{ broker = "rabbit", topics = [] }"#, "is empty"),
    ] {
        let report = parse(&on(broker, source)).expect_err(source);
        assert!(render(&report).contains(says), "{source}: {}", render(&report));
    }
}

#[test]
fn ids_are_fields_and_lists_of_fields() {
    let with_id = |id: &str| GOOD.replacen("source", &format!("id = {id}\nsource"), 1);
    let id = good(&with_id(r#"["json:/tenant", "header:X-Event"]"#)).consumers["orders"].id.value.clone();
    assert_eq!(id, Id::Fields(vec![pointer("/tenant"), Field::Header("X-Event".to_owned())]));
    assert_eq!(good(&with_id("\"cloudevents\"")).consumers["orders"].id.value, Id::CloudEvents);
    for id in
        ["property:correlation_id", "property:delivery_tag", "header:correlation-id", "json:/correlationId"]
    {
        let cure = "the id that the producer gave";
        refused(&with_id(&format!("\"{id}\"")), Code::NotAnIdentity, "9:6", &["is no identity", cure]);
        refused(&with_id(&format!("[\"json:/a\", \"{id}\"]")), Code::NotAnIdentity, "9:18", &[cure]);
    }
    for id in
        ["\"message_id\"", "[]", r#"["json:/a", "json:/a"]"#, "\"json:\"", "\"property:x\"", "\"header:\""]
    {
        refused(&with_id(id), Code::ConfigWrongValue, "9:6", &[]);
    }
}

#[test]
fn hx0001_a_file_that_cannot_be_read_or_is_not_toml() {
    let report = Config::load(Path::new("/etc/hapax/gone"), &around()).expect_err("gone");
    let rendered = render(&report);
    for said in ["HX0001", "`/etc/hapax/gone` cannot be read", "help: Check the path"] {
        assert!(rendered.contains(said), "{rendered}");
    }
    let unfinished = "version = 1\n[store]\nurl = \"postgres://me:hunter2@db\"\npool =\n";
    refused(unfinished, Code::ConfigUnreadable, "4:7", &["not valid TOML", "pool ="]);
}

#[test]
fn hx0002_an_unknown_key_names_the_nearest() {
    spoiled(
        "[store]",
        "[store]\npol = 3",
        Code::ConfigUnknownKey,
        "4:1",
        &["unknown key `pol` in `store`", "Did you mean `pool`?"],
    );
    spoiled(
        "version",
        "xyz = 1\nversion",
        Code::ConfigUnknownKey,
        "2:1",
        &["at the top", "Known here: `admin`"],
    );
    let from = r#"{ json = "/id","#;
    spoiled(from, r#"{ json = "/id", nulable = true,"#, Code::ConfigUnknownKey, "11:29", &["`nullable`"]);
    spoiled("kind", "pasword = \"hunter2\"\nkind", Code::ConfigUnknownKey, "6:1", &["`password`"]);
}

#[test]
fn hx0003_a_variable_or_a_file_that_is_missing() {
    spoiled(
        "sqlite:shop",
        "sqlite:${NOPE}",
        Code::ConfigMissingValue,
        "4:15",
        &["`NOPE` is not set", "Set `NOPE`"],
    );
    spoiled(
        "sqlite:shop.db",
        "${file:gone}",
        Code::ConfigMissingValue,
        "4:8",
        &["/etc/hapax/gone", "Create the file"],
    );
    spoiled(
        "url = \"sqlite:shop.db\"",
        "url_file = \"gone\"",
        Code::ConfigMissingValue,
        "4:12",
        &["Create the file"],
    );
    spoiled("[store]", "[store]\nsetup = \"gone\"", Code::ConfigMissingValue, "4:9", &["Create the file"]);
}

#[test]
fn hx0004_a_value_of_the_wrong_type_or_out_of_range() {
    for (from, to, place, says) in [
        ("[store]", "[store]\npool = 0", "4:8", "a whole number from 1 to 1000"),
        ("[store]", "[store]\npool = \"8\"", "4:8", "`store.pool` must be a whole number, and is a string"),
        ("[store]", "[store]\npool = \"${HUNTER}\"", "4:8", "a whole number from 1 to 1000"),
        ("[store]", "[store]\nschema = \"Shop\"", "4:10", "lower-case letters"),
        ("[store]", "[store]\nmigrate = \"aply\"", "4:11", "Did you mean `apply`?"),
        ("sqlite:shop.db", "oracle://me:hunter2@db", "4:7", "names no database"),
        ("url = \"sqlite:shop.db\"", "", "3:2", "`store` lacks `url`"),
        ("amqp://localhost", "http://localhost", "7:7", "`amqp://`"),
        ("\"rabbitmq\"", "\"rabitmq\"", "6:8", "Did you mean `rabbitmq`?"),
        ("\"rabbitmq\"", "\"rabbitmq\"\nusername = \"a\"\nusername_file = \"b\"", "7:12", "Keep one"),
        ("broker = \"rabbit\"", "broker = \"rabit\"", "9:21", "Did you mean `rabbit`?"),
        ("queue = \"orders\"", "topics = [\"a\"], group = \"g\"", "9:21", "Write `queue = …`"),
        ("source", "retry.attempts = 0\nsource", "9:18", "from 1 to 1000"),
        ("source", "retry = { first = \"1h\" }\nsource", "9:9", "longer than `max`"),
        ("source", "concurrency = 0\nsource", "9:15", "from 1 to 1000"),
        ("source", "batch.max = 0\nsource", "9:13", "from 1 to 10000"),
        ("source", "timeout = \"0s\"\nsource", "9:11", "no shorter than 1ms"),
        ("source", "timeout = \"20\"\nsource", "9:11", "`1h 30m`"),
        ("source", "timeout = 20\nsource", "9:11", "must be a string, and is an integer"),
        ("source", "lease = \"0s\"\nsource", "9:9", "no shorter than 1ms"),
        ("source", "strategy = \"eager\"\nsource", "9:12", "Add `lease = \"30s\"`"),
        ("source", "retention.keep = \"59s\"\nsource", "9:18", "no shorter than 1m"),
        ("source", "retention.keep = \"1000y\"\nsource", "9:18", "no longer than"),
        ("source", "max_payload = \"2TB\"\nsource", "9:15", "`4MiB`"),
        ("source", "order = \"key\"\nsource", "9:9", "Add `key = \"json:/pointer\"`"),
        ("source", "type = \"always:Piad\"\nsource", "9:8", "Did you mean `Paid`?"),
        ("source", "payload = \"/a\"\nsource", "9:11", "`json:` for the whole body"),
        ("source", "key = \"property:x\"\nsource", "9:7", "`property:key`, `header:NAME`"),
        ("\"/id\"", "\"id\"", "11:22", "Begin it with `/`"),
        ("\"int\"", "\"integer\"", "11:36", "`int`"),
        ("sql = [{", "sql = [{ expect_rows = -1,", "12:24", "from 0 to"),
        ("sql = [{", "sql = [{ on_mismatch = \"retry\",", "12:8", "Add `expect_rows`"),
        ("sql = [{", "http.url = \"https://x\"\nsql = [{", "12:1", "Split it into two"),
        ("sql = [{", "http.url = \"ftp://x\"\nsql = [{", "12:12", "`https://`"),
        ("consumers.orders]", "consumers.\"or ders\"]", "8:12", "1 to 64 letters"),
        ("[store]", "[admin]\ndrain = \"0s\"\n[store]", "4:9", "no shorter than 1ms"),
        ("[store]", "[admin]\nlisten = \"localhost\"\n[store]", "4:10", "`127.0.0.1:9464`"),
        ("[store]", "[admin]\ntoken_file = \"empty\"\n[store]", "4:14", "Write a token"),
        ("sqlite:shop.db", "${DATABASE-URL}", "4:8", "write `$${`"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        // A renamed consumer has lost its handlers: keep to the one mistake.
        let text = if to.contains("or ders") {
            text.replace("consumers.orders.on", "consumers.\"or ders\".on")
        } else {
            text
        };
        refused(&text, Code::ConfigWrongValue, place, &[says]);
    }
}

#[test]
fn a_consumer_without_a_handler_and_a_handler_without_work_are_refused() {
    let without_handlers = &GOOD[..GOOD.find("[consumers.orders.on").expect("handlers")];
    refused(
        without_handlers,
        Code::ConfigWrongValue,
        "8:12",
        &["`consumers.orders` lacks `on`", "Add a handler"],
    );
    let without_work = GOOD.lines().filter(|line| !line.starts_with("sql") && !line.starts_with("params"));
    let without_work: Vec<_> = without_work.collect();
    refused(&without_work.join("\n"), Code::ConfigWrongValue, "10:22", &["does nothing", "Add a statement"]);
}

#[test]
fn a_line_of_a_file_has_only_its_body() {
    let file = GOOD.replacen(r#"{ broker = "rabbit", queue = "orders" }"#, r#"{ file = "-" }"#, 1);
    let report = parse(&file).expect_err("no id");
    assert_eq!(report.problems().count(), 2, "{}", render(&report));
    let header = file.replacen("source", "id = \"header:X\"\ntype = \"json:/type\"\nsource", 1);
    refused(
        &header,
        Code::ConfigWrongValue,
        "9:6",
        &["no properties and no headers to take `id`", "json:/pointer"],
    );
}

#[test]
fn hx0005_statements_and_parameters_that_do_not_match() {
    for (from, to, place, says) in [
        (":id", ":idd", "12:55", "the parameter `:idd` is not declared"),
        ("= :id", "= 1", "11:13", "the parameter `id` is never used"),
        (":id", ":id; DELETE FROM x", "12:60", "its own `run`"),
        ("paid = 1", "paid = '1", "12:42", "a string is never closed"),
        ("paid = 1", "paid = $1", "12:42", "Parameters have names"),
        ("paid = 1", "paid = ?", "12:42", "bind it to NULL"),
        ("UPDATE", "/* now */ commit; --", "12:27", "Hapax begins and commits"),
        ("UPDATE", "SET x = 1 --", "12:17", "Write `SET LOCAL"),
    ] {
        let text = GOOD.replacen(from, to, 1);
        let report = parse(&text).expect_err("refused");
        let rendered = render(&report);
        assert!(
            report.problems().all(|located| located.problem().code == Code::StatementParameter),
            "{rendered}"
        );
        let places: Vec<_> = report.problems().filter_map(Located::line_and_column).collect();
        let places: Vec<_> = places.iter().map(|(line, column)| format!("{line}:{column}")).collect();
        assert!(places.contains(&place.to_owned()), "{places:?}: {rendered}");
        assert!(rendered.contains("HX0005") && rendered.contains(says), "{rendered}");
    }
}

#[test]
fn hx0008_another_version_is_refused_before_anything_else() {
    spoiled("version = 1", "version = 2\nxyz = 1", Code::ConfigVersion, "2:11", &["`version = 1`"]);
    spoiled("version = 1", "", Code::ConfigVersion, "1:1", &["`version = 1`"]);
}

#[test]
fn every_mistake_of_a_file_is_reported_in_its_order() {
    let text = GOOD.replacen("[store]", "[store]\npool = 0\nxyz = 1", 1).replacen(
        "source",
        "concurrency = 0\nsource",
        1,
    );
    let report = parse(&text).expect_err("three mistakes");
    let lines: Vec<_> = report.problems().map(Located::one_line).collect();
    assert_eq!(
        lines,
        [
            "hapax.toml:4:8: HX0004: `store.pool` must be a whole number from 1 to 1000",
            "hapax.toml:5:1: HX0002: unknown key `xyz` in `store`",
            "hapax.toml:11:15: HX0004: `consumers.orders.concurrency` must be a whole number from 1 to 1000",
        ]
    );
    let rendered = render(&report);
    assert_eq!(rendered.matches("help: ").count(), 3, "{rendered}");
}

#[test]
fn numbers_come_from_the_environment_and_sql_does_not() {
    let text = GOOD.replacen("[store]", "[store]\npool = \"${POOL}\"", 1).replacen(
        "paid = 1",
        "paid = '${POOL}'",
        1,
    );
    let config = good(&text);
    assert_eq!(config.store.pool.value, 12);
    assert!(config.consumers["orders"].on["Paid"].sql[0].run.sql().contains("'${POOL}'"));
}

#[test]
fn a_secret_is_neither_printed_nor_shown_beside_an_error() {
    let text =
        GOOD.replacen("amqp://localhost", "amqp://me:hunter2@mq\"\npassword = \"hunter2\"\nxyz = \"", 1);
    refused(&text, Code::ConfigUnknownKey, "9:1", &["password = \"*******\""]);
    let config = good(&text.replacen("xyz = \"\"", "", 1));
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn a_small_prefetch_is_told_and_no_error() {
    let config = good(&GOOD.replacen("queue = \"orders\"", "queue = \"orders\", prefetch = 10", 1));
    let report = config.origin.report(config.notes()).expect("a note");
    assert!(render(&report).contains("hold 200 messages"), "{}", render(&report));
    assert_eq!(prefetch(&config.consumers["orders"]), Some(10));
}

#[test]
fn what_a_file_holds_is_never_printed() {
    let text = include_str!("../../tests/fixtures/full.toml")
        .replace("/etc/ssl/ca.pem", "/run/secrets/mq-key")
        .replace("# setup =", "setup =");
    assert!(!format!("{:?}", good(&text)).contains("hunter2"));
}

proptest! {
    #[test]
    fn no_damage_to_a_file_makes_the_reader_panic_or_tell_a_secret(
        at in any::<prop::sample::Index>(), length in 0..40_usize, put in "[\\[\\]{}\"'=.,#$ a-z0-9\n-]{0,6}",
    ) {
        let mut text = include_str!("../../tests/fixtures/full.toml").to_owned();
        let start = text.floor_char_boundary(at.index(text.len()));
        let end = text.floor_char_boundary((start + length).min(text.len()));
        text.replace_range(start..end, &put);
        let printed = parse(&text).map_or_else(|report| render(&report), |config| format!("{config:?}"));
        prop_assert!(!printed.contains("hunter2"));
    }
}
