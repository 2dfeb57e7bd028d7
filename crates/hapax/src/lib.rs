#![doc = include_str!("../docs/overview.md")]

mod attempt;
mod boxed;
mod brake;
mod broker;
mod calls;
mod consumer;
mod copies;
mod fetch;
mod handler;
mod health;
mod idempotent;
mod intake;
mod janitor;
mod job;
mod keeper;
mod lease;
mod lines;
pub mod metrics;
mod outage;
mod prepare;
mod relay;
mod room;
mod sentence;
mod settle;
mod shared;
mod suspects;
mod suspicion;
mod worker;

pub use boxed::{BoxPublisher, BoxReceipt, BoxSettler, BoxSource};
pub use broker::{Broker, BrokerPublisher};
pub use calls::{Calls, IdempotencyKey, MessageCalls};
pub use consumer::Consumer;
pub use handler::{Handler, HandlerFn, PrepareFn};
pub use hapax_core as core;
pub use hapax_core::*;
pub use health::{Health, Summary};
pub use idempotent::{Handle, Idempotent, Outcome};
pub use janitor::{AmbiguousPolicy, Janitor, Keep, Sweep};
pub use job::Order;
pub use lines::{Lines, LinesSettler};
pub use relay::{Relay, RelayHealth, RelaySummary};
pub use shared::{Batch, OtherPayload, Strategy, UnknownType};

#[cfg(feature = "http")]
pub use hapax_http as http;
#[cfg(feature = "kafka")]
pub use hapax_kafka as kafka;
#[cfg(feature = "mongodb")]
pub use hapax_mongodb::{self as mongo, MongoStore, MongoTx, mongodb};
#[cfg(feature = "nats")]
pub use hapax_nats as nats;
#[cfg(feature = "rabbitmq")]
pub use hapax_rabbitmq as rabbitmq;
#[cfg(feature = "redis")]
pub use hapax_redis as redis;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub use hapax_sqlx::{self as sql, sqlx};
#[cfg(feature = "mysql")]
pub use hapax_sqlx::{Isolation, MySqlStore, MySqlTx};
#[cfg(feature = "postgres")]
pub use hapax_sqlx::{PgStore, PgTx};
#[cfg(feature = "sqlite")]
pub use hapax_sqlx::{SqliteStore, SqliteTx};
#[cfg(feature = "sqs")]
pub use hapax_sqs as sqs;
