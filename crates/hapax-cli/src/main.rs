//! The `hapax` program: runs idempotent consumers from a file, and operates them.

mod admin;
mod args;
mod broker;
mod commands;
mod config;
mod consume;
mod http;
mod logs;
mod open;
mod out;
mod plan;
mod progress;
mod relay;
mod shutdown;
mod sql;
mod statement;
mod trouble;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Args, Command};
use crate::trouble::{Trouble, USAGE};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let printed = error.print();
            if error.use_stderr() {
                return ExitCode::from(USAGE);
            }
            printed.unwrap_or_else(|error| out::failed(&error));
            return ExitCode::SUCCESS;
        }
    };
    let ended = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Trouble::runtime(&error))
        .and_then(|runtime| {
            let ended = runtime.block_on(dispatch(args));
            // A read of standard input cannot be cancelled, and would be waited for.
            runtime.shutdown_background();
            ended
        });
    match ended {
        Ok(code) => code,
        Err(trouble) => trouble.report(),
    }
}

async fn dispatch(args: Args) -> Result<ExitCode, Trouble> {
    match args.command {
        Command::Run(run) => commands::run::run(run).await,
        Command::Migrate(migrate) => commands::migrate::run(migrate).await,
        Command::Send(send) => commands::send::run(send).await,
        Command::Inbox(inbox) => commands::inbox::run(inbox).await,
        Command::Dead(dead) => commands::dead::run(dead).await,
        Command::Relay(relay) => commands::relay::run(relay).await,
        Command::Outbox(outbox) => commands::outbox::run(outbox).await,
        Command::Bench(bench) => commands::bench::run(bench).await,
    }
}
