//! Development tasks, run as `cargo xtask TASK`; `cargo xtask help` lists them.
//!
//! It depends on nothing, so that it builds in a moment and also while the workspace does not.

mod args;
mod cases;
mod ci;
mod failure;
#[allow(dead_code, reason = "the test kit, whose folder this is, uses more of it than xtask does")]
#[path = "../../crates/hapax-testkit/src/local/mod.rs"]
mod local;
mod packages;
mod servers;
mod soak;
mod steps;
mod suite;

use std::{env, process::ExitCode};

use args::Task;
use failure::Result;

fn main() -> ExitCode {
    let task = match Task::parse(env::args().skip(1)) {
        Ok(task) => task,
        Err(mistake) => {
            eprintln!("{mistake}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(&task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nxtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> Result {
    match task {
        Task::Help => {
            println!("{}", args::USAGE);
            Ok(())
        }
        Task::Ci => ci::run(),
        Task::Test { scope, runner } => suite::run(*scope, runner),
        Task::Soak(length) => soak::run(length),
    }
}
