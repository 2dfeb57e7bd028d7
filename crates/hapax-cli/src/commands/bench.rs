//! `hapax bench`: what protection costs, and what batches win, side by side in one run.

mod consume;
mod contender;
mod ground;
mod http;
#[cfg(feature = "mysql")]
mod mysql;
mod pace;
mod payments;
mod plain;
mod postgres;
mod protected;
mod relay;
mod report;
mod sqlite;
mod stock;
mod unprotected;

use std::process::ExitCode;

use hapax::Code;
use hapax::sql::SqlStore;
use tokio_util::sync::CancellationToken;

use self::contender::Contender;
use self::ground::{Arena, Ground};
use self::pace::Pace;
use self::payments::Payments;
use self::report::Report;
use self::stock::Stock;
use crate::args::Bench;
use crate::open::{self, Missing, with_sql_store};
use crate::progress;
use crate::shutdown;
use crate::trouble::Trouble;

/// Of a pass's messages, one in so many is handled beforehand, so that connections and caches are warm.
const WARM_UP: u32 = 10;
/// The exit code of a program that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Measures every contender in turn, as many rounds as asked for, and prints the medians.
pub(crate) async fn run(args: Bench) -> Result<ExitCode, Trouble> {
    let contenders = chosen(&args)?;
    let stop = shutdown::on_signal();
    let schema = format!("hapax_bench_{:08x}", fastrand::u32(..));
    let found = open::at_url(&args.store, &schema, Missing::Create).await?;
    with_sql_store!(found, store => Box::pin(measure_on(&store, &args, &contenders, &stop)).await)
}

/// The contenders that the arguments name; the baseline is always among them, and first.
fn chosen(args: &Bench) -> Result<Vec<Contender>, Trouble> {
    let wrong = |message: String, cure: &str| Trouble::usage(Code::UsageWrong, message, cure);
    let least = [("messages", args.messages), ("workers", args.workers), ("rounds", args.rounds)];
    if let Some((name, _)) = least.iter().find(|(_, number)| *number == 0) {
        return Err(wrong(format!("--{name} is 0"), "Give 1 at least."));
    }
    let all: &[Contender] = if args.http { &Contender::HTTP } else { &Contender::ALL };
    let named = |name: &String| all.iter().any(|contender| contender.name() == name);
    if let Some(unknown) = args.only.iter().find(|name| !named(name)) {
        let known = all.iter().map(|contender| contender.name()).collect::<Vec<_>>().join(", ");
        return Err(wrong(format!("there is no row `{unknown}`"), &format!("The rows are {known}.")));
    }
    let wanted = |contender: &Contender| {
        let listed = args.only.iter().any(|name| name == contender.name());
        args.only.is_empty() || listed || all.first() == Some(contender)
    };
    Ok(all.iter().copied().filter(wanted).collect())
}

/// Whatever happens in between, the tables are dropped at the end.
async fn measure_on<D: Arena>(
    found: &SqlStore<D>,
    args: &Bench,
    contenders: &[Contender],
    stop: &CancellationToken,
) -> Result<ExitCode, Trouble> {
    let ground = Ground::<D>::open(&args.store, found.schema(), args.workers).await?;
    if let Some(broker) = &args.broker {
        let measured = match ground.lay_out().await {
            Ok(()) if args.consume => consume::run(&ground, broker, args, stop).await,
            Ok(()) => relay::run(&ground.store, broker, args, stop).await,
            Err(error) => Err(error.into()),
        };
        let cleared = ground.clear().await;
        if !measured? {
            return Ok(interrupted());
        }
        cleared?;
        return Ok(ExitCode::SUCCESS);
    }
    let measured = match ground.lay_out().await {
        Ok(()) => measure(&ground, args, contenders, stop).await,
        Err(error) => Err(error.into()),
    };
    let cleared = ground.clear().await;
    let Some(report) = measured? else { return Ok(interrupted()) };
    cleared?;
    report.print(args, ground.place());
    Ok(ExitCode::SUCCESS)
}

fn interrupted() -> ExitCode {
    eprintln!("interrupted: nothing is reported, and the tables are dropped");
    ExitCode::from(INTERRUPTED)
}

/// `None` if it was asked to stop on the way.
async fn measure<D: Arena>(
    ground: &Ground<D>,
    args: &Bench,
    contenders: &[Contender],
    stop: &CancellationToken,
) -> Result<Option<Report>, Trouble> {
    let mut report = Report::of(contenders);
    let bar = progress::bar(contenders.len() as u64 * (u64::from(args.rounds) + 1), "measuring");
    let mut order = contenders.to_vec();
    for round in 0..=args.rounds {
        let warm_up = round == 0;
        let messages = if warm_up { args.messages.div_ceil(WARM_UP) } else { args.messages };
        let payments = Payments::new(messages, round);
        for contender in &order {
            let Some(pace) = pass(ground, *contender, args.workers, &payments, stop).await? else {
                bar.finish_and_clear();
                return Ok(None);
            };
            if !warm_up {
                report.note(*contender, messages, &pace);
            }
            bar.inc(1);
        }
        order.rotate_left(1); // so that nobody always comes after the same one
    }
    bar.finish_and_clear();
    Ok(Some(report))
}

/// One contender handles all messages once; then every one of them must have had its effect, once.
async fn pass<D: Arena>(
    ground: &Ground<D>,
    contender: Contender,
    workers: u32,
    payments: &Payments,
    stop: &CancellationToken,
) -> Result<Option<Pace>, Trouble> {
    ground.level().await?;
    let before = ground.total().await?;
    let deliveries = payments.deliveries();
    let stock = Stock::new(deliveries.clone());
    let pace = match contender {
        Contender::Unprotected => unprotected::run(ground, workers, &stock, stop).await?,
        Contender::SeedForm => unprotected::run_seed_form(ground, workers, &stock, stop).await?,
        Contender::Protected { .. } | Contender::OnBatch { .. } | Contender::SqlHandlers { .. } => {
            protected::run(ground, contender, workers, &stock, stop).await?
        }
        Contender::Http(mode) => http::run(ground, (contender, mode), workers, &stock, stop).await?,
        Contender::Replays(mode) => {
            http::run(ground, (contender, mode), workers, &stock, stop).await?;
            http::run(ground, (contender, mode), workers, &Stock::new(deliveries), stop).await?
        }
        Contender::Duplicates { .. } => {
            protected::run(ground, contender, workers, &stock, stop).await?;
            protected::run_again(ground, contender, workers, &Stock::new(deliveries), stop).await?
        }
    };
    if stop.is_cancelled() {
        return Ok(None);
    }
    ground.verify(contender, before + payments.sum()).await?;
    Ok(Some(pace))
}
