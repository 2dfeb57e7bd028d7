//! Case 46 in a batch: a handler that ends the transaction harms itself and nobody else.

use std::time::Duration;

use hapax::sql::{Dialect, Queue, SqlStore, SqlTx};
use hapax::{
    Consumer, DeadFilter, DeadLetters as _, Envelope, Failure, Handler, Identity, Message, Retry, Summary,
    TypeRule,
};
use serde::Deserialize;

/// What a message asks for: statements to run after its effect, and whether to fail then.
#[derive(Deserialize)]
pub(crate) struct Job {
    pub(crate) run: String,
    pub(crate) fail: bool,
}

/// Notes the effect, and then ends the transaction if told to.
pub(crate) struct Breaker;

/// A database on which statements can be run as they are.
pub(crate) trait Statements: Dialect {
    fn note(conn: &mut Self::Connection, id: &str) -> impl Future<Output = sqlx::Result<()>> + Send;
    fn run(conn: &mut Self::Connection, sql: &str) -> impl Future<Output = sqlx::Result<()>> + Send;
}

use hapax::sqlx;

impl<D: Statements> Handler<SqlStore<D>, Job> for Breaker {
    async fn handle(&self, tx: &mut SqlTx<D>, job: Message<Job>) -> hapax::Result {
        D::note(tx.conn(), job.id().as_str()).await?;
        if !job.run.is_empty() {
            let _ = <D as Statements>::run(tx.conn(), &job.run).await; // swallowed, as careless handlers do
        }
        if job.fail { Err(Failure::retry("failed afterwards")) } else { Ok(()) }
    }
}

/// Four messages in one batch, of which the second ends the transaction.
pub(crate) async fn run<D: Statements>(store: &SqlStore<D>, run: &str, fail: bool) -> Summary {
    let job = |n: i32| {
        let (run, fail) = if n == 2 { (run, fail) } else { ("", false) };
        Envelope::new(format!(r#"{{"id":"m{n}","run":"{run}","fail":{fail}}}"#))
    };
    store.send("jobs", &[job(1), job(2), job(3), job(4)]).await.expect("messages are sent");
    let source: Queue<D> = store.queue("jobs");
    let format = hapax::Format::default()
        .identity("json:/id".parse::<Identity>().expect("an identity"))
        .kind(TypeRule::Always("Job".to_owned()));
    Consumer::new("breakers", store.clone(), source)
        .expect("a name")
        .format(format)
        .retry(Retry::exponential().attempts(2).first(Duration::from_millis(5)))
        .concurrency(1)
        .until_idle(Duration::from_millis(200))
        .on_handler::<Job, _>("Job", Breaker)
        .run()
        .await
        .expect("the consumer runs")
}

/// The ways a handler can end the transaction.
pub(crate) const WAYS: [&str; 5] =
    ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN", "SELECT nonsense"];

/// The error of the one dead letter there is.
pub(crate) async fn reason<D: Dialect>(store: &SqlStore<D>) -> String {
    let dead =
        store.dead(&DeadFilter { limit: 9, ..DeadFilter::default() }).await.expect("letters are listed");
    assert_eq!(dead.len(), 1, "{dead:?}");
    dead[0].error.clone()
}
