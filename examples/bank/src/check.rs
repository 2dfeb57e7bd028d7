//! `bank check`: makes transfers while everything goes wrong, and then counts the money.

mod audit;
mod load;
mod process;
mod quiet;
mod scratch;
mod trial;

use std::time::Instant;

use hapax::BoxError;

pub(crate) use audit::Findings;
pub(crate) use scratch::{Scratch, Servers};
pub(crate) use trial::{Trial, Victim};

/// What is tried, and where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// How many transfers to make.
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = transfers)]
    transfers: usize,
    /// The share of requests and messages that come twice, and of messages that come out of order.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, value_parser = share)]
    duplicates: f64,
    /// How often one of the services is killed with SIGKILL.
    #[arg(long, value_name = "N", default_value_t = 10)]
    kills: u32,
    /// What chance is drawn from; by default another number each time.
    #[arg(long)]
    seed: Option<u64>,
    /// Prints the findings as one line of JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    servers: Servers,
}

/// Reads how many transfers there are to be.
pub(crate) fn transfers(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a whole number from 1 on".to_owned())
}

/// Reads a share.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is a number from 0 to 1".to_owned())
}

/// Runs something to its end, unless somebody interrupts it: so that what it has made is removed all the same.
pub(crate) async fn unless_interrupted<T>(
    trial: impl Future<Output = Result<T, BoxError>>,
) -> Result<T, BoxError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        ended = trial => ended,
        _ = terminate.recv() => Err("interrupted".into()),
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    }
}

/// Runs one trial; true if it ends clean.
pub(crate) async fn run(args: &CheckArgs) -> Result<bool, BoxError> {
    let begun = Instant::now();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let scratch = Scratch::create(&args.servers).await?;
    let CheckArgs { transfers, duplicates, kills, .. } = *args;
    let (patience, shows_progress) = (scratch.patience(), !args.json);
    let trial = Trial { duplicates, kills, seed, patience, shows_progress, ..Trial::of(transfers) };
    if !args.json {
        eprintln!("{scratch}; seed {seed}");
    }
    let findings = unless_interrupted(trial.run(&scratch)).await;
    let removed = scratch.remove().await;
    let findings = findings?;
    removed?;
    if args.json {
        println!("{}", serde_json::to_string(&findings)?);
    } else {
        println!("{findings}\n{:.0} s, seed {seed}", begun.elapsed().as_secs_f64());
    }
    Ok(findings.is_clean())
}
