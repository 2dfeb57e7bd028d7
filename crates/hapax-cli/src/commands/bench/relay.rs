//! `hapax bench --broker`: the relay beside the publisher it uses, and how soon it publishes what is committed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hapax::sql::{Dialect, SqlStore};
use hapax::{
    Broker, BrokerPublisher, Code, Destination, Envelope, Error, ErrorKind, Fetched, MessageId, Outgoing,
    Publication, Publisher, Relay, Settler as _, Source as _, Store as _,
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::ground::Arena;
use super::pace::Waits;
use crate::args::Bench;
use crate::out::say;
use crate::progress;
use crate::trouble::Trouble;

/// Messages that are published together, as a relay does by default.
const BATCH: usize = 100;
/// Keys of the rows that have few.
const FEW_KEYS: u32 = 64;
/// Messages whose way from commit to broker is timed, and the time between two.
const TIMED: u32 = 300;
const APART: Duration = Duration::from_millis(15);
/// Rows written in one transaction.
const WRITTEN: usize = 500;

/// A row of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contender {
    /// The same publisher with confirms, from memory. The baseline.
    FromMemory,
    /// One relay, and as many keys as messages.
    Relay,
    /// So many relays over [`FEW_KEYS`] keys.
    FewKeys { relays: u32 },
}

impl Contender {
    const ALL: [Self; 4] =
        [Self::FromMemory, Self::Relay, Self::FewKeys { relays: 1 }, Self::FewKeys { relays: 4 }];

    const fn name(self) -> &'static str {
        match self {
            Self::FromMemory => "from-memory",
            Self::Relay => "relay",
            Self::FewKeys { relays: 1 } => "relay-64-keys",
            Self::FewKeys { .. } => "4-relays-64-keys",
        }
    }

    /// The key of a message.
    const fn key(self, number: u32) -> u32 {
        match self {
            Self::FromMemory | Self::Relay => number,
            Self::FewKeys { .. } => number % FEW_KEYS,
        }
    }
}

/// What is measured on.
struct Ground<'g, D: Dialect> {
    store: &'g SqlStore<D>,
    broker: Broker,
    queue: String,
    stop: CancellationToken,
}

/// Measures, prints, and leaves neither tables nor queue behind.
pub(super) async fn run<D: Arena>(
    store: &SqlStore<D>,
    url: &str,
    args: &Bench,
    stop: &CancellationToken,
) -> Result<bool, Trouble> {
    let queue = format!("{}_relay", store.schema());
    let ground = Ground { store, broker: Broker::open(url).await?.declare(), queue, stop: stop.clone() };
    let measured = measure(&ground, args).await;
    let publisher = ground.broker.publisher();
    publisher.delete(&ground.queue).await?;
    publisher.close().await;
    let Some((rates, waits)) = measured? else { return Ok(false) };
    print(args, &rates, &waits);
    Ok(true)
}

type Rates = Vec<(Contender, Vec<f64>)>;
type Named = Vec<(&'static str, Waits)>;

async fn measure<D: Arena>(ground: &Ground<'_, D>, args: &Bench) -> Result<Option<(Rates, Named)>, Trouble> {
    let mut rates: Rates = Contender::ALL.map(|contender| (contender, Vec::new())).into();
    let bar = progress::bar(Contender::ALL.len() as u64 * (u64::from(args.rounds) + 1) + 2, "measuring");
    let mut order: Vec<usize> = (0..rates.len()).collect();
    for round in 0..=args.rounds {
        let messages = if round == 0 { args.messages.div_ceil(super::WARM_UP) } else { args.messages };
        for index in &order {
            let (contender, noted) = &mut rates[*index];
            let took = pass(ground, *contender, messages).await?;
            if ground.stop.is_cancelled() {
                return Ok(None);
            }
            if round > 0 {
                noted.push(f64::from(messages) / took.as_secs_f64());
            }
            bar.inc(1);
        }
        order.rotate_left(1); // so that nobody always comes after the same one
    }
    let mut waits = Vec::new();
    for (name, other) in [("signal", None), ("notify", Some(another(ground, args).await?))] {
        waits.push((name, latency(ground, other.as_ref().unwrap_or(ground.store)).await?));
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(Some((rates, waits)))
}

/// The same store as another process has it.
async fn another<D: Arena>(ground: &Ground<'_, D>, args: &Bench) -> Result<SqlStore<D>, Error> {
    SqlStore::builder(&args.store).schema(ground.store.schema()).pool(1).connect().await
}

/// One contender publishes all messages once; then each must be in the queue, in the order of its key.
async fn pass<D: Arena>(
    ground: &Ground<'_, D>,
    contender: Contender,
    messages: u32,
) -> Result<Duration, Trouble> {
    let publisher = ground.broker.publisher();
    publisher.declare(&ground.queue).await?;
    let took = match contender {
        Contender::FromMemory => from_memory(ground, &publisher, messages).await?,
        Contender::Relay => relayed(ground, contender, 1, messages).await?,
        Contender::FewKeys { relays } => relayed(ground, contender, relays, messages).await?,
    };
    if !ground.stop.is_cancelled() {
        verify(ground, contender, messages).await?;
    }
    publisher.delete(&ground.queue).await?;
    publisher.close().await;
    Ok(took)
}

fn body(number: u32) -> String {
    format!(r#"{{"order_id":{number},"amount":1,"note":"what an event is about, in a hundred bytes or so"}}"#)
}

async fn from_memory<D: Arena>(
    ground: &Ground<'_, D>,
    publisher: &BrokerPublisher,
    messages: u32,
) -> Result<Duration, Error> {
    let outgoing: Vec<Outgoing> = (0..messages)
        .map(|number| {
            let envelope = Envelope::new(body(number)).with_id(format!("m{number}")).with_type("OrderPaid");
            let mut outgoing = Outgoing::to_queue(&ground.queue, envelope);
            outgoing.envelope.properties.key = Some(number.to_string());
            outgoing
        })
        .collect();
    let begun = Instant::now();
    for batch in outgoing.chunks(BATCH) {
        publisher.publish_all(batch.to_vec()).await?;
    }
    Ok(begun.elapsed())
}

/// Writes all rows, then lets relays publish them, and times these.
async fn relayed<D: Arena>(
    ground: &Ground<'_, D>,
    contender: Contender,
    relays: u32,
    messages: u32,
) -> Result<Duration, Trouble> {
    write(ground, contender, messages).await?;
    let begun = Instant::now();
    let finished = CancellationToken::new();
    let published = Arc::new(Mutex::new((messages, None)));
    let mut running = JoinSet::new();
    for _ in 0..relays {
        let counting = Counting {
            publisher: ground.broker.publisher(),
            left: Arc::clone(&published),
            finished: finished.clone(),
        };
        let (relay, stop) = (Relay::new(ground.store.clone(), counting), finished.clone());
        running.spawn(relay.run_until(async move { stop.cancelled().await }));
    }
    tokio::select! {
        () = finished.cancelled() => {}
        () = ground.stop.cancelled() => finished.cancel(),
    }
    while let Some(ended) = running.join_next().await {
        ended.map_err(super::ground::defect)??;
    }
    let ended = published.lock().unwrap_or_else(PoisonError::into_inner).1;
    Ok(ended.map_or(Duration::MAX, |ended: Instant| ended - begun))
}

async fn write<D: Arena>(ground: &Ground<'_, D>, contender: Contender, messages: u32) -> Result<(), Trouble> {
    let outbox = ground.store.outbox_of("bench")?;
    let numbers: Vec<u32> = (0..messages).collect();
    for chunk in numbers.chunks(WRITTEN) {
        let publications = chunk.iter().map(|number| {
            Publication::bytes("OrderPaid", body(*number))
                .key(contender.key(*number).to_string())
                .to(Destination::queue(&ground.queue))
        });
        publish(ground.store, &outbox, publications).await?;
    }
    Ok(())
}

/// A transaction of its own that publishes.
async fn publish<D: Dialect>(
    store: &SqlStore<D>,
    outbox: &hapax::sql::SqlOutbox<D>,
    publications: impl Iterator<Item = Publication>,
) -> Result<(), Error> {
    let scope = hapax::ConsumerName::new("bench").map_err(super::ground::defect)?;
    let (mut tx, _) = store.begin_claim(&hapax::ClaimRequest::none(&scope)).await?;
    outbox.publish_all(tx.conn(), publications).await?;
    store.finish(tx).await
}

/// Counts what is confirmed, over all relays.
struct Counting {
    publisher: BrokerPublisher,
    /// How many are left, and when there were none.
    left: Arc<Mutex<(u32, Option<Instant>)>>,
    finished: CancellationToken,
}

impl Publisher for Counting {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        let results = self.publisher.publish(messages).await;
        let confirmed = results.iter().filter(|result| result.is_ok()).count();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.0 = left.0.saturating_sub(u32::try_from(confirmed).unwrap_or(u32::MAX));
        if left.0 == 0 {
            left.1.get_or_insert_with(Instant::now);
            self.finished.cancel();
        }
        results
    }
}

/// Reads the queue and looks whether every message is there, once, and those of a key in their order.
async fn verify<D: Arena>(ground: &Ground<'_, D>, contender: Contender, messages: u32) -> Result<(), Error> {
    let wrong = |text: String| Error::new(ErrorKind::Broken, Code::TotalsWrong, text);
    let mut source = ground.broker.source(&ground.queue, "bench");
    source.prepare(1_000).await?;
    let settler = source.settler();
    let mut last: HashMap<u32, u32> = HashMap::new();
    let mut read = 0;
    while read < messages {
        let fetched = tokio::time::timeout(Duration::from_secs(10), source.next(1_000)).await;
        let Ok(Fetched::Batch(deliveries)) = fetched.unwrap_or(Ok(Fetched::Ended)) else {
            return Err(wrong(format!(
                "after `{}` {read} of {messages} messages are in the queue",
                contender.name()
            )));
        };
        for delivery in &deliveries {
            let body: serde_json::Value = serde_json::from_slice(&delivery.envelope.body).unwrap_or_default();
            let number =
                body["order_id"].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or_default();
            let key = contender.key(number);
            if last.insert(key, number).is_some_and(|before| before >= number) {
                return Err(wrong(format!("after `{}` key {key} is out of order", contender.name())));
            }
        }
        read += u32::try_from(deliveries.len()).unwrap_or(u32::MAX);
        settler.settle(deliveries.into_iter().map(hapax::Delivery::ack).collect()).await;
    }
    source.close().await;
    Ok(())
}

/// How long it takes from a commit until the relay hands the message to the broker, when nothing else happens.
/// `writer` commits.
async fn latency<D: Arena>(ground: &Ground<'_, D>, writer: &SqlStore<D>) -> Result<Waits, Trouble> {
    let publisher = ground.broker.publisher();
    publisher.declare(&ground.queue).await?;
    let begun: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let timing = Timing { publisher: publisher.clone(), begun: Arc::clone(&begun) };
    let stop = CancellationToken::new();
    let relay = Relay::new(ground.store.clone(), timing);
    let running = tokio::spawn(relay.run_until(stop.clone().cancelled_owned()));
    tokio::time::sleep(Duration::from_millis(300)).await; // until it listens
    let outbox = writer.outbox_of("bench")?;
    let mut committed = Vec::new();
    for number in 0..TIMED {
        tokio::time::sleep(APART).await;
        let id = format!("t{number}");
        let message_id = MessageId::new(&id).map_err(super::ground::defect)?;
        let publication =
            Publication::bytes("Timed", "{}").id(message_id).to(Destination::queue(&ground.queue));
        publish(writer, &outbox, std::iter::once(publication)).await?;
        committed.push((id, Instant::now()));
        outbox.wake();
    }
    let all_begun = async {
        while begun.lock().unwrap_or_else(PoisonError::into_inner).len() < committed.len() {
            tokio::time::sleep(APART).await;
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(10), all_begun).await;
    stop.cancel();
    running.await.map_err(super::ground::defect)??;
    publisher.delete(&ground.queue).await?;
    publisher.close().await;
    let begun = begun.lock().unwrap_or_else(PoisonError::into_inner);
    let mut waits = Waits::default();
    for (id, committed) in &committed {
        let Some(begun) = begun.get(id) else {
            return Err(Error::new(
                ErrorKind::Broken,
                Code::TotalsWrong,
                format!("`{id}` was not published"),
            )
            .into());
        };
        waits.note(begun.saturating_duration_since(*committed));
    }
    Ok(waits)
}

/// Notes when a message is handed to the broker.
struct Timing {
    publisher: BrokerPublisher,
    begun: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Publisher for Timing {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        {
            let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
            for id in messages.iter().filter_map(|message| message.envelope.properties.message_id.clone()) {
                begun.entry(id).or_insert_with(Instant::now);
            }
        }
        self.publisher.publish(messages).await
    }
}

fn print(args: &Bench, rates: &Rates, waits: &Named) {
    let baseline = rates.first().map_or(1.0, |(_, rates)| median(rates));
    if args.json {
        let rows = rates.iter().map(|(contender, rates)| {
            let rate = median(rates);
            json!({ "name": contender.name(), "rate": rate.round(), "ratio": (rate / baseline * 100.0).round() / 100.0 })
        });
        let latency = waits.iter().map(|(name, waits)| {
            json!({ "name": format!("commit-to-publish-{name}"), "p50_ms": waits.p50_ms(), "p99_ms": waits.p99_ms() })
        });
        say!("{}", json!({ "rows": rows.chain(latency).collect::<Vec<_>>() }));
        return;
    }
    say!("{:20} {:>12} {:>7}", "", "messages/s", "ratio");
    for (contender, rates) in rates {
        say!("{:20} {:>12.0} {:>7.2}", contender.name(), median(rates), median(rates) / baseline);
    }
    say!("{:32} {:>9} {:>9}", "from commit to publish, idle", "p50", "p99");
    for (name, waits) in waits {
        say!("{:32} {:>6.1} ms {:>6.1} ms", format!("woken by {name}"), waits.p50_ms(), waits.p99_ms());
    }
    let Bench { messages, rounds, .. } = args;
    say!("{messages} messages a row and round; medians of {rounds} rounds");
}

pub(super) fn median(rates: &[f64]) -> f64 {
    let mut rates = rates.to_vec();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}
