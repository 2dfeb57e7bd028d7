//! A Kafka-protocol broker that one test has to itself, and may stop.

use std::{io, net::SocketAddr, time::Duration};

use tempfile::TempDir;

use super::until;
use crate::{
    local::{child::Signal, port, tansu::Tansu},
    proxy::Proxy,
};

/// It needs milliseconds.
const STARTING: Duration = Duration::from_secs(30);
const ENDING: Duration = Duration::from_secs(30);

/// A broker that speaks Kafka's protocol (Tansu), on its own port. It keeps everything in memory: a stop forgets
/// topics, messages and offsets. To take a broker away and bring it back with its data, cut its proxy
/// ([`start_behind`](Self::start_behind)).
///
/// Dropping it ends the broker; if the test process is killed, a guard does that. Needs `tansu` on this machine
/// ([`Server::PrivateKafka`](super::Server::PrivateKafka)).
#[derive(Debug)]
pub struct PrivateKafka {
    // Before the folder, so that the broker has ended when the folder goes.
    broker: Tansu,
    _folder: TempDir,
}

impl PrivateKafka {
    /// Starts a broker and waits until it serves clients. Fails with the end of its output.
    pub async fn start() -> io::Result<Self> {
        let address = port::free_address()?;
        Self::started(address, address).await
    }

    /// A broker that asks for a login (SASL, without TLS) and refuses every one.
    pub async fn start_refusing() -> io::Result<Self> {
        let address = port::free_address()?;
        let folder = folder()?;
        let broker = Tansu::create(folder.path(), address, address)?.asking_for_login();
        Self::serving(broker, folder).await
    }

    /// A broker behind a proxy. Clients of Kafka connect to the address that the broker tells them, so this one
    /// tells them the proxy's; [`url`](Self::url) is that address, too.
    pub async fn start_behind() -> io::Result<(Self, Proxy)> {
        let address = port::free_address()?;
        let proxy = Proxy::start(address)?;
        Ok((Self::started(address, proxy.addr()).await?, proxy))
    }

    async fn started(address: SocketAddr, advertised: SocketAddr) -> io::Result<Self> {
        let folder = folder()?;
        let broker = Tansu::create(folder.path(), address, advertised)?;
        Self::serving(broker, folder).await
    }

    async fn serving(broker: Tansu, folder: TempDir) -> io::Result<Self> {
        let mut private = Self { broker, _folder: folder };
        private.start_again().await?;
        Ok(private)
    }

    /// Where to connect: through the proxy, if it is behind one.
    pub fn url(&self) -> String {
        self.broker.url()
    }

    /// Its own address, the same after a restart.
    pub fn addr(&self) -> SocketAddr {
        self.broker.address()
    }

    /// Kills it: clients see their connections break, and everything is forgotten. Returns when it has ended; at
    /// once if it was not running.
    pub async fn stop(&mut self) -> io::Result<()> {
        self.broker.daemon().signal(Signal::Kill)?;
        until("Kafka ends", ENDING, || Ok(!self.broker.daemon().is_running()?)).await
    }

    /// Starts it after a stop, with the same addresses and empty, and waits until it serves clients. Fails if it
    /// is running.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.broker.start()?;
        until("Kafka answers", STARTING, || self.broker.is_ready()).await
    }
}

fn folder() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("hapax-kafka-").tempdir()
}
