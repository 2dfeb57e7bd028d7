//! A PostgreSQL server on a data folder of its own.

use std::{
    fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{child::Signal, daemon::Daemon, probe};

/// The role that owns every server made here. It needs no password: the server listens on loopback only.
pub(crate) const ROLE: &str = "postgres";

/// The folder that Debian and Ubuntu keep one sub-folder per major version in.
const DEBIAN: &str = "/usr/lib/postgresql";

/// A server's files, port and settings, and its process while it runs.
#[derive(Debug)]
pub(crate) struct Postmaster {
    binaries: PathBuf,
    address: SocketAddr,
    settings: Vec<String>,
    daemon: Daemon,
}

impl Postmaster {
    /// Creates the server's files in `folder`, which must exist. Takes about a second. `settings` are passed
    /// to each start, as `postgres -c name=value` does.
    pub(crate) fn create(folder: &Path, address: SocketAddr, settings: &[(&str, &str)]) -> io::Result<Self> {
        let server = Self {
            binaries: binaries()?,
            address,
            settings: settings
                .iter()
                .flat_map(|(name, value)| ["-c".into(), format!("{name}={value}")])
                .collect(),
            // An immediate shutdown, since SIGKILL would leave shared memory behind.
            daemon: Daemon::new("PostgreSQL", folder, Signal::Quit),
        };
        server.initialise()?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://{ROLE}@{}/{database}", self.address)
    }

    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Starts the process and returns at once: ask [`Postmaster::is_ready`].
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let mut command = self.command("postgres")?;
        command
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.address.port().to_string(), "-h", &self.address.ip().to_string()])
            // No socket file: its folder would have to be shared with other servers, and its path be short.
            .args(["-k", ""])
            .args(&self.settings);
        self.daemon.start(&mut command)
    }

    /// Whether it lets clients in by now. Fails if it has ended instead.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        let url = self.url(ROLE);
        self.daemon.is_ready(|| probe::postgres(&url).is_ok())
    }

    fn data(&self) -> PathBuf {
        self.daemon.folder().join("data")
    }

    fn initialise(&self) -> io::Result<()> {
        if let Some(account) = Account::for_server()? {
            std::os::unix::fs::chown(self.daemon.folder(), Some(account.user), Some(account.group))?;
        }
        let output = self
            .command("initdb")?
            .arg("-D")
            .arg(self.data())
            // Not syncing concerns these first files only: whoever loses power here starts again.
            .args(["--username", ROLE, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"])
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("initdb failed ({}):\n{}", output.status, reason.trim())))
    }

    /// A command that runs as somebody PostgreSQL accepts, from a folder that this somebody may enter.
    fn command(&self, program: &str) -> io::Result<Command> {
        let mut command = Command::new(self.binaries.join(program));
        command.current_dir(self.daemon.folder()).stdin(Stdio::null());
        if let Some(account) = Account::for_server()? {
            command.uid(account.user).gid(account.group);
        }
        Ok(command)
    }
}

/// Who runs the server.
struct Account {
    user: u32,
    group: u32,
}

impl Account {
    /// PostgreSQL refuses to run as root: for root this is the user `postgres`, for others nobody else.
    fn for_server() -> io::Result<Option<Self>> {
        if !is_root()? {
            return Ok(None);
        }
        let accounts = fs::read_to_string("/etc/passwd")?;
        Self::find(ROLE, &accounts).map(Some).ok_or_else(|| {
            io::Error::new(
                ErrorKind::NotFound,
                "PostgreSQL does not run as root, and there is no user `postgres`",
            )
        })
    }

    /// `name:password:user:group:…`
    fn find(name: &str, accounts: &str) -> Option<Self> {
        let line = accounts.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2).map(str::parse);
        Some(Self { user: numbers.next()?.ok()?, group: numbers.next()?.ok()? })
    }
}

/// Our own entry in `/proc` belongs to whom we act as; where there is no `/proc`, nobody runs tests as root.
pub(crate) fn is_root() -> io::Result<bool> {
    match fs::metadata("/proc/self") {
        Ok(this) => Ok(this.uid() == 0),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Where `initdb` and `postgres` are: in Debian's folder (the newest), else where `pg_config` says.
pub(crate) fn binaries() -> io::Result<PathBuf> {
    debian().or_else(from_pg_config).filter(|folder| folder.join("initdb").exists()).ok_or_else(|| {
        io::Error::new(
            ErrorKind::NotFound,
            "PostgreSQL's server programs (initdb, postgres) are not installed",
        )
    })
}

fn debian() -> Option<PathBuf> {
    let major = |folder: &PathBuf| folder.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = fs::read_dir(DEBIAN).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let newest = versions.filter(|folder| folder.join("bin/initdb").exists()).max_by_key(major)?;
    Some(newest.join("bin"))
}

fn from_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| PathBuf::from(folder.trim()))
}
