//! moto, a server in Python that speaks SQS's protocol and keeps its queues in memory.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use super::{child::Signal, daemon::Daemon, probe};

/// Where `cargo xtask test` puts the program, under the root of the workspace.
pub(crate) const PROGRAMS: &str = ".test-servers/moto";

/// A server's port, and its process while it runs.
#[derive(Debug)]
pub(crate) struct Moto {
    program: PathBuf,
    address: SocketAddr,
    checks_credentials: bool,
    daemon: Daemon,
}

impl Moto {
    /// A server whose output goes to `folder`, which must exist.
    pub(crate) fn create(folder: &Path, address: SocketAddr) -> io::Result<Self> {
        let daemon = Daemon::new("moto", folder, Signal::Kill);
        Ok(Self { program: program()?, address, checks_credentials: false, daemon })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("sqs://{}", self.address)
    }

    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Starts the process and returns at once: ask [`Moto::is_ready`].
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        command.current_dir(self.daemon.folder()).args([
            "-H",
            &self.address.ip().to_string(),
            "-p",
            &self.address.port().to_string(),
        ]);
        if self.checks_credentials {
            command.env("INITIAL_NO_AUTH_ACTION_COUNT", "0");
        }
        self.daemon.start(&mut command)
    }

    /// Whether it serves clients by now. Fails if it has ended instead.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        let url = self.url();
        self.daemon.is_ready(|| probe::sqs(&url).is_ok())
    }
}

impl Moto {
    /// The same, letting nobody in: it knows no user.
    pub(crate) fn checking_credentials(mut self) -> Self {
        self.checks_credentials = true;
        self
    }
}

/// The program: in the path, else where `cargo xtask test` puts it.
pub(crate) fn program() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("moto_server"));
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let installed = here.ancestors().map(|folder| folder.join(PROGRAMS).join("bin/moto_server"));
    in_path.chain(installed).find(|program| program.exists()).ok_or_else(|| {
        io::Error::new(
            ErrorKind::NotFound,
            "moto (moto_server) is neither in the path nor in .test-servers, where `cargo xtask test` puts it",
        )
    })
}
