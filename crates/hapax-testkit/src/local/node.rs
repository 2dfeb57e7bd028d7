//! A RabbitMQ node on a data folder of its own. It runs beside others on one machine, with its own name,
//! ports and cookie; only Erlang's port mapper (epmd) is shared, and started (to stay) if it is not there.

use std::{
    fs,
    io::{self, ErrorKind},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use super::{child::Signal, daemon::Daemon, port, probe};

/// Debian's script behind the one in the path: that one insists on the user `rabbitmq` and on its files.
const DEBIAN: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// One scheduler is enough for a test, on a machine that runs other tests.
const ERLANG: &str = "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}";

/// A node's files, name and ports, and its process while it runs.
#[derive(Debug)]
pub(crate) struct Node {
    program: PathBuf,
    name: String,
    address: SocketAddr,
    distribution: SocketAddr,
    settings: Vec<String>,
    daemon: Daemon,
}

impl Node {
    /// Writes the node's configuration into `folder`, which must exist; `name` must differ from other nodes'
    /// names. `settings` are parameters of the Erlang application `rabbit`, which hold for each start; unlike
    /// `rabbitmq.conf` they may be any of them.
    pub(crate) fn create(
        folder: &Path,
        name: &str,
        address: SocketAddr,
        settings: &[(&str, &str)],
    ) -> io::Result<Self> {
        let node = Self {
            program: program()?,
            name: format!("{name}@localhost"),
            address,
            distribution: port::free_address()?,
            settings: settings.iter().map(|(name, value)| format!(" -rabbit {name} {value}")).collect(),
            daemon: Daemon::new("RabbitMQ", folder, Signal::Kill),
        };
        node.configure()?;
        Ok(node)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.address)
    }

    pub(crate) fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Starts the process and returns at once: ask [`Node::is_ready`].
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let mut command = self.command();
        self.daemon.start(&mut command)
    }

    /// Whether it serves clients by now. Fails if it has ended instead.
    pub(crate) fn is_ready(&mut self) -> io::Result<bool> {
        let url = self.url();
        self.daemon.is_ready(|| probe::rabbitmq(&url).is_ok())
    }

    fn inside(&self, name: &str) -> PathBuf {
        self.daemon.folder().join(name)
    }

    fn configure(&self) -> io::Result<()> {
        fs::write(self.inside("enabled_plugins"), "[].\n")?;
        // Stands for the machine's own file of this kind, which would rename the node.
        fs::write(self.inside("rabbitmq-env.conf"), "")?;
        // The default alarm stops publishers when less than 50 MB are free; a test's disk is nobody's data.
        let settings = format!("listeners.tcp.1 = {}\ndisk_free_limit.absolute = 1MB\n", self.address);
        fs::write(self.inside("rabbitmq.conf"), settings)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(self.daemon.folder())
            // Erlang writes the cookie there.
            .env("HOME", self.daemon.folder())
            .env("RABBITMQ_NODENAME", &self.name)
            .env("RABBITMQ_DIST_PORT", self.distribution.port().to_string())
            .env("RABBITMQ_MNESIA_BASE", self.inside("data"))
            .env("RABBITMQ_LOG_BASE", self.inside("log"))
            .env("RABBITMQ_PID_FILE", self.inside("pid"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", self.inside("config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", self.inside("enabled_plugins"))
            .env("RABBITMQ_CONF_ENV_FILE", self.inside("rabbitmq-env.conf"))
            .env("RABBITMQ_CONFIG_FILE", self.inside("rabbitmq.conf"))
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            // "Input allowed" makes the script become the node, instead of standing before it with signal
            // handlers that call rabbitmqctl; `-noinput` then takes the input away again.
            .env("RABBITMQ_ALLOW_INPUT", "1")
            .env("RABBITMQ_SERVER_START_ARGS", "-noinput")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", ERLANG.to_owned() + &self.settings.concat());
        for inherited in
            ["RABBITMQ_NODE_PORT", "RABBITMQ_NODE_IP_ADDRESS", "RABBITMQ_MNESIA_DIR", "RABBITMQ_LOGS"]
        {
            command.env_remove(inherited);
        }
        command
    }
}

/// The script that starts a node.
pub(crate) fn program() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("rabbitmq-server"));
    std::iter::once(PathBuf::from(DEBIAN))
        .chain(in_path)
        .find(|program| program.exists())
        .ok_or_else(|| io::Error::new(ErrorKind::NotFound, "RabbitMQ (rabbitmq-server) is not installed"))
}
