//! The long tests, and the page that shows their results: the outages, and the bank.

use std::{fs, process::Command};

use crate::{
    args::Length,
    failure::{Context, Failure, Result},
    packages,
    servers::Servers,
    steps,
};

/// The page, from the root of the workspace.
const PAGE: &str = "docs/soak.md";

/// The head of the soak test's table, whose rows the test prints.
const HEAD: &str = "| store | broker | messages | copies sent besides | the consumer killed (SIGKILL) | the database away | \
                    the broker away | the run | lost | doubled |\n|---|---|---|---|---|---|---|---|---|---|";

/// How the bank is tried, unless its length is said.
const TRANSFERS: u32 = 10_000;
const BANK: [&str; 4] = ["--duplicates", "0.3", "--kills", "30"];

/// Runs the soak test and the bank's check in release mode and writes what they print to the page, with the commit
/// they ran on.
pub(crate) fn run(length: &Length) -> Result {
    packages::ensure()?;
    let servers = Servers::ensure()?;
    // Told to build one test, cargo leaves out the program that this test kills.
    let subject = ["build", "--release", "--package", "hapax-testkit", "--example", "subject"];
    steps::run("the consumer", &mut steps::cargo(subject))?;
    let mut soak = steps::cargo([
        "test",
        "--release",
        "--package",
        "hapax-testkit",
        "--test",
        "soak",
        "--",
        "--nocapture",
        "--test-threads=1",
    ]);
    servers.name_to(&mut soak).env("HAPAX_REQUIRE_SERVERS", "1").env("HAPAX_SOAK", "1");
    for (variable, value) in
        [("HAPAX_SOAK_MINUTES", length.minutes), ("HAPAX_SOAK_MESSAGES", length.messages)]
    {
        if let Some(value) = value {
            soak.env(variable, value.to_string());
        }
    }
    let output = steps::run_and_read("soak", &mut soak)?;
    let transfers = length.messages.unwrap_or(TRANSFERS).to_string();
    let check = [&["check", "--transfers", transfers.as_str()], &BANK[..]].concat();
    let mut bank = steps::cargo(["run", "--release", "--package", "bank", "--"]);
    let bank = steps::run_and_read("bank", servers.name_to_bank(bank.args(&check)))?;
    let page = page(&output, &check.join(" "), &bank, &commit()?, &machine())?;
    fs::write(steps::root().join(PAGE), page).context(&format!("writing {PAGE}"))?;
    println!("written: {PAGE}");
    Ok(())
}

/// The page's text: what was run on what, the lines of the output that are a Markdown table, and what the bank says.
fn page(output: &str, check: &str, bank: &str, commit: &str, machine: &str) -> Result<String> {
    let table: Vec<&str> = output.lines().map(str::trim).filter(|line| line.starts_with('|')).collect();
    if table.is_empty() {
        return Err(Failure::new("the soak test printed no table (lines that start with `|`)"));
    }
    Ok(format!(
        "# Soak test\n\nWritten by `cargo xtask soak`, on commit {commit}, {machine}.\n\n{HEAD}\n{}\n\n\
         ## The bank\n\n[The example](bank.md) on MongoDB, PostgreSQL and RabbitMQ: `bank {check}`.\n\n\
         ```text\n{}\n```\n",
        table.join("\n"),
        bank.trim()
    ))
}

/// The commit, and whether the files were those of the commit.
fn commit() -> Result<String> {
    let git = |args: &[&str]| steps::read(Command::new("git").current_dir(steps::root()).args(args));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = !git(&["status", "--porcelain"])?.is_empty();
    Ok(if changed { format!("`{commit}` with changes on top") } else { format!("`{commit}`") })
}

fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or_else(|_| "?".into(), |cores| cores.to_string());
    format!("{cores} cores, {}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn the_page_holds_the_table_and_what_it_ran_on() {
        let output = "running 1 test\n| PostgreSQL | 0 |\ntest soak ... ok\n";
        let page = page(output, "check --kills 1", "0 lost\nclean\n", "`abc`", "2 cores").unwrap();
        assert!(page.contains("commit `abc`, 2 cores"), "{page}");
        assert!(
            page.contains("doubled |\n|---|---|---|---|---|---|---|---|---|---|\n| PostgreSQL | 0 |\n\n"),
            "{page}"
        );
        assert!(page.contains("`bank check --kills 1`"), "{page}");
        assert!(page.ends_with("\n```text\n0 lost\nclean\n```\n"), "{page}");
    }

    #[test]
    fn a_run_without_a_table_fails() {
        assert!(page("test soak ... ok", "", "", "`abc`", "2 cores").is_err());
    }
}
