//! A Redis server on a data folder of its own, which has what it acknowledged after it was killed.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use super::{child::Signal, daemon::Daemon, probe};

/// A server's files, port and settings, and its process while it runs.
#[derive(Debug)]
pub(crate) struct RedisServer {
    program: PathBuf,
    address: SocketAddr,
    settings: Vec<String>,
    daemon: Daemon,
}

impl RedisServer {
    /// A server in `folder`, which must exist. `settings` are passed to each start, as `redis-server --name value`
    /// does.
    pub(crate) fn create(folder: &Path, address: SocketAddr, settings: &[(&str, &str)]) -> io::Result<Self> {
        let settings = settings.iter().flat_map(|(name, value)| [format!("--{name}"), (*value).to_owned()]);
        Ok(Self {
            program: program()?,
            address,
            settings: settings.collect(),
            daemon: Daemon::new("Redis", folder, Signal::Kill),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/0", self.address)
    }

    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Starts the process and returns at once: ask [`RedisServer::is_ready`].
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        command
            .current_dir(self.daemon.folder())
            .args(["--port", &self.address.port().to_string(), "--bind", &self.address.ip().to_string()])
            .args(["--save", "", "--appendonly", "yes", "--appendfsync", "always"])
            .args(&self.settings);
        self.daemon.start(&mut command)
    }

    /// Whether it serves clients by now. Fails if it has ended instead.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        let url = self.url();
        self.daemon.is_ready(|| probe::redis(&url).is_ok())
    }
}

/// The server's program.
pub(crate) fn program() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join("redis-server"))
        .find(|program| program.exists())
        .ok_or_else(|| io::Error::new(ErrorKind::NotFound, "Redis (redis-server) is not installed"))
}
