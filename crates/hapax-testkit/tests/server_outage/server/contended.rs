//! Instances and workers that meet on the same rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hapax::sqlx;
use hapax::{
    ClaimRequest, ConsumerName, Format, Handler, Health, Janitor, Keep, Message, PgStore, PgTx,
    Retention as _, Store as _,
};
use hapax_core::{Digest, Envelope, Key, MessageId};
use hapax_testkit::servers::{Server, eventually, require};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::ground::{Ground, Job, Note, QUEUE, assert_uncharged, consumer, message, note};
use crate::outage::PATIENCE;

/// Three leases.
const LONG: Duration = Duration::from_secs(3);

/// Takes longer than its lease over the message `m0`.
#[derive(Clone, Default)]
struct Slow {
    calls: Arc<AtomicUsize>,
}

impl Handler<PgStore, Job> for Slow {
    async fn handle(&self, tx: &mut PgTx, job: Message<Job>) -> hapax::Result {
        if job.id().as_str() == "m0" {
            self.calls.fetch_add(1, Ordering::SeqCst);
            sleep(LONG).await; // the time is what is tested
        }
        note(tx, job).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_13_a_handler_that_outlives_its_lease_is_extended_by_the_embedded_queue_on_postgres() {
    if !require(Server::Postgres) {
        return;
    }
    let ground = Ground::new().await;
    ground.send(&(0..40).map(message).collect::<Vec<_>>()).await;
    let (one, two, slow) = (ground.store().await, ground.store().await, Slow::default());
    let done = || async { ground.until_handled(40).await };
    let (one, two) = tokio::join!(
        consumer(&one, slow.clone()).run_until(done()),
        consumer(&two, slow.clone()).run_until(done()),
    );
    let (one, two) = (one.expect("it ends cleanly"), two.expect("it ends cleanly"));
    assert_eq!(one.handled + two.handled, 40);
    assert_eq!(one.duplicates + two.duplicates, 0, "no lease ended in somebody's hands");
    assert_eq!(slow.calls.load(Ordering::SeqCst), 1);
    assert_eq!(ground.count("SELECT count(*) FROM hapax.queue").await, 0);
}

/// Says when it has begun, and waits to be let go.
#[derive(Clone, Default)]
struct Held {
    begun: Arc<Notify>,
    go: Arc<Notify>,
    calls: Arc<AtomicUsize>,
}

impl Handler<PgStore, Job> for Held {
    async fn handle(&self, tx: &mut PgTx, job: Message<Job>) -> hapax::Result {
        self.calls.fetch_add(1, Ordering::SeqCst);
        note(tx, job).await?;
        self.begun.notify_one();
        self.go.notified().await;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_13_a_message_that_is_delivered_again_while_it_is_handled_is_one_effect_on_postgres() {
    if !require(Server::Postgres) {
        return;
    }
    let ground = Ground::new().await;
    ground.send(&[message(0)]).await;
    let (one, two, held) = (ground.store().await, ground.store().await, Held::default());
    let drained = || async {
        eventually("the queue drains", PATIENCE, async || {
            ground.count("SELECT count(*) FROM hapax.queue").await == 0
        })
        .await;
    };
    let second = async {
        held.begun.notified().await;
        // As if the first were cut off from the queue for longer than its lease.
        ground.run("UPDATE hapax.queue SET lease_until = 0").await;
        let let_go = async {
            eventually("it is delivered again", PATIENCE, async || {
                ground.count("SELECT max(fence)::bigint FROM hapax.queue").await > 1
            })
            .await;
            held.go.notify_one();
            drained().await;
        };
        consumer(&two, held.clone()).run_until(let_go).await
    };
    let (one, two) = tokio::join!(consumer(&one, held.clone()).run_until(drained()), second);
    let (one, two) = (one.expect("it ends cleanly"), two.expect("it ends cleanly"));
    ground.until_handled(1).await;
    assert_eq!((one.handled + two.handled, held.calls.load(Ordering::SeqCst)), (1, 1));
}

/// An account in the message, and one more that the message's key does not tell.
#[derive(serde::Deserialize)]
struct Booking {
    account: i64,
    other: i64,
}

struct Book;

impl Handler<PgStore, Booking> for Book {
    async fn handle(&self, tx: &mut PgTx, booking: Message<Booking>) -> hapax::Result {
        for account in [booking.account, booking.other] {
            let add = sqlx::query("UPDATE account SET balance = balance + 1 WHERE id = $1").bind(account);
            add.execute(tx.conn()).await?;
        }
        Ok(())
    }
}

fn booking(number: usize, account: i64, other: i64) -> Envelope {
    Envelope::new(format!(r#"{{"account":{account},"other":{other}}}"#))
        .with_id(format!("m{number}"))
        .with_type("Booking")
}

/// The longest time in which nothing took effect, until something more than `messages` cannot.
async fn longest_pause(health: Health, messages: u64) -> Duration {
    let (mut longest, mut since, mut seen) = (Duration::ZERO, Instant::now(), 0);
    while seen < messages {
        sleep(Duration::from_millis(5)).await; // between two looks
        let handled = health.summary().handled;
        if handled > seen {
            if seen > 0 {
                longest = longest.max(since.elapsed());
            }
            (since, seen) = (Instant::now(), handled);
        }
    }
    longest
}

const DEADLOCKS: &str = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
/// The server looks for a deadlock when a lock was waited for so long; its default of a second would only
/// make the test slow. `ALTER DATABASE` wants a name.
const LOOK_SOON: &str = "DO $$ BEGIN
    EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = 100', current_database());
END $$";
/// Those of the stores behind the proxy.
const SESSIONS: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'consumer'";
const BOOKED: &str = "SELECT sum(balance)::bigint FROM account";

/// Eight workers in batches of fifty over `accounts` rows; answers with the longest pause and the number of
/// deadlocks.
async fn book(accounts: i64, bookings: Vec<Envelope>) -> (Duration, i64) {
    let ground = Ground::new().await;
    ground.run("CREATE TABLE account (id bigint PRIMARY KEY, balance bigint NOT NULL DEFAULT 0)").await;
    let fill = sqlx::query("INSERT INTO account SELECT generate_series(0, $1 - 1)").bind(accounts);
    fill.execute(&mut ground.connection().await).await.expect("accounts");
    ground.run(LOOK_SOON).await;
    let messages = bookings.len();
    ground.send(&bookings).await;
    let store = ground.store().await;
    let consumer = hapax::Consumer::new("orders", store.clone(), store.queue(QUEUE))
        .expect("a name")
        .format(Format::default().key("json:/account".parse().expect("a part")))
        .batch(50)
        .concurrency(8)
        .on_handler::<Booking, _>("Booking", Book);
    let (health, mut pause) = (consumer.health(), Duration::ZERO);
    let all = async {
        let watching = tokio::time::timeout(PATIENCE, longest_pause(health, messages as u64));
        pause = watching.await.expect("every message takes effect");
    };
    let summary = consumer.run_until(all).await.expect("it ends cleanly");
    assert_uncharged(&summary, messages);
    let twice = i64::try_from(2 * messages).expect("a small number");
    assert_eq!(ground.count(BOOKED).await, twice, "each booking counts once on two accounts");
    drop(store);
    // A session tells of its deadlocks no later than when it ends.
    eventually("the consumer's sessions are over", PATIENCE, async || ground.count(SESSIONS).await == 0)
        .await;
    let deadlocks = ground.count(DEADLOCKS).await;
    println!("{messages} bookings on {accounts} accounts: {deadlocks} deadlocks, longest pause {pause:?}");
    (pause, deadlocks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_50_eight_workers_on_random_rows_do_not_lock_each_other_out_on_postgres() {
    if !require(Server::Postgres) {
        return;
    }
    let mut random = fastrand::Rng::with_seed(50);
    let bookings = (0..4_000).map(|number| {
        let account = random.i64(0..200);
        booking(number, account, account)
    });
    let (_, deadlocks) = book(200, bookings.collect()).await;
    assert_eq!(deadlocks, 0);
}

/// Rows that the key says nothing of: deadlocks come, cost time, and are nobody's attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_50_deadlocks_that_no_key_prevents_are_charged_to_nobody_on_postgres() {
    if !require(Server::Postgres) {
        return;
    }
    let mut random = fastrand::Rng::with_seed(50);
    let bookings = (0..600).map(|number| booking(number, random.i64(0..20), random.i64(0..20)));
    let (_, deadlocks) = book(20, bookings.collect()).await;
    assert!(deadlocks > 0, "this was to be seen");
}

const OLD: i64 = 30_000;
const BATCH: u32 = 1_000;
const OLD_ROWS: &str = "\
INSERT INTO hapax.inbox (consumer, id, digest, sent_at, processed_at, state)
SELECT 'orders', 'old' || g, 0, moment + g, moment + g, 0
FROM generate_series(1, 30000) g,
     (SELECT (extract(epoch FROM now() - interval '30 days') * 1000000)::bigint AS moment) at";

/// How long claims take, one after another, until told to stop.
async fn claim_times(store: &PgStore, prefix: &str, stop: impl Fn(usize) -> bool) -> Vec<Duration> {
    let (name, mut times) = (ConsumerName::new("orders").expect("a name"), Vec::new());
    while !stop(times.len()) {
        let id = MessageId::new(format!("{prefix}{}", times.len())).expect("an id");
        let keys = [Key::new(id, Digest::of(b""))];
        let request = ClaimRequest { keys: &keys, ..ClaimRequest::none(&name) };
        let begun = Instant::now();
        let (tx, _) = store.begin_claim(&request).await.expect("it claims");
        store.finish(tx).await.expect("it commits");
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    times
}

fn p99(times: &[Duration]) -> Duration {
    times.get(times.len() * 99 / 100).copied().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_11_a_purge_on_several_instances_is_bounded_and_disturbs_nobody_on_postgres() {
    if !require(Server::Postgres) {
        return;
    }
    let ground = Ground::new().await;
    ground.run(OLD_ROWS).await;
    let store = ground.store().await;
    let name = ConsumerName::new("orders").expect("a name");
    let keep = Duration::from_hours(14 * 24);
    let over = AtomicBool::new(false);
    let calm = claim_times(&store, "calm", |claims| claims == 500).await;

    let purging = Box::pin(async {
        let by_hand = async |store: PgStore| {
            let mut rows = 0;
            loop {
                let purged = store.purge(&name, keep, BATCH).await.expect("it purges").rows;
                assert!(purged <= u64::from(BATCH), "{purged}");
                rows += purged;
                if purged == 0 {
                    return rows;
                }
            }
        };
        let janitor = Janitor::new(ground.store().await, name.clone(), Keep::for_at_least(keep).batch(BATCH));
        let stop = CancellationToken::new();
        let (one, two, swept) =
            tokio::join!(by_hand(ground.store().await), by_hand(ground.store().await), janitor.sweep(&stop));
        over.store(true, Ordering::SeqCst);
        one + two + swept.expect("it sweeps").rows
    });
    let consumer = consumer(&store, Note);
    let (mut purged, mut busy, mut sent) = (0, Vec::new(), 0);
    let all = async {
        let load = async {
            let purging = async { purged = purging.await };
            sent = ground.under_load(purging).await;
        };
        let probe = ground.store().await;
        let probing = claim_times(&probe, "busy", |_| over.load(Ordering::SeqCst));
        ((), busy) = tokio::join!(Box::pin(load), Box::pin(probing));
    };
    let summary = Box::pin(consumer.run_until(Box::pin(all))).await.expect("it ends cleanly");
    assert_uncharged(&summary, sent);
    assert_eq!(purged, OLD.unsigned_abs(), "each row is purged by one of them");
    let left = i64::try_from(calm.len() + busy.len() + sent).expect("a small number");
    assert_eq!(ground.count("SELECT count(*) FROM hapax.inbox").await, left, "and no row that is young");
    assert_eq!(ground.count(DEADLOCKS).await, 0);
    println!(
        "p99 of a claim: {:?} before, {:?} beside three purges ({} claims)",
        p99(&calm),
        p99(&busy),
        busy.len()
    );
}
