//! `hapax bench --broker URL --consume`: from the broker into the database, end to end, beside the plainest correct
//! consumer that is written on the broker's own client library.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hapax::sql::SqlTx;
use hapax::{
    BoxSource, Broker, BrokerPublisher, Code, Consumer, Error, ErrorKind, Message, Outgoing, Publisher as _,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::ground::{Arena, Ground, defect};
use super::payments::{KIND, Payment, Payments};
use super::{plain, unprotected};
use crate::args::Bench;
use crate::out::say;
use crate::progress;
use crate::trouble::Trouble;

/// Messages that are published together.
const TOGETHER: usize = 500;
/// How long nothing may come before the measurement is given up.
const SILENCE: Duration = Duration::from_mins(1);
/// The readers' name on the broker.
pub(super) const READER: &str = "bench";

/// A row of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    /// The client library, a transaction and an ack for each message. The baseline.
    Plain,
    /// Hapax, singly.
    Singly,
    /// Hapax in batches of 50, its default.
    Batches,
    /// Hapax, one statement for up to 100 messages.
    OnBatch,
}

impl Contender {
    const ALL: [Self; 4] = [Self::Plain, Self::Singly, Self::Batches, Self::OnBatch];

    const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain-client",
            Self::Singly => "protected-singly",
            Self::Batches => "protected-batches",
            Self::OnBatch => "on-batch",
        }
    }

    const fn batch(self) -> usize {
        match self {
            Self::Plain | Self::Singly => 1,
            Self::Batches => 50,
            Self::OnBatch => 100,
        }
    }
}

/// Counts what was handled, from the first message on.
#[derive(Clone, Debug)]
pub(super) struct Tally(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    begun: OnceLock<Instant>,
    left: AtomicU32,
    done: CancellationToken,
    ended: OnceLock<Instant>,
}

impl Tally {
    fn of(messages: u32) -> Self {
        let left = AtomicU32::new(messages);
        let done = CancellationToken::new();
        Self(Arc::new(Counts { begun: OnceLock::new(), left, done, ended: OnceLock::new() }))
    }

    /// The first message is in hand.
    pub(super) fn begin(&self) {
        self.0.begun.get_or_init(Instant::now);
    }

    /// A message is handled and acked.
    pub(super) fn count(&self) {
        if self.0.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.end();
        }
    }

    fn end(&self) {
        self.0.ended.get_or_init(Instant::now);
        self.0.done.cancel();
    }

    /// Everything is handled.
    pub(super) fn done(&self) -> &CancellationToken {
        &self.0.done
    }

    fn took(&self) -> Option<Duration> {
        Some(*self.0.ended.get()? - *self.0.begun.get()?)
    }
}

/// Measures, prints, and leaves no queue behind. False if it was asked to stop on the way.
pub(super) async fn run<D: Arena>(
    ground: &Ground<D>,
    url: &str,
    args: &Bench,
    stop: &CancellationToken,
) -> Result<bool, Trouble> {
    let broker = Broker::open(url).await?.declare();
    let publisher = broker.publisher();
    let mut rates = Contender::ALL.map(|contender| (contender, Vec::new()));
    let bar = progress::bar(Contender::ALL.len() as u64 * (u64::from(args.rounds) + 1), "measuring");
    let mut order: Vec<usize> = (0..rates.len()).collect();
    for round in 0..=args.rounds {
        let messages = if round == 0 { args.messages.div_ceil(super::WARM_UP) } else { args.messages };
        let payments = Payments::new(messages, round);
        for index in &order {
            let (contender, noted) = &mut rates[*index];
            let queue = format!("{}_{round}_{}", ground.store.schema(), contender.name());
            let pass = Pass { ground, url, broker: &broker, queue: &queue, workers: args.workers, stop };
            let took = pass.run(*contender, &payments, messages, &publisher).await;
            publisher.delete(&queue).await?;
            let Some(took) = took? else { return Ok(false) };
            if round > 0 {
                noted.push(f64::from(messages) / took.as_secs_f64());
            }
            bar.inc(1);
        }
        order.rotate_left(1); // so that nobody always comes after the same one
    }
    bar.finish_and_clear();
    publisher.close().await;
    print(args, &rates);
    Ok(true)
}

/// One contender's turn, on a queue of its own.
struct Pass<'p, D: Arena> {
    ground: &'p Ground<D>,
    url: &'p str,
    broker: &'p Broker,
    queue: &'p str,
    workers: u32,
    stop: &'p CancellationToken,
}

impl<D: Arena> Pass<'_, D> {
    /// How long it took from the first message in hand to the last one acked; none if it was asked to stop.
    async fn run(
        &self,
        contender: Contender,
        payments: &Payments,
        messages: u32,
        publisher: &BrokerPublisher,
    ) -> Result<Option<Duration>, Trouble> {
        self.ground.level().await?;
        let before = self.ground.total().await?;
        self.declare(publisher).await?;
        for together in payments.deliveries().chunks(TOGETHER) {
            let outgoing = together.iter().cloned().map(|envelope| Outgoing::to_queue(self.queue, envelope));
            publisher.publish_all(outgoing.collect()).await?;
        }
        let tally = Tally::of(messages);
        let consuming = async {
            match contender {
                Contender::Plain => self.plainly(&tally).await,
                _ => self.protected(contender, messages, &tally).await,
            }
        };
        tokio::select! {
            ended = consuming => ended?,
            () = self.stop.cancelled() => return Ok(None),
        }
        let total = self.ground.total().await?;
        if total != before + payments.sum() {
            let context =
                format!("after `{}` the orders do not come to what the messages do", contender.name());
            return Err(Error::new(ErrorKind::Broken, Code::TotalsWrong, context).into());
        }
        Ok(tally.took())
    }

    /// A queue; on Kafka with as many partitions as there are workers, so that each of the plain ones has work.
    async fn declare(&self, publisher: &BrokerPublisher) -> Result<(), Error> {
        #[cfg(feature = "kafka")]
        if self.url.starts_with("kafka:") {
            let partitions = u16::try_from(self.workers).unwrap_or(u16::MAX);
            return hapax::kafka::Kafka::from_url(self.url)?
                .publisher()
                .create_topic_of(self.queue, partitions)
                .await;
        }
        publisher.declare(self.queue).await
    }

    async fn plainly(&self, tally: &Tally) -> Result<(), Trouble> {
        let ground = self.ground.clone();
        let handle = move |body: Vec<u8>| {
            let ground = ground.clone();
            async move {
                let payment = unprotected::read(&body)?;
                unprotected::handle(&ground, payment).await.map_err(|error| ground.failed(error))
            }
        };
        let plain = plain::run(self.url, self.queue, self.workers, handle, tally);
        Ok(within(plain, tally).await?)
    }

    async fn protected(&self, contender: Contender, messages: u32, tally: &Tally) -> Result<(), Trouble> {
        let source = self.broker.source(self.queue, READER);
        let consumer = self.consumer(contender, source)?;
        let (first, text) = (tally.clone(), &self.ground.texts);
        let consumer = if contender == Contender::OnBatch {
            let sql = text.add_all.clone();
            consumer.on_batch(
                KIND,
                async move |tx: &mut SqlTx<D>, messages: Vec<Message<Payment>>| -> hapax::Result {
                    first.begin();
                    let payments: Vec<Payment> = messages.iter().map(|message| *message.payload()).collect();
                    D::add_all(tx.conn(), &sql, &payments).await?;
                    Ok(())
                },
            )
        } else {
            let sql = text.add.clone();
            consumer.on(KIND, async move |tx: &mut SqlTx<D>, payment: Message<Payment>| -> hapax::Result {
                first.begin();
                D::add(tx.conn(), &sql, *payment).await?;
                Ok(())
            })
        };
        let health = consumer.health();
        let watching = async {
            while health.summary().handled < u64::from(messages) {
                tokio::time::sleep(Duration::from_millis(1)).await; // the measurement's grain
            }
            tally.end();
        };
        let consuming = consumer.run_until(tally.done().clone().cancelled_owned());
        let both = async { tokio::join!(consuming, watching).0.map(drop) };
        Ok(within(both, tally).await?)
    }

    fn consumer(
        &self,
        contender: Contender,
        source: BoxSource,
    ) -> Result<Consumer<hapax::sql::SqlStore<D>, BoxSource>, Error> {
        let workers = usize::try_from(self.workers).unwrap_or(usize::MAX);
        let format = hapax::Format::default().key(hapax::Part::Json("/order_id".parse().map_err(defect)?));
        Ok(Consumer::new(self.queue.rsplit('_').next().unwrap_or(READER), self.ground.store.clone(), source)
            .map_err(|error| Error::new(ErrorKind::Setup, Code::ConfigWrongValue, error.to_string()))?
            .format(format)
            .batch(contender.batch())
            .concurrency(workers))
    }
}

/// Gives up a contender that comes to a standstill.
async fn within(consuming: impl Future<Output = Result<(), Error>>, tally: &Tally) -> Result<(), Error> {
    let standstill = async {
        loop {
            let before = tally.0.left.load(Ordering::Relaxed);
            let begun = tally.0.begun.get().is_some();
            tokio::time::sleep(SILENCE).await;
            if !begun && tally.0.begun.get().is_none() && before == tally.0.left.load(Ordering::Relaxed) {
                return Error::new(
                    ErrorKind::Broken,
                    Code::TotalsWrong,
                    "nothing came from the broker for a minute",
                );
            }
        }
    };
    tokio::select! {
        ended = consuming => ended,
        error = standstill => Err(error),
    }
}

fn print(args: &Bench, rates: &[(Contender, Vec<f64>)]) {
    let baseline = rates.first().map_or(1.0, |(_, rates)| super::relay::median(rates));
    if args.json {
        let rows = rates.iter().map(|(contender, rates)| {
            let rate = super::relay::median(rates);
            json!({ "name": contender.name(), "rate": rate.round(), "ratio": (rate / baseline * 100.0).round() / 100.0 })
        });
        say!("{}", json!({ "rows": rows.collect::<Vec<_>>() }));
        return;
    }
    say!("{:20} {:>12} {:>7}", "", "messages/s", "ratio");
    for (contender, rates) in rates {
        let rate = super::relay::median(rates);
        say!("{:20} {rate:>12.0} {:>7.2}", contender.name(), rate / baseline);
    }
    let Bench { messages, rounds, workers, .. } = args;
    say!("{messages} messages a row and round, {workers} workers; medians of {rounds} rounds");
}
