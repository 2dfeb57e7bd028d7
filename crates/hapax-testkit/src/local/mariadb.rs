//! A MariaDB server on a data folder of its own.

use std::{
    fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{child::Signal, daemon::Daemon, postmaster::is_root, probe};

/// Who owns every server made here. It needs no password: the server listens on loopback only.
pub(crate) const USER: &str = "root";
/// A database that is always there.
pub(crate) const DATABASE: &str = "test";

/// A server's files, port and settings, and its process while it runs.
#[derive(Debug)]
pub(crate) struct MariaDb {
    address: SocketAddr,
    settings: Vec<String>,
    daemon: Daemon,
}

impl MariaDb {
    /// Creates the server's files in `folder`, which must exist. Takes about two seconds. `settings` are passed to each
    /// start, as `mariadbd --name=value` does.
    pub(crate) fn create(folder: &Path, address: SocketAddr, settings: &[(&str, &str)]) -> io::Result<Self> {
        let server = Self {
            address,
            settings: settings.iter().map(|(name, value)| format!("--{name}={value}")).collect(),
            daemon: Daemon::new("MariaDB", folder, Signal::Kill),
        };
        server.initialise()?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self, database: &str) -> String {
        format!("mysql://{USER}@{}/{database}", self.address)
    }

    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Starts the process and returns at once: ask [`MariaDb::is_ready`].
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let folder = self.daemon.folder().to_owned();
        let mut command = self.command(&program()?)?;
        command
            .arg(format!("--port={}", self.address.port()))
            .arg(format!("--bind-address={}", self.address.ip()))
            .arg(format!("--socket={}", folder.join("socket").display()))
            .arg(format!("--pid-file={}", folder.join("pid").display()))
            .arg(format!("--init-file={}", folder.join("init.sql").display()))
            .args(["--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=64M", "--log-warnings=1"])
            .args(&self.settings);
        self.daemon.start(&mut command)
    }

    /// Whether it lets clients in by now. Fails if it has ended instead.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        let url = self.url(DATABASE);
        self.daemon.is_ready(|| probe::mariadb(&url).is_ok())
    }

    fn initialise(&self) -> io::Result<()> {
        // Whoever comes over TCP is known by the address, whatever name it resolves to.
        let init = format!(
            "CREATE DATABASE IF NOT EXISTS {DATABASE};\n\
             CREATE USER IF NOT EXISTS {USER}@'{ip}';\n\
             GRANT ALL PRIVILEGES ON *.* TO {USER}@'{ip}' WITH GRANT OPTION;\n",
            ip = self.address.ip()
        );
        fs::write(self.daemon.folder().join("init.sql"), init)?;
        let output = self
            .command(&found("mariadb-install-db").or_else(|_| found("mysql_install_db"))?)?
            .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
            .output()?;
        if output.status.success() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("mariadb-install-db failed ({}):\n{}", output.status, reason.trim())))
    }

    /// A command on the data folder, without anybody's configuration. As root it has to be told that it may be.
    fn command(&self, program: &Path) -> io::Result<Command> {
        let mut command = Command::new(program);
        command
            .current_dir(self.daemon.folder())
            .stdin(Stdio::null())
            .arg("--no-defaults")
            .arg(format!("--datadir={}", self.daemon.folder().join("data").display()));
        if is_root()? {
            command.arg("--user=root");
        }
        Ok(command)
    }
}

/// The server's program.
pub(crate) fn program() -> io::Result<PathBuf> {
    found("mariadbd")
}

/// A program in the path, or where distributions put servers.
fn found(name: &str) -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|program| program.exists()).ok_or_else(|| {
        io::Error::new(ErrorKind::NotFound, format!("MariaDB's server programs ({name}) are not installed"))
    })
}
