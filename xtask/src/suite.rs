//! The test run.

use std::{fs, io::ErrorKind, path::PathBuf, process::Command};

use crate::{
    args::Scope,
    cases,
    failure::{Context, Failure, Result},
    packages,
    servers::Servers,
    steps,
};

/// Skips tests that need a server; where they live is said in the test kit's module `servers`.
const WITHOUT_SERVERS: [&str; 2] = ["--skip", "server::"];

/// What no member of the workspace enables, and tests are there for.
pub(crate) const FEATURES: [&str; 2] = ["--features", "hapax-cli/full"];

/// Runs the tests of `scope`; `args` go to the runner. Fails if a test was skipped for want of a server.
pub(crate) fn run(scope: Scope, args: &[String]) -> Result {
    match scope {
        Scope::All => {
            packages::ensure()?;
            let servers = Servers::ensure()?;
            cases::forget()?;
            let result = run_with(args, |command| {
                servers.name_to(command).env("HAPAX_REQUIRE_SERVERS", "1");
            });
            // A run of some of the tests says nothing about the others.
            if args.is_empty() && has_nextest() { result.and_then(|()| cases::write()) } else { result }
        }
        Scope::Embedded => {
            let args: Vec<String> = args.iter().cloned().chain(WITHOUT_SERVERS.map(str::to_owned)).collect();
            run_with(&args, |command| {
                command.env_remove("HAPAX_REQUIRE_SERVERS");
            })
        }
    }
}

fn has_nextest() -> bool {
    steps::succeeds(&mut steps::cargo(["nextest", "--version"]))
}

/// The runner's summary is the last thing printed, unless something failed.
fn run_with(args: &[String], environment: impl Fn(&mut Command)) -> Result {
    let skipped = Skipped::create()?;
    let prepare = |mut command: Command| {
        environment(command.env("HAPAX_SKIPPED_TESTS", &skipped.file));
        command
    };
    if has_nextest() {
        // It runs no documentation tests; these come first, so that its summary comes last.
        let mut examples = prepare(steps::cargo(["test", "--workspace", "--doc"]));
        steps::run("documentation tests", &mut examples)?;
        let mut tests = prepare(steps::cargo(["nextest", "run", "--workspace", "--no-fail-fast"]));
        steps::run_last("tests", tests.args(FEATURES).arg("--").args(args))?;
    } else {
        let mut tests = prepare(steps::cargo(["test", "--workspace", "--no-fail-fast"]));
        steps::run_last("tests", tests.args(FEATURES).arg("--").args(args))?;
    }
    skipped.none()
}

/// The file to which tests that skip themselves write.
struct Skipped {
    file: PathBuf,
}

impl Skipped {
    fn create() -> Result<Self> {
        let folder = steps::root().join("target");
        fs::create_dir_all(&folder)?;
        let file = folder.join("skipped-tests.txt");
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).context("removing the last run's skips")
            }
            _ => Ok(Self { file }),
        }
    }

    fn none(&self) -> Result {
        match fs::read_to_string(&self.file) {
            Ok(tests) => Err(Failure::new(format!(
                "tests were skipped for want of a server; those that need one live in modules named `server`:\n{tests}"
            ))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error).context("reading which tests were skipped"),
        }
    }
}
