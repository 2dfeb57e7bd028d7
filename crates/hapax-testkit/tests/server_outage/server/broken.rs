//! Connections to the database that break in every way a network knows, while messages are handled.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax::{Handler, Message, PgStore, PgTx};
use hapax_testkit::proxy::Proxy;
use hapax_testkit::servers::{Server, eventually, require};
use tokio::time::sleep;

use super::ground::{Ground, Job, Note, assert_uncharged, consumer, note};
use crate::outage::PATIENCE;

const TIMES: usize = 3;
/// Longer than the store waits for an answer.
const A_WHILE: Duration = Duration::from_secs(3);

/// Runs a consumer under load while something is done to its connections.
async fn trouble(how: impl AsyncFn(&Proxy)) {
    let ground = Ground::new().await;
    let store = ground.store().await;
    let mut sent = 0;
    let all = async { sent = ground.under_load(how(&ground.proxy)).await };
    let summary = consumer(&store, Note).run_until(all).await.expect("it never ends with an error");
    assert_uncharged(&summary, sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_answer_is_lost_is_one_effect() {
    if !require(Server::Postgres) {
        return;
    }
    trouble(async |proxy| {
        for _ in 0..10 {
            proxy.swallow_after(b"; COMMIT");
            eventually("a commit goes unanswered", PATIENCE, async || proxy.has_fired()).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_cannot_be_reached_charges_nobody() {
    if !require(Server::Postgres) {
        return;
    }
    trouble(async |proxy| {
        for _ in 0..TIMES {
            proxy.cut();
            sleep(A_WHILE).await; // the time is what is tested
            proxy.heal();
            sleep(A_WHILE / 3).await; // for some messages to pass
        }
    })
    .await;
}

/// What was sent into the silence arrives afterwards: commits of transactions that were long given up, and
/// whose messages are being claimed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_falls_silent_and_delivers_late_is_one_effect() {
    if !require(Server::Postgres) {
        return;
    }
    trouble(async |proxy| {
        for _ in 0..TIMES {
            proxy.stall();
            sleep(A_WHILE).await; // the time is what is tested
            proxy.heal();
            sleep(A_WHILE / 3).await; // for some messages to pass
        }
    })
    .await;
}

/// Claims, effects and commits arrive, and nobody is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_never_come_leave_one_effect() {
    if !require(Server::Postgres) {
        return;
    }
    trouble(async |proxy| {
        for _ in 0..TIMES {
            proxy.swallow();
            sleep(A_WHILE).await; // the time is what is tested
            proxy.heal();
            sleep(A_WHILE / 3).await; // for some messages to pass
        }
    })
    .await;
}

/// A handler's time limit passes because the database is silent: losing it is nobody's attempt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_waits_for_a_silent_database_is_not_charged() {
    if !require(Server::Postgres) {
        return;
    }
    let ground = Ground::new().await;
    let store = ground.store().await;
    let mut sent = 0;
    let all = async {
        let trouble = async {
            sleep(A_WHILE / 3).await; // for some messages to be under way
            ground.proxy.stall();
            sleep(A_WHILE).await; // the time is what is tested
            ground.proxy.heal();
        };
        sent = ground.under_load(trouble).await;
    };
    let consumer = consumer(&store, Note).timeout(A_WHILE / 3).batch(1);
    let summary = consumer.run_until(all).await.expect("it never ends with an error");
    assert_uncharged(&summary, sent);
}

/// Ends all connections when it is done with every tenth message, the first time.
#[derive(Clone)]
struct Severing {
    proxy: Arc<Proxy>,
    severed: Arc<Mutex<HashSet<String>>>,
}

impl Severing {
    fn severed(&self) -> MutexGuard<'_, HashSet<String>> {
        self.severed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler<PgStore, Job> for Severing {
    async fn handle(&self, tx: &mut PgTx, job: Message<Job>) -> hapax::Result {
        let id = job.id().to_string();
        note(tx, job).await?;
        if id.ends_with('7') && self.severed().insert(id) {
            self.proxy.sever();
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_ends_between_effect_and_commit_is_one_effect() {
    if !require(Server::Postgres) {
        return;
    }
    let ground = Ground::new().await;
    let store = ground.store().await;
    let severing = Severing { proxy: Arc::clone(&ground.proxy), severed: Arc::default() };
    let mut sent = 0;
    let all = async {
        let often = eventually("ten are severed", PATIENCE, async || severing.severed().len() >= 10);
        sent = ground.under_load(often).await;
    };
    let summary =
        consumer(&store, severing.clone()).run_until(all).await.expect("it never ends with an error");
    assert_uncharged(&summary, sent);
}
