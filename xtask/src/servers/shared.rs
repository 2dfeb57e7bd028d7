//! The kinds of server that tests share.

use std::{any::Any, io, net::SocketAddr, path::Path};

use crate::local::{
    mariadb::{self, MariaDb},
    mongod::{Mongod, REPLICA_SET},
    moto::Moto,
    nats_server::NatsServer,
    node::Node,
    postmaster::{Postmaster, ROLE},
    probe::{self, Unready},
    redis_server::RedisServer,
    tansu::Tansu,
};

/// The database of PostgreSQL that tests begin at.
const DATABASE: &str = "test";

/// A kind of server, of which we can start one.
pub(super) trait Shared: Sized + Any {
    const NAME: &'static str;
    /// Names it to us and to the tests.
    const VARIABLE: &'static str;
    /// In `compose.yaml`.
    const SERVICE: &'static str;
    /// Where tests look if nothing is said.
    const PORT: u16;

    fn usual_url(address: SocketAddr) -> String;
    fn probe(url: &str) -> Result<(), Unready>;
    fn create_at(folder: &Path, address: SocketAddr) -> io::Result<Self>;
    fn start_it(&mut self) -> io::Result<()>;
    fn is_up(&mut self) -> io::Result<bool>;
    fn test_url(&self) -> String;
}

/// What reads the same for each.
macro_rules! shared {
    (
        $server:ty, $name:literal, $variable:literal, $service:literal, $port:literal, $probe:path,
        usual: $usual:expr, create: $create:expr, url: $url:expr
    ) => {
        impl Shared for $server {
            const NAME: &'static str = $name;
            const VARIABLE: &'static str = $variable;
            const SERVICE: &'static str = $service;
            const PORT: u16 = $port;

            fn usual_url(address: SocketAddr) -> String {
                $usual(address)
            }

            fn probe(url: &str) -> Result<(), Unready> {
                $probe(url)
            }

            fn create_at(folder: &Path, address: SocketAddr) -> io::Result<Self> {
                $create(folder, address)
            }

            fn start_it(&mut self) -> io::Result<()> {
                self.start()
            }

            fn is_up(&mut self) -> io::Result<bool> {
                self.is_ready()
            }

            fn test_url(&self) -> String {
                $url(self)
            }
        }
    };
}

shared!(
    Postmaster, "PostgreSQL", "HAPAX_TEST_POSTGRES", "postgres", 5432, probe::postgres,
    usual: |address| format!("postgres://{ROLE}@{address}/{DATABASE}"),
    create: |folder, address| Postmaster::create(folder, address, &[("max_connections", "200")]),
    url: |server: &Self| server.url(DATABASE)
);

shared!(
    Node, "RabbitMQ", "HAPAX_TEST_RABBITMQ", "rabbitmq", 5672, probe::rabbitmq,
    usual: |address| format!("amqp://guest:guest@{address}/%2f"),
    create: |folder, address| Node::create(folder, &format!("hapax_tests_{}", std::process::id()), address, &[]),
    url: Self::url
);

shared!(
    MariaDb, "MariaDB", "HAPAX_TEST_MARIADB", "mariadb", 3306, probe::mariadb,
    usual: |address| format!("mysql://{}@{address}/{DATABASE}", mariadb::USER),
    create: |folder, address| MariaDb::create(folder, address, &[("max-connections", "300")]),
    url: |server: &Self| server.url(mariadb::DATABASE)
);

shared!(
    Mongod, "MongoDB", "HAPAX_TEST_MONGODB", "mongodb", 27017, probe::mongodb,
    usual: |address| format!("mongodb://{address}/?replicaSet={REPLICA_SET}&directConnection=true"),
    create: |folder, address| Mongod::create(folder, address, &[]),
    url: |server: &Self| server.url("")
);

shared!(
    Tansu, "Kafka (Tansu)", "HAPAX_TEST_KAFKA", "kafka", 9092, probe::kafka,
    usual: |address| format!("kafka://{address}"),
    create: |folder, address| Tansu::create(folder, address, address),
    url: Self::url
);

shared!(
    NatsServer, "NATS", "HAPAX_TEST_NATS", "nats", 4222, probe::nats,
    usual: |address| format!("nats://{address}"),
    create: |folder, address| NatsServer::create(folder, address, &[]),
    url: Self::url
);

shared!(
    Moto, "SQS (moto)", "HAPAX_TEST_SQS", "sqs", 4566, probe::sqs,
    usual: |address| format!("sqs://{address}"),
    create: Moto::create,
    url: Self::url
);

shared!(
    RedisServer, "Redis", "HAPAX_TEST_REDIS", "redis", 6379, probe::redis,
    usual: |address| format!("redis://{address}/0"),
    create: |folder, address| RedisServer::create(folder, address, &[]),
    url: Self::url
);
