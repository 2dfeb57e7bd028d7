//! `bank break`: the same trial with one defence after another taken away, as a table of what it cost.

mod defence;

use std::time::{Duration, Instant};

use hapax::BoxError;

use crate::check::{Findings, Scratch, Servers, Trial, Victim, share, transfers, unless_interrupted};
use crate::money::Money;
use defence::{Attempt, attempts};

/// What is tried, and where.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct BreakArgs {
    /// How many transfers to make in each row.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = transfers)]
    transfers: usize,
    /// The share of requests and messages that come twice, and of messages that come out of order.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, value_parser = share)]
    duplicates: f64,
    /// How often the account service is killed: every second time at its worst moment.
    #[arg(long, value_name = "N", default_value_t = 6)]
    kills: u32,
    /// What chance is drawn from; by default another number each time.
    #[arg(long)]
    seed: Option<u64>,
    /// The Redis for the row that keeps its marks there; without one they are in a file.
    #[arg(long, value_name = "URL", env = "HAPAX_BANK_REDIS")]
    redis: Option<String>,
    /// Makes only rows whose text contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    #[command(flatten)]
    servers: Servers,
}

const HEADER: &str = "\
| what is taken away | completed | failed | doubled | lost | stuck | money invented | missing | duplicates seen | kills | |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|";
/// Nothing of what can be stuck is held longer by a dead account service.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prints the table; true if the rows with everything in place are clean.
pub(crate) async fn run(args: &BreakArgs) -> Result<bool, BoxError> {
    let begun = Instant::now();
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    let mut chosen = attempts(args.redis.as_deref());
    chosen.retain(|attempt| attempt.title.contains(&args.only));
    if chosen.is_empty() {
        let message = format!("no row's text contains `{}`", args.only);
        clap::Error::raw(clap::error::ErrorKind::InvalidValue, message + "\n").exit();
    }
    println!("{HEADER}");
    let mut as_promised = true;
    for attempt in chosen {
        let findings = row(args, &attempt, seed).await?;
        as_promised &= findings.is_clean() || !attempt.promises;
        println!("{}", line(&attempt, &findings));
    }
    println!("\n{:.0} s, seed {seed}", begun.elapsed().as_secs_f64());
    Ok(as_promised)
}

async fn row(args: &BreakArgs, attempt: &Attempt, seed: u64) -> Result<Findings, BoxError> {
    let scratch = Scratch::create(&args.servers).await?;
    let findings = unless_interrupted(broken(args, attempt, seed, &scratch)).await;
    let removed = scratch.remove().await;
    let findings = findings?;
    removed?;
    Ok(findings)
}

async fn broken(
    args: &BreakArgs,
    attempt: &Attempt,
    seed: u64,
    scratch: &Scratch,
) -> Result<Findings, BoxError> {
    Box::pin(attempt.take_away(&scratch.accounts)).await?;
    let file = || format!("sqlite:{}", scratch.folder.path().join("marks.db").display());
    let marks = args.redis.clone().unwrap_or_else(file);
    let trial = Trial {
        duplicates: args.duplicates,
        kills: args.kills / 2,
        deaths: args.kills - args.kills / 2,
        victim: Victim::Accounts,
        seed,
        account_args: attempt.arguments(&marks),
        patience: PATIENCE,
        ..Trial::of(args.transfers)
    };
    let findings = trial.run(scratch).await?;
    attempt.restore(&scratch.accounts).await?;
    Ok(findings)
}

fn line(attempt: &Attempt, findings: &Findings) -> String {
    let Findings {
        completed, failed, doubled, lost, stuck, invented, missing, duplicates_seen, kills, ..
    } = findings;
    let (invented, missing) = (Money(*invented), Money(*missing));
    let verdict = if findings.is_clean() { "clean" } else { "**broken**" };
    format!(
        "| {} | {completed} | {failed} | {doubled} | {lost} | {stuck} | {invented} | {missing} | {duplicates_seen} | \
         {kills} | {verdict} |",
        attempt.title
    )
}
