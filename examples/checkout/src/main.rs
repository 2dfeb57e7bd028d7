//! A service that takes payments over HTTP, charges them at a provider, and receives webhooks.
//!
//! ```console
//! $ cargo run -p checkout -- check      # copies, kills and lost answers: is everything paid and charged once?
//! ```
//!
//! `README.md` walks through it.

mod amount;
mod charges;
mod check;
mod client;
mod pay;
mod payments;
mod problem;
mod provider;
mod serve;
mod webhooks;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// Takes payments, once each.
#[derive(Debug, Parser)]
#[command(name = "checkout")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Takes payments and webhooks over HTTP, and charges the payments at the provider.
    Serve(serve::ServeArgs),
    /// A payment provider that keeps to idempotency keys, and is slow and unreliable on purpose.
    Provider(provider::ProviderArgs),
    /// Makes one payment, asking until there is an answer.
    Pay(pay::PayArgs),
    /// Makes many payments several times each, kills the service meanwhile, and compares the books.
    Check(check::CheckArgs),
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    log();
    let ended = match cli.command {
        Command::Serve(args) => Box::pin(serve::run(&args)).await.map(|()| true),
        Command::Provider(args) => provider::run(&args).await.map(|()| true),
        Command::Pay(args) => pay::run(&args).await,
        Command::Check(args) => check::run(&args).await,
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("checkout: {error}");
            ExitCode::from(3)
        }
    }
}

/// Logs to standard error what `RUST_LOG` asks for, and warnings else.
fn log() {
    let asked = std::env::var("RUST_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = asked.unwrap_or_else(|| {
        use tracing::Level;
        Targets::new().with_default(Level::WARN).with_target("sqlx::query", Level::ERROR) // slow statements
    });
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(log.with_filter(filter)).init();
}

/// Completes when the process is told to stop.
async fn told_to_stop() {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return std::future::pending().await };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}
