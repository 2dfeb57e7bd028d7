//! The servers, each of which can be taken away for a while.

use hapax::sqlx::{self, Connection as _, SqliteConnection};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{
    PrivateKafka, PrivateMariaDb, PrivateMongo, PrivateNats, PrivatePostgres, PrivateRabbit, PrivateRedis,
    PrivateSqs, Server, require,
};
use tempfile::TempDir;

/// A store of one's own.
pub(crate) enum Database {
    Postgres(PrivatePostgres),
    MariaDb(PrivateMariaDb),
    MongoDb(PrivateMongo),
    /// A file is not stopped: somebody else has it locked.
    Sqlite(TempDir, Option<SqliteConnection>),
}

impl Database {
    pub(crate) async fn postgres() -> Option<Self> {
        if !require(Server::PrivatePostgres) {
            return None;
        }
        Some(Self::Postgres(PrivatePostgres::start().await.expect("a server of its own")))
    }

    pub(crate) async fn mariadb() -> Option<Self> {
        if !require(Server::PrivateMariaDb) {
            return None;
        }
        Some(Self::MariaDb(PrivateMariaDb::start().await.expect("a server of its own")))
    }

    pub(crate) async fn mongodb() -> Option<Self> {
        if !require(Server::PrivateMongo) {
            return None;
        }
        Some(Self::MongoDb(PrivateMongo::start().await.expect("a server of its own")))
    }

    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().expect("a folder"), None)
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Postgres(_) => "PostgreSQL",
            Self::MariaDb(_) => "MariaDB",
            Self::MongoDb(_) => "MongoDB",
            Self::Sqlite(..) => "SQLite",
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Postgres(server) => server.url("postgres"),
            Self::MariaDb(server) => server.url("test"),
            Self::MongoDb(server) => server.url("shop"),
            Self::Sqlite(folder, _) => format!("sqlite:{}", folder.path().join("shop.db").display()),
        }
    }

    pub(crate) async fn take_away(&mut self, orderly: bool) {
        let url = self.url();
        match self {
            Self::Postgres(server) if orderly => server.stop_orderly().await.expect("it stops"),
            Self::Postgres(server) => server.stop().await.expect("it stops"),
            Self::MariaDb(server) if orderly => server.stop_orderly().await.expect("it stops"),
            Self::MariaDb(server) => server.stop().await.expect("it stops"),
            Self::MongoDb(server) if orderly => server.stop_orderly().await.expect("it stops"),
            Self::MongoDb(server) => server.stop().await.expect("it stops"),
            Self::Sqlite(_, lock) => {
                let mut holder = SqliteConnection::connect(&url).await.expect("the database opens");
                sqlx::raw_sql("BEGIN EXCLUSIVE").execute(&mut holder).await.expect("it is locked");
                *lock = Some(holder);
            }
        }
    }

    pub(crate) async fn give_back(&mut self) {
        match self {
            Self::Postgres(server) => server.start_again().await.expect("it starts again"),
            Self::MariaDb(server) => server.start_again().await.expect("it starts again"),
            Self::MongoDb(server) => server.start_again().await.expect("it starts again"),
            Self::Sqlite(_, lock) => {
                if let Some(holder) = lock.take() {
                    holder.close().await.expect("it is unlocked");
                }
            }
        }
    }
}

/// A broker of one's own.
#[allow(clippy::large_enum_variant, reason = "there is one of them")]
pub(crate) enum Broker {
    RabbitMq(PrivateRabbit),
    Nats(PrivateNats),
    Redis(PrivateRedis),
    /// It keeps everything in memory: it is cut off instead.
    Kafka(PrivateKafka, Proxy),
    /// moto forgets everything when it stops: it is cut off instead.
    Sqs(PrivateSqs, Proxy),
    /// The store's own queues, which are away when the store is.
    Embedded,
}

impl Broker {
    pub(crate) async fn rabbitmq() -> Option<Self> {
        if !require(Server::PrivateRabbit) {
            return None;
        }
        Some(Self::RabbitMq(PrivateRabbit::start().await.expect("a node of its own")))
    }

    pub(crate) async fn nats() -> Option<Self> {
        if !require(Server::PrivateNats) {
            return None;
        }
        Some(Self::Nats(PrivateNats::start().await.expect("a server of its own")))
    }

    pub(crate) async fn redis() -> Option<Self> {
        if !require(Server::PrivateRedis) {
            return None;
        }
        Some(Self::Redis(PrivateRedis::start().await.expect("a server of its own")))
    }

    pub(crate) async fn kafka() -> Option<Self> {
        if !require(Server::PrivateKafka) {
            return None;
        }
        let (server, proxy) = PrivateKafka::start_behind().await.expect("a server of its own");
        Some(Self::Kafka(server, proxy))
    }

    pub(crate) async fn sqs() -> Option<Self> {
        if !require(Server::PrivateSqs) {
            return None;
        }
        let server = PrivateSqs::start().await.expect("a server of its own");
        let proxy = Proxy::start(server.addr()).expect("a proxy");
        Some(Self::Sqs(server, proxy))
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::RabbitMq(_) => "RabbitMQ",
            Self::Nats(_) => "JetStream",
            Self::Redis(_) => "Redis Streams",
            Self::Kafka(..) => "Kafka",
            Self::Sqs(..) => "SQS",
            Self::Embedded => "embedded queue",
        }
    }

    /// None for the store's own queues.
    pub(crate) fn url(&self) -> Option<String> {
        match self {
            Self::RabbitMq(node) => Some(node.url()),
            Self::Nats(server) => Some(server.url()),
            Self::Redis(server) => Some(server.url()),
            Self::Kafka(server, _) => Some(server.url()),
            Self::Sqs(server, proxy) => Some(proxy.route(&server.url()).expect("a URL")),
            Self::Embedded => None,
        }
    }

    pub(crate) async fn take_away(&mut self, database: &mut Database, orderly: bool) {
        let taken = match self {
            Self::RabbitMq(node) if orderly => node.stop_orderly().await,
            Self::RabbitMq(node) => node.stop().await,
            Self::Nats(server) => server.stop().await,
            Self::Redis(server) => server.stop().await,
            Self::Kafka(_, proxy) | Self::Sqs(_, proxy) => return proxy.cut(),
            Self::Embedded => return database.take_away(orderly).await,
        };
        taken.expect("it stops");
    }

    pub(crate) async fn give_back(&mut self, database: &mut Database) {
        let given = match self {
            Self::RabbitMq(node) => node.start_again().await,
            Self::Nats(server) => server.start_again().await,
            Self::Redis(server) => server.start_again().await,
            Self::Kafka(_, proxy) | Self::Sqs(_, proxy) => return proxy.heal(),
            Self::Embedded => return database.give_back().await,
        };
        given.expect("it starts again");
    }
}
