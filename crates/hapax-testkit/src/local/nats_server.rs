//! A NATS server with `JetStream` on a data folder of its own.

use std::{
    fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use super::{child::Signal, daemon::Daemon, probe};

/// A server's files, port and settings, and its process while it runs.
#[derive(Debug)]
pub(crate) struct NatsServer {
    program: PathBuf,
    address: SocketAddr,
    daemon: Daemon,
}

impl NatsServer {
    /// Writes the server's configuration into `folder`, which must exist. `settings` are lines of a
    /// `nats-server` configuration, such as `max_payload: 8MB`.
    pub(crate) fn create(folder: &Path, address: SocketAddr, settings: &[&str]) -> io::Result<Self> {
        let server = Self { program: program()?, address, daemon: Daemon::new("NATS", folder, Signal::Kill) };
        let data = folder.join("data");
        let settings = settings.join("\n");
        let configuration =
            format!("listen: \"{address}\"\njetstream {{ store_dir: \"{}\" }}\n{settings}\n", data.display());
        fs::write(server.configuration(), configuration)?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.address)
    }

    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Starts the process and returns at once: ask [`NatsServer::is_ready`].
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        command.current_dir(self.daemon.folder()).arg("--config").arg(self.configuration());
        self.daemon.start(&mut command)
    }

    /// Whether it serves clients by now. Fails if it has ended instead.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        let url = self.url();
        self.daemon.is_ready(|| probe::nats(&url).is_ok())
    }

    fn configuration(&self) -> PathBuf {
        self.daemon.folder().join("nats.conf")
    }
}

/// The server's program. Debian has it where only root's path leads.
pub(crate) fn program() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/usr/local/bin".into()])
        .map(|folder| folder.join("nats-server"))
        .find(|program| program.exists())
        .ok_or_else(|| io::Error::new(ErrorKind::NotFound, "NATS (nats-server) is not installed"))
}
