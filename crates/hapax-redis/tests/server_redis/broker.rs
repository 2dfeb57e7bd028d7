//! The tests' own hand on the server, and the ways to it.

use std::time::Duration;

use hapax_core::{Code, Envelope, Error, ErrorKind, Outgoing, Publisher};
use hapax_redis::{Redis, RedisSource};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{address, redis_url, unique};
use redis::{Client, Cmd, Connection, FromRedisValue, cmd};

/// Longer than anything here takes, so that a test fails instead of hanging.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// The group of each test's stream.
pub(crate) const GROUP: &str = "orders";
/// Short enough to be waited for.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// A stream of this test's own, which goes when it is dropped.
pub(crate) struct Stream {
    pub(crate) name: String,
    url: String,
}

impl Stream {
    /// With a group.
    pub(crate) fn declared(prefix: &str) -> Self {
        let stream = Self::named(prefix);
        stream.create();
        stream
    }

    pub(crate) fn named(prefix: &str) -> Self {
        Self::on(&redis_url(), prefix)
    }

    pub(crate) fn on(url: &str, prefix: &str) -> Self {
        Self { name: unique(prefix), url: url.to_owned() }
    }

    pub(crate) fn create(&self) {
        self.ask::<()>(cmd("XGROUP").arg("CREATE").arg(&self.name).arg(GROUP).arg("0").arg("MKSTREAM"));
    }

    pub(crate) fn delete(&self) {
        self.ask::<()>(cmd("DEL").arg(&self.name));
    }

    pub(crate) fn exists(&self) -> bool {
        self.ask(cmd("EXISTS").arg(&self.name))
    }

    pub(crate) fn length(&self) -> usize {
        self.ask(cmd("XLEN").arg(&self.name))
    }

    /// How many entries are delivered and unacked.
    pub(crate) fn unacked(&self) -> usize {
        let pending: Vec<redis::Value> =
            self.ask(cmd("XPENDING").arg(&self.name).arg(GROUP).arg("-").arg("+").arg(10_000));
        pending.len()
    }

    pub(crate) fn consumers(&self) -> usize {
        let consumers: Vec<redis::Value> = self.ask(cmd("XINFO").arg("CONSUMERS").arg(&self.name).arg(GROUP));
        consumers.len()
    }

    pub(crate) fn trim_to(&self, entries: usize) {
        self.ask::<()>(cmd("XTRIM").arg(&self.name).arg("MAXLEN").arg(entries));
    }

    /// A command of somebody else.
    pub(crate) fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        command.query(&mut self.connection()).unwrap()
    }

    fn connection(&self) -> Connection {
        Client::open(self.url.as_str()).unwrap().get_connection().unwrap()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.delete();
    }
}

pub(crate) fn redis() -> Redis {
    Redis::new(&redis_url()).unwrap()
}

pub(crate) fn through(proxy: &Proxy) -> Redis {
    Redis::new(&proxy.route(&redis_url()).unwrap()).unwrap()
}

pub(crate) fn proxy() -> Proxy {
    Proxy::start(address(&redis_url()).unwrap()).unwrap()
}

pub(crate) fn source_of(broker: &Redis, stream: &Stream) -> RedisSource {
    broker.source(&stream.name, GROUP)
}

/// Publishes messages whose bodies and ids are these numbers.
pub(crate) async fn publish(stream: &Stream, numbers: impl IntoIterator<Item = u32>) {
    let publisher = redis().publisher();
    let messages = numbers.into_iter().map(|number| message(&stream.name, number)).collect();
    publisher.publish(messages).await.into_iter().for_each(|sent| sent.unwrap());
}

pub(crate) fn message(stream: &str, number: u32) -> Outgoing {
    Outgoing::to_queue(stream, Envelope::new(number.to_string()).with_id(number.to_string()))
}

pub(crate) fn kind_and_code(error: &Error) -> (ErrorKind, Code) {
    (error.kind(), error.code())
}
