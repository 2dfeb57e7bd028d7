//! `checkout check`: makes payments while everything goes wrong, and then compares the books.

mod audit;
mod load;
mod process;
mod quiet;
mod scratch;
mod trial;

use std::time::Instant;

use hapax::BoxError;

use scratch::Scratch;
use trial::Trial;

/// What is tried, and where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// How many payments to make.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = at_least_one)]
    payments: usize,
    /// How many times each of them is asked for.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = at_least_one)]
    copies: usize,
    /// How often the service is killed with SIGKILL.
    #[arg(long, value_name = "N", default_value_t = 5)]
    kills: u32,
    /// The share of its answers that the provider loses.
    #[arg(long, value_name = "SHARE", default_value_t = 0.2, value_parser = share)]
    lose: f64,
    /// What chance is drawn from; by default another number each time.
    #[arg(long)]
    seed: Option<u64>,
    /// The database: sqlite:FILE, or postgres:… for a scratch database on that server. By default a scratch SQLite file.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Prints the findings as one line of JSON.
    #[arg(long)]
    json: bool,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "a whole number from 1 on".to_owned())
}

/// Reads a share.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "a share is a number from 0 to 1".to_owned())
}

/// Runs one trial; true if it ends clean.
pub(crate) async fn run(args: &CheckArgs) -> Result<bool, BoxError> {
    let begun = Instant::now();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let scratch = Scratch::create(args.store.as_deref()).await?;
    let CheckArgs { payments, copies, kills, lose, .. } = *args;
    let trial = Trial { payments, copies, kills, lose, seed, shows_progress: !args.json };
    let findings = tokio::select! {
        findings = trial.run(&scratch) => findings,
        () = crate::told_to_stop() => Err("interrupted".into()),
    };
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
