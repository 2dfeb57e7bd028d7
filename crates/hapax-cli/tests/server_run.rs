//! `hapax run` on PostgreSQL and RabbitMQ.

mod payments;
mod program;
mod shop;

mod server {
    use std::fmt::Write as _;
    use std::io;
    use std::time::Duration;

    use hapax_testkit::proxy::Proxy;
    use hapax_testkit::servers::{
        PrivatePostgres, PrivateRabbit, Server, TestDatabase, address, eventually, postgres_url,
        rabbitmq_url, require, unique,
    };
    use lapin::ConnectionProperties;
    use lapin::options::QueueDeleteOptions;
    use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
    use tokio::time::sleep;

    use super::payments::{self, TABLES};
    use super::program::{Ended, Folder, SOON};
    use super::shop;

    async fn connect(url: &str) -> PgConnection {
        PgConnection::connect(url).await.expect("the test's database")
    }

    async fn execute(database: &mut PgConnection, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(database).await.expect(sql);
    }

    /// A number; -1 while there is no such table.
    async fn count(database: &mut PgConnection, of: &'static str) -> i64 {
        sqlx::query_scalar(of).fetch_one(database).await.unwrap_or(-1)
    }

    /// What the demo leaves on PostgreSQL: every row of its tables, sorted.
    async fn rows(url: &str) -> Vec<String> {
        let mut database = connect(url).await;
        let mut rows = Vec::new();
        for table in TABLES {
            rows.extend(sqlx::query_scalar(table).fetch_all(&mut database).await.expect("the demo's tables"));
        }
        rows.sort();
        rows
    }

    async fn delete(queue: &str) {
        let broker = lapin::Connection::connect(&rabbitmq_url(), ConnectionProperties::default()).await;
        let channel = broker.expect("the broker").create_channel().await.expect("a channel");
        channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.expect("the queue goes");
    }

    /// The demo with another store and another source, and nothing else changed.
    fn demo(store: &str, broker: &str, queue: &str, further: &[(&str, &str)]) -> Folder {
        let source = format!("{{ broker = \"rabbit\", queue = \"{queue}\" }}");
        let consumers =
            format!("[brokers.rabbit]\nkind = \"rabbitmq\"\nurl = \"{broker}\"\n\n[consumers.payments] ");
        let changes = [
            ("sqlite:payments.db", store),
            ("[consumers.payments] ", &consumers),
            ("{ file = \"payments.jsonl\" }", &source),
        ];
        payments::folder(&[&changes, further].concat())
    }

    #[tokio::test]
    async fn the_demo_leaves_the_same_tables_as_on_sqlite() -> io::Result<()> {
        if !require(Server::Postgres) || !require(Server::RabbitMq) {
            return Ok(());
        }
        let sqlite = payments::folder(&[]);
        sqlite.run("run @hapax.toml").await.exit(0);
        let expected = payments::rows(&sqlite).await;

        let (database, broker, queue) = (TestDatabase::create().await?, rabbitmq_url(), unique("payments"));
        let demo = demo(database.url(), &broker, &queue, &[]);
        let send = format!("send @payments.jsonl --queue {queue} --json");
        let told = demo.run(&format!("{send} --declare --broker {broker}")).await.exit(0);
        assert_eq!(told, "{\"sent\":1250,\"unsent\":0}\n");
        let first = demo.run("run @hapax.toml --until-idle 500ms --json").await.exit(0);
        assert_eq!(
            first,
            "{\"handled\":1000,\"duplicates\":230,\"retried\":0,\"dead\":20,\"ambiguous\":0,\"waiting\":0}\n"
        );
        assert!(rows(database.url()).await == expected);

        demo.run(&format!("{send} --twice --shuffle -c @hapax.toml --to rabbit")).await.exit(0);
        let second = demo.run("run @hapax.toml --until-idle 500ms --json").await.json(0).remove(0);
        assert_eq!(
            (&second["handled"], &second["duplicates"], &second["dead"]),
            (&0.into(), &2484.into(), &16.into())
        );
        assert!(rows(database.url()).await == expected);
        delete(&queue).await;
        database.remove().await
    }

    /// Waits until a hundred messages more are on record.
    async fn until_at_work(database: &mut PgConnection) {
        const RECORDED: &str = "SELECT count(*) FROM hapax.inbox";
        let before = count(database, RECORDED).await;
        eventually("messages are handled", SOON, async || count(database, RECORDED).await >= before + 100)
            .await;
    }

    #[tokio::test]
    async fn one_process_survives_the_loss_of_either_server_to_the_same_tables() -> io::Result<()> {
        if !require(Server::Postgres) || !require(Server::RabbitMq) {
            return Ok(());
        }
        let sqlite = payments::folder(&[]);
        sqlite.run("run @hapax.toml").await.exit(0);

        let (database, queue) = (TestDatabase::create().await?, unique("payments"));
        let (store, broker) =
            (Proxy::start(address(&postgres_url())?)?, Proxy::start(address(&rabbitmq_url())?)?);
        // In small batches, so that it is still at work when the servers go.
        let small = [("retention =", "batch = { max = 2 }\nretention =")];
        let demo = demo(&store.route(database.url())?, &broker.route(&rabbitmq_url())?, &queue, &small);
        demo.run(&format!("send @payments.jsonl --queue {queue} --declare -c @hapax.toml --to rabbit"))
            .await
            .exit(0);

        let mut running = demo.hapax("run @hapax.toml --until-idle 2s --json").start()?;
        let mut seen = connect(database.url()).await;
        for (server, name, sign) in
            [(&store, "the store", "the store is back"), (&broker, "the broker", "consuming again")]
        {
            until_at_work(&mut seen).await;
            server.cut();
            let attempts = server.accepted();
            eventually(&format!("{name} is tried again"), SOON, async || server.accepted() > attempts + 1)
                .await;
            assert!(running.is_running(), "{running}");
            server.heal();
            running.wait_output(sign, SOON).await;
        }
        let ended = Ended::of(running).await;
        let summary = &ended.json(0)[0];
        assert_eq!((&summary["retried"], &summary["waiting"]), (&0.into(), &0.into()), "{ended}");
        assert!(rows(database.url()).await == payments::rows(&sqlite).await);
        delete(&queue).await;
        database.remove().await
    }

    /// Where the demo's first statement for a payment begins.
    const PAYMENT: &str = "[[consumers.payments.on.PaymentReceived.sql]]";
    /// How long a server is away.
    const OUTAGE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn one_process_survives_a_stop_of_a_private_rabbitmq_and_of_a_private_postgresql_to_the_same_tables()
    -> io::Result<()> {
        if !require(Server::PrivatePostgres) || !require(Server::PrivateRabbit) {
            return Ok(());
        }
        let sqlite = payments::folder(&[]);
        sqlite.run("run @hapax.toml").await.exit(0);

        let (mut postgres, mut rabbit) = (PrivatePostgres::start().await?, PrivateRabbit::start().await?);
        let store = postgres.url("postgres");
        // Slowly and in small batches, so that it is still at work when the servers go.
        let slow = [
            ("retention =", "batch = { max = 2 }\nretention ="),
            (PAYMENT, &format!("{PAYMENT}\nrun = \"SELECT pg_sleep(0.05)\"\n\n{PAYMENT}")),
        ];
        let demo = demo(&store, &rabbit.url(), "payments", &slow);
        demo.run("send @payments.jsonl --queue payments --declare -c @hapax.toml --to rabbit").await.exit(0);

        let mut running = demo.hapax("run @hapax.toml --until-idle 2s --json").start()?;
        until_at_work(&mut connect(&store).await).await;
        rabbit.stop_orderly().await?;
        sleep(OUTAGE).await; // the time is what is tested
        assert!(running.is_running(), "{running}");
        rabbit.start_again().await?;
        running.wait_output("consuming again", SOON).await;

        until_at_work(&mut connect(&store).await).await;
        postgres.stop_orderly().await?;
        sleep(OUTAGE).await; // the time is what is tested
        assert!(running.is_running(), "{running}");
        postgres.start_again().await?;
        running.wait_output("the store is back", SOON).await;

        until_at_work(&mut connect(&store).await).await;
        let ended = Ended::of(running).await;
        let summary = &ended.json(0)[0];
        assert_eq!(
            (&summary["handled"], &summary["retried"], &summary["waiting"]),
            (&1000.into(), &0.into(), &0.into()),
            "{ended}"
        );
        assert!(rows(&store).await == payments::rows(&sqlite).await);
        Ok(())
    }

    /// A table with a column of every kind, and a statement that fills it.
    const READINGS: &str = "
        CREATE TYPE mood AS ENUM ('glad', 'sad');
        CREATE TABLE readings (
            id text PRIMARY KEY, amount numeric, at timestamptz, tag uuid, raw bytea, doc jsonb, mood mood,
            flag boolean, big bigint, small smallint, tags text[]
        );";

    /// Each parameter's name, type, and how the statement uses it.
    const PARAMETERS: [(&str, &str); 11] = [
        ("id", "text"),
        ("amount", "decimal"),
        ("at", "timestamp"),
        ("tag", "uuid"),
        ("raw", "bytes"),
        ("doc", "json"),
        ("mood", "text"),
        ("flag", "bool"),
        ("big", "int"),
        ("small", "int"),
        ("tags", "text"),
    ];

    /// A configuration whose statement fills the table, with one parameter declared as another type.
    fn readings(store: &str, changed: Option<(&str, &str)>, statement: &str) -> String {
        let mut config = format!(
            "version = 1\n[store]\nurl = \"{store}\"\nmigrate = \"apply\"\nsetup = \"schema.sql\"\n\
             [consumers.readings]\nsource = {{ file = \"lines.jsonl\" }}\nid = \"json:/id\"\ntype = \"always:Reading\"\n\
             [consumers.readings.on.Reading.params]\n"
        );
        for (name, kind) in PARAMETERS {
            let kind = changed.filter(|(changed, _)| *changed == name).map_or(kind, |(_, kind)| kind);
            if statement.contains(&format!(":{name}")) {
                let nullable = name != "id";
                writeln!(
                    config,
                    "{name} = {{ json = \"/{name}\", type = \"{kind}\", nullable = {nullable} }}"
                )
                .expect("a string takes everything");
            }
        }
        config + &format!("[[consumers.readings.on.Reading.sql]]\nrun = \"{statement}\"\n")
    }

    const INSERT: &str = "INSERT INTO readings VALUES (:id, :amount, :at, :tag, :raw, :doc, :mood, :flag, :big, :small, :tags)";

    #[tokio::test]
    async fn values_reach_columns_of_every_type_and_what_does_not_fit_is_set_aside() -> io::Result<()> {
        if !require(Server::Postgres) {
            return Ok(());
        }
        let database = TestDatabase::create().await?;
        let folder = Folder::with(&[
            ("schema.sql", READINGS),
            ("hapax.toml", &readings(database.url(), None, INSERT)),
        ]);
        let whole = r#"{"id":"whole","amount":123456789012345678901234567890.10,"at":"2026-03-02T12:00:00.123456+02:00","tag":"78088B1A-035F-5486-B524-5A14CBA9DFD4","raw":"AP8=","doc":{"a":[1,2.50]},"mood":"glad","flag":true,"big":9007199254740993,"small":-7,"tags":"{a,b}"}"#;
        let empty = r#"{"id":"empty","amount":null,"at":null,"tag":null,"raw":null,"doc":null,"mood":null,"flag":null,"big":null,"small":null,"tags":null}"#;
        let spoiled = [
            ("mood", "\"glad\"", "\"angry\""),
            ("small", "-7", "70000"),
            ("tags", "\"{a,b}\"", "\"{a,b\""),
            ("at", "\"2026-03-02T12:00:00.123456+02:00\"", "\"yesterday\""),
            ("tag", "\"78088B1A-035F-5486-B524-5A14CBA9DFD4\"", "\"78088B1A\""),
            ("amount", "123456789012345678901234567890.10", "\"12,50\""),
        ];
        let mut lines = format!("{whole}\n{empty}\n");
        for (name, from, to) in spoiled {
            assert!(whole.contains(from));
            lines += &(whole.replacen("whole", name, 1).replacen(from, to, 1) + "\n");
        }
        folder.write("lines.jsonl", &lines);
        let summary = folder.run("run @hapax.toml --json").await.json(0).remove(0);
        assert_eq!(
            (&summary["handled"], &summary["dead"], &summary["retried"]),
            (&2.into(), &6.into(), &0.into())
        );

        let read = "SELECT concat_ws(' ', amount, at AT TIME ZONE 'UTC', tag, raw, doc, mood, flag, big, small, tags) \
                    FROM readings ORDER BY id DESC";
        let read: Vec<String> =
            sqlx::query_scalar(read).fetch_all(&mut connect(database.url()).await).await.expect("two rows");
        let expected = "123456789012345678901234567890.10 2026-03-02 10:00:00.123456 78088b1a-035f-5486-b524-5a14cba9dfd4 \
                        \\x00ff {\"a\": [1, 2.50]} glad t 9007199254740993 -7 {a,b}";
        assert_eq!(read, [expected, ""]);
        for letter in folder.run("dead list -c @hapax.toml --json").await.json(0) {
            assert_eq!(letter["reason"], "HX0039", "{letter}");
        }
        database.remove().await
    }

    #[tokio::test]
    async fn a_statement_whose_types_do_not_match_is_refused_at_its_place_before_anything_is_handled()
    -> io::Result<()> {
        if !require(Server::Postgres) {
            return Ok(());
        }
        let database = TestDatabase::create().await?;
        let folder = Folder::with(&[
            ("schema.sql", READINGS),
            ("hapax.toml", &readings(database.url(), None, INSERT)),
            ("lines.jsonl", ""),
        ]);
        folder.run("run @hapax.toml").await.exit(0);
        folder.write("lines.jsonl", "{\"id\":\"r-1\",\"tags\":[1],\"amount\":1,\"big\":1}\n");

        let update = |set: &str| format!("UPDATE readings SET {set} WHERE id = :id");
        for (changed, statement, said) in [
            (
                Some(("amount", "text")),
                INSERT.to_owned(),
                "`amount` is declared text, and the statement uses it as numeric",
            ),
            (Some(("big", "decimal")), INSERT.to_owned(), "uses it as bigint"),
            (Some(("at", "int")), INSERT.to_owned(), "uses it as timestamp with time zone"),
            (Some(("doc", "text")), INSERT.to_owned(), "uses it as jsonb"),
            (Some(("mood", "bytes")), INSERT.to_owned(), "uses it as mood"),
            (Some(("tags", "json")), INSERT.to_owned(), "uses it as text[]"),
            (None, update("amount = :big, at = :big"), "inconsistent types deduced for parameter"),
            (
                None,
                "DELETE FROM readings WHERE id = :id AND :big IS NULL".to_owned(),
                "could not determine data type",
            ),
            (None, update("nothing = :big"), "does not exist"),
        ] {
            let config = readings(database.url(), changed, &statement);
            folder.write("hapax.toml", &config);
            let ended = folder.run("run @hapax.toml").await;
            ended.exit(2);
            let text: String =
                ended.stderr().replace('│', " ").split_whitespace().collect::<Vec<_>>().join(" ");
            let line = config.lines().position(|line| line.starts_with("run =")).expect("there") + 1;
            for part in ["HX0006 ×", &format!("hapax.toml:{line}:"), said, "help:"] {
                assert!(text.contains(part), "`{part}` is not said: {ended}");
            }
        }
        assert_eq!(count(&mut connect(database.url()).await, "SELECT count(*) FROM hapax.inbox").await, 0);
        database.remove().await
    }

    #[tokio::test]
    async fn what_the_servers_refuse_is_said_with_code_and_place_and_without_the_password() -> io::Result<()>
    {
        if !require(Server::Postgres) || !require(Server::RabbitMq) {
            return Ok(());
        }
        let (database, queue) = (TestDatabase::create().await?, unique("nobody_declared"));
        let (postgres, rabbit) = (address(&postgres_url())?, address(&rabbitmq_url())?);
        let nobody = format!("postgres://no_such_role:hunter2@{postgres}/{}", database.name());
        let nowhere = database.url().replace(database.name(), "no_such_database");
        let wrong = format!("amqp://guest:hunter2@{rabbit}/%2f");
        let vhost = format!("amqp://guest:guest@{rabbit}/no_such_vhost");
        for (store, broker, code, exit, place) in [
            (database.url(), rabbitmq_url().as_str(), "HX0017", 2, "queue ="),
            (database.url(), &wrong, "HX0016", 3, "amqp:"),
            (database.url(), &vhost, "HX0016", 3, "amqp:"),
            (&nobody, &rabbitmq_url(), "HX0011", 3, "no_such_role"),
            (&nowhere, &rabbitmq_url(), "HX0010", 3, "no_such_database"),
        ] {
            let demo = demo(store, broker, &queue, &[]);
            let ended = demo.run("run @hapax.toml").await;
            ended.exit(exit);
            let config = std::fs::read_to_string(demo.path("hapax.toml"))?;
            let line = config
                .lines()
                .position(|line| line.contains(place) && !line.starts_with('#'))
                .expect("there")
                + 1;
            for part in [code, &format!("hapax.toml:{line}:"), "help:"] {
                assert!(ended.stderr().contains(part), "`{part}` is not said: {ended}");
            }
            assert!(!ended.stderr().contains("hunter2"), "{}", ended.stderr());
        }
        assert!(count(&mut connect(database.url()).await, "SELECT count(*) FROM hapax.inbox").await <= 0);
        database.remove().await
    }

    /// The shop on PostgreSQL, slowed down so that something can happen meanwhile, with messages in its queue.
    async fn slow_shop(store: &str, messages: u32) -> Folder {
        let shop = shop::folder(&[
            ("sqlite:shop.db", store),
            ("retry = { attempts = 1000", "concurrency = 2\nbatch = { max = 2 }\nretry = { attempts = 2"),
            (
                "[[consumers.orders.on.Paid.sql]]",
                "[[consumers.orders.on.Paid.sql]]\nrun = \"SELECT pg_sleep(0.05)\"\n[[consumers.orders.on.Paid.sql]]",
            ),
        ]);
        let schema = std::fs::read_to_string(shop.path("schema.sql")).expect("there");
        shop.write("schema.sql", &schema.replace("n INTEGER PRIMARY KEY", "n BIGSERIAL PRIMARY KEY"));
        shop.write(
            "lines.jsonl",
            &(0..messages).map(|n| shop::paid(&format!("p-{n}"), n % 3 + 1)).collect::<String>(),
        );
        shop.run("migrate -c @hapax.toml").await.exit(0);
        shop.run("send @lines.jsonl --queue orders -c @hapax.toml").await.exit(0);
        shop
    }

    #[tokio::test]
    async fn a_read_only_or_full_database_stops_fetching_and_afterwards_nothing_is_lost_and_no_attempt_spent()
    -> io::Result<()> {
        const MESSAGES: u32 = 60;
        const BOOKED: &str = "SELECT count(*) FROM ledger";
        if !require(Server::Postgres) {
            return Ok(());
        }
        let read_only = "ALTER DATABASE {name} SET default_transaction_read_only = on; SELECT pg_terminate_backend(pid) \
                         FROM pg_stat_activity WHERE datname = '{name}' AND application_name = 'hapax'";
        let full = "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
                    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$; \
                    CREATE TRIGGER no_room BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION no_room()";
        for (breaks, mends) in [
            (read_only, "ALTER DATABASE {name} SET default_transaction_read_only = off"),
            (full, "DROP TRIGGER no_room ON ledger"),
        ] {
            let database = TestDatabase::create().await?;
            let shop = slow_shop(database.url(), MESSAGES).await;
            let mut operator = connect(database.url()).await;
            let mut running = shop.hapax("run @hapax.toml --until-idle 300ms --json").start()?;
            eventually("some payments are booked", SOON, async || count(&mut operator, BOOKED).await >= 5)
                .await;
            execute(&mut operator, &breaks.replace("{name}", database.name())).await;
            let so_far = count(&mut operator, BOOKED).await;
            running.wait_output("the store is away", SOON).await;
            running.wait_output("HX0014", SOON).await;
            assert!(running.is_running(), "{running}");
            assert_eq!(count(&mut operator, BOOKED).await, so_far);
            assert_eq!(count(&mut operator, "SELECT count(*) FROM hapax.waiting").await, 0);

            execute(&mut operator, &mends.replace("{name}", database.name())).await;
            let ended = Ended::of(running).await;
            let summary = &ended.json(0)[0];
            assert!(summary["retried"] == 0 && summary["dead"] == 0 && summary["waiting"] == 0, "{ended}");
            assert_eq!(count(&mut operator, BOOKED).await, i64::from(MESSAGES));
            assert_eq!(
                count(&mut operator, "SELECT sum(payments)::bigint FROM orders").await,
                i64::from(MESSAGES)
            );
            drop(operator);
            database.remove().await?;
        }
        Ok(())
    }
}
