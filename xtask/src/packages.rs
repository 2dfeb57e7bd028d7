//! The programs of the servers: tests that stop a server start one of their own from them.

use std::{env, process::Command};

use crate::{
    failure::{Failure, Result},
    local::{node, postmaster},
    steps,
};

/// Installs what is missing where we may (Debian's and Ubuntu's packages, as root); otherwise says what to
/// install.
pub(crate) fn ensure() -> Result {
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
    ];
    needs.into_iter().filter_map(|(package, missing)| missing.then_some(package)).collect()
}

fn in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).exists())
}
