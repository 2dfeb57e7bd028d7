//! A MongoDB server on a data folder of its own: a replica set of one, since there are no transactions without.

use std::{
    fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    child::Signal,
    daemon::Daemon,
    op_msg::{Bson, command},
    probe,
};

/// The name of every replica set made here.
pub(crate) const REPLICA_SET: &str = "rs0";
/// Where `cargo xtask test` puts the programs, under the root of the workspace.
pub(crate) const PROGRAMS: &str = ".test-servers/mongodb";

/// A server's files, port and settings, and its process while it runs.
#[derive(Debug)]
pub(crate) struct Mongod {
    program: PathBuf,
    address: SocketAddr,
    alone: bool,
    settings: Vec<String>,
    daemon: Daemon,
}

impl Mongod {
    /// Creates the server's folder in `folder`, which must exist. `settings` are passed to each start, as
    /// `mongod --setParameter name=value` does.
    pub(crate) fn create(folder: &Path, address: SocketAddr, settings: &[(&str, &str)]) -> io::Result<Self> {
        let server = Self {
            program: program()?,
            address,
            alone: false,
            settings: settings
                .iter()
                .flat_map(|(name, value)| ["--setParameter".into(), format!("{name}={value}")])
                .collect(),
            daemon: Daemon::new("MongoDB", folder, Signal::Kill),
        };
        fs::create_dir(server.data())?;
        Ok(server)
    }

    /// The same without a replica set, and so without transactions.
    pub(crate) fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("mongodb://{}/{database}?replicaSet={REPLICA_SET}&directConnection=true", self.address)
    }

    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Starts the process and returns at once: ask [`Mongod::is_ready`].
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let mut command = Command::new(&self.program);
        command
            .current_dir(self.daemon.folder())
            .arg("--dbpath")
            .arg(self.data())
            .args(["--port", &self.address.port().to_string(), "--bind_ip", &self.address.ip().to_string()])
            .args(["--nounixsocket", "--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "128"])
            // Measurements for nobody; and a wait, at an orderly end, for clients to go elsewhere.
            .args(["--setParameter", "diagnosticDataCollectionEnabled=false"])
            .args(["--setParameter", "shutdownTimeoutMillisForSignaledShutdown=100"])
            .args(&self.settings);
        if !self.alone {
            command.args(["--replSet", REPLICA_SET]);
        }
        self.daemon.start(&mut command)
    }

    /// Whether it is a primary by now; a fresh server is made one. Fails if it has ended instead.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        let (address, alone, url) = (self.address, self.alone, self.url(""));
        self.daemon.is_ready(|| {
            let Ok(hello) = probe::hello(address) else { return false };
            if alone {
                return true;
            }
            if hello.is_true("isreplicaset") {
                let member = Bson::default().int("_id", 0).text("host", &address.to_string());
                let set = Bson::default().text("_id", REPLICA_SET).only("members", &member);
                // Refused where it is on its way already: then it is not to be done twice.
                let _ = command(address, "admin", Bson::default().document("replSetInitiate", &set));
            }
            probe::mongodb(&url).is_ok()
        })
    }

    fn data(&self) -> PathBuf {
        self.daemon.folder().join("data")
    }
}

/// The program: in the path, else where `cargo xtask test` puts it.
pub(crate) fn program() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("mongod"));
    in_path.filter(|program| program.exists()).chain(installed()).next().ok_or_else(|| {
        io::Error::new(
            ErrorKind::NotFound,
            "MongoDB (mongod) is neither in the path nor in .test-servers, where `cargo xtask test` puts it",
        )
    })
}

/// Inside the folder of a Python that only carries the program along.
fn installed() -> Option<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let libraries = here.ancestors().map(|folder| folder.join(PROGRAMS).join("lib"));
    let versions = libraries.filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let programs = versions
        .filter_map(|version| Some(version.ok()?.path().join("site-packages/fiftyone/db/bin/mongod")));
    programs.into_iter().find(|program| program.exists())
}
