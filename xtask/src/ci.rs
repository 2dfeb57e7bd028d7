//! What CI checks, here and nowhere else: `.ci/run` only calls this.

use crate::{
    args::Scope,
    cases,
    failure::{Failure, Result},
    steps, suite,
};

/// The main command of the README.
const MAIN: [&str; 5] = ["run", "--release", "--", "run", "examples/payments/hapax.toml"];

/// Runs every check, and stops at the first that fails. The tests come last, since their summary must.
pub(crate) fn run() -> Result {
    steps::run("format", &mut steps::cargo(["fmt", "--all", "--check"]))?;
    let mut lints = steps::cargo(["clippy", "--workspace", "--all-targets", "--quiet"]);
    steps::run("lints", lints.args(suite::FEATURES).args(["--", "-D", "warnings"]))?;
    features()?;
    let mut documentation = steps::cargo(["doc", "--workspace", "--no-deps", "--quiet"]);
    steps::run("documentation", documentation.env("RUSTDOCFLAGS", "-D warnings"))?;
    main_command()?;
    suite::run(Scope::All, &[])?;
    cases::is_committed()
}

/// What each feature of the library needs it must switch on by itself; and the program builds with each of its own.
fn features() -> Result {
    let library =
        ["", "sqlite", "postgres", "mysql", "mongodb", "rabbitmq", "kafka", "nats", "sqs", "redis", "http"];
    for feature in library {
        let mut check = steps::cargo(["check", "--quiet", "--package", "hapax", "--no-default-features"]);
        steps::run(&format!("hapax with `{feature}`"), check.args(["--features", feature]))?;
    }
    let mut program = steps::cargo(["check", "--quiet", "--package", "hapax-cli"]);
    steps::run("the program with its default features", &mut program)
}

/// As a newcomer runs it; and again, when everything is a duplicate.
fn main_command() -> Result {
    steps::run("main command", &mut steps::cargo(MAIN))?;
    let mut again = steps::cargo(MAIN);
    let output = steps::run_and_read("main command, again", again.arg("--json"))?;
    if handled_nothing(&output) {
        return Ok(());
    }
    Err(Failure::new("a second run of the main command must handle nothing, and it did"))
}

/// Whether one line of the output is a summary with `"handled": 0`.
fn handled_nothing(output: &str) -> bool {
    output.lines().any(|line| {
        let compact: String = line.split_whitespace().collect();
        compact.contains(r#""handled":0,"#) || compact.contains(r#""handled":0}"#)
    })
}

#[cfg(test)]
mod tests {
    use super::handled_nothing;

    #[test]
    fn only_a_summary_of_zero_counts() {
        assert!(handled_nothing("{\"handled\": 0, \"duplicates\": 1000}"));
        assert!(!handled_nothing(r#"{"handled":10,"duplicates":0}"#));
        assert!(!handled_nothing(""));
    }
}
