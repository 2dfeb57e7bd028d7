//! Case 43: a consumer's future is dropped at any moment, as by a `select!` or a `timeout` around it.

use std::time::Duration;

use hapax::Retry;
use hapax_testkit::servers::{Server, eventually, require};
use tokio::time::sleep;

use super::ground::{Ground, Note, consumer, message};
use crate::outage::PATIENCE;

const MESSAGES: usize = 600;
/// What the same store handles when nothing is dropped any more.
const AFTERWARDS: usize = 100;
const ROUNDS: usize = 60;
/// A run is dropped within this time: while it is set up, or anywhere in a delivery.
const LONGEST: Duration = Duration::from_millis(120);

const IN_TRANSACTION: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state LIKE 'idle in transaction%'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_43_a_consumer_that_is_dropped_leaves_no_transaction_and_no_poisoned_connection_on_postgres() {
    if !require(Server::Postgres) {
        return;
    }
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let ground = Ground::new().await;
    ground.send(&(0..MESSAGES).map(message).collect::<Vec<_>>()).await;
    let store = ground.store().await;
    // To the next run each drop looks like a crash, which may be charged to what was in hand.
    let patient = || consumer(&store, Note).retry(Retry::exponential().attempts(1_000));
    for _ in 0..ROUNDS {
        let running = tokio::spawn(patient().run());
        sleep(LONGEST.mul_f64(random.f64())).await; // the moment is what is tested
        running.abort();
        assert!(running.await.is_err_and(|error| error.is_cancelled()), "seed {seed}: it ended by itself");
    }
    eventually("no transaction is left", PATIENCE, async || ground.count(IN_TRANSACTION).await == 0).await;

    let all = MESSAGES + AFTERWARDS;
    ground.send(&(MESSAGES..all).map(message).collect::<Vec<_>>()).await;
    let summary = patient().run_until(ground.until_handled(all)).await.expect("it ends cleanly");
    assert_eq!((summary.dead, summary.waiting), (0, 0), "seed {seed}: {summary:?}");
    assert_eq!(ground.count(IN_TRANSACTION).await, 0, "seed {seed}");
}
