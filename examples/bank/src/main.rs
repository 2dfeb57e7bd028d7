//! Two services that move money between accounts over a broker that delivers at least once.
//!
//! ```console
//! $ cargo run -p bank -- check      # thousands of transfers, duplicates and kills: is every cent where it belongs?
//! $ cargo run -p bank -- break      # the same with one defence after another taken away
//! ```
//!
//! `docs/bank.md` walks through it.

mod accounts;
mod breaking;
mod chaos;
mod check;
mod client;
mod events;
mod exchange;
mod money;
mod problem;
mod service;
mod transfers;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// A bank of two services, and what it takes to break it.
#[derive(Debug, Parser)]
#[command(name = "bank")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Accepts transfers over HTTP, and takes each to its end.
    TransferService(service::ServiceArgs),
    /// Keeps the accounts, and moves money when it is told to.
    AccountService(accounts::AccountArgs),
    /// Makes transfers while messages are duplicated and services killed, and counts the money.
    Check(check::CheckArgs),
    /// Does the same with one defence after another taken away, and shows what it cost.
    Break(breaking::BreakArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    log();
    let ended = match cli.command {
        Command::TransferService(args) => transfers::run(&args).await.map(|()| true),
        Command::AccountService(args) => accounts::run(&args).await.map(|()| true),
        Command::Check(args) => check::run(&args).await,
        Command::Break(args) => breaking::run(&args).await,
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bank: {error}");
            ExitCode::from(3)
        }
    }
}

/// Logs to standard error what `RUST_LOG` asks for, and warnings else.
fn log() {
    let asked = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = asked.unwrap_or_else(|| {
        use tracing::level_filters::LevelFilter;
        Targets::new().with_default(LevelFilter::WARN).with_target("lapin", LevelFilter::ERROR)
    });
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(log.with_filter(filter)).init();
}
