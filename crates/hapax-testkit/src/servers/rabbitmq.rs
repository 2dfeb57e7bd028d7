//! A RabbitMQ that one test has to itself, and may stop.

use std::{io, net::SocketAddr, time::Duration};

use tempfile::TempDir;

use super::{unique, until};
use crate::local::{child::Signal, node::Node, port};

/// A node needs 8 seconds of processor time to start; a busy machine gives it a fraction of one.
const STARTING: Duration = Duration::from_mins(2);

/// An orderly end takes seconds.
const ENDING: Duration = Duration::from_mins(1);

/// A RabbitMQ node with its own name, ports and data folder, and no plugins. It runs beside others.
///
/// Dropping it kills the node and removes the folder; if the test process is killed, a guard does that. Needs
/// `rabbitmq-server` on this machine ([`Server::PrivateRabbit`](super::Server::PrivateRabbit)).
#[derive(Debug)]
pub struct PrivateRabbit {
    // Before the folder, so that the node has ended when the folder goes.
    node: Node,
    _folder: TempDir,
}

impl PrivateRabbit {
    /// Creates and starts a node, and waits until it serves clients: some 10 seconds. Fails with the end of
    /// its output.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(&[]).await
    }

    /// The same with parameters of the application `rabbit`, such as `("consumer_timeout", "2000")`; they
    /// hold after a restart, too.
    pub async fn start_with(settings: &[(&str, &str)]) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("hapax-rabbitmq-").tempdir()?;
        let node = Node::create(folder.path(), &unique("hapax"), port::free_address()?, settings)?;
        let mut private = Self { node, _folder: folder };
        private.start_again().await?;
        Ok(private)
    }

    /// Where to connect: the default user on the default virtual host.
    pub fn url(&self) -> String {
        self.node.url()
    }

    /// Its address, the same after a restart.
    pub fn addr(&self) -> SocketAddr {
        self.node.address()
    }

    /// Kills it: clients see their connections break, and only what was confirmed is promised to be there
    /// after [`PrivateRabbit::start_again`]. Returns when it has ended; at once if it was not running.
    pub async fn stop(&mut self) -> io::Result<()> {
        self.end(Signal::Kill).await
    }

    /// Stops it as an operator would: clients are told (`connection.close`), queues are written out. Takes
    /// seconds.
    pub async fn stop_orderly(&mut self) -> io::Result<()> {
        self.end(Signal::Term).await
    }

    /// Starts it after a stop, with the same address and data, and waits until it serves clients. Fails if it
    /// is running.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.node.start()?;
        until("RabbitMQ answers", STARTING, || self.node.is_ready()).await
    }

    async fn end(&mut self, signal: Signal) -> io::Result<()> {
        self.node.daemon().signal(signal)?;
        until("RabbitMQ ends", ENDING, || Ok(!self.node.daemon().is_running()?)).await
    }
}

#[cfg(test)]
mod tests {
    mod server {
        use super::super::*;
        use crate::{
            local::{port::is_free, probe},
            servers::{Server, rabbitmq_url, require},
        };

        #[tokio::test]
        async fn a_private_node_stops_in_both_ways_comes_back_and_leaves_the_shared_one_alone()
        -> io::Result<()> {
            if !require(Server::PrivateRabbit) || !require(Server::RabbitMq) {
                return Ok(());
            }
            let mut private = PrivateRabbit::start().await?;
            let (address, folder) = (private.addr(), private.node.daemon().folder().to_owned());
            assert_ne!(address, crate::servers::address(&rabbitmq_url())?);

            private.stop().await?;
            assert!(is_free(address), "nobody listens");
            private.stop().await?;
            private.start_again().await?;
            assert!(private.start_again().await.is_err(), "it is running");

            private.stop_orderly().await?;
            assert!(is_free(address), "nobody listens");
            probe::rabbitmq(&rabbitmq_url()).unwrap();
            drop(private);
            assert!(!folder.exists());
            Ok(())
        }
    }
}
