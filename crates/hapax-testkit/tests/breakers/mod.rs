//! Case 46 in a batch: a handler that ends the transaction harms itself and nobody else.

use std::time::Duration;

use hapax::sql::{Dialect, SqlStore, SqlTx};
use hapax::{
    BoxError, BoxSource, Consumer, ConsumerStore, DeadFilter, DeadLetters, Envelope, Failure, Handler,
    Identity, Message, Retry, Summary, TypeRule,
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

/// A store on which a handler can do harm.
pub(crate) trait Breakable: ConsumerStore {
    /// The effect.
    fn note(tx: &mut Self::Tx, id: &str) -> impl Future<Output = Result<(), BoxError>> + Send;
    /// The harm.
    fn harm(tx: &mut Self::Tx, way: &str) -> impl Future<Output = Result<(), BoxError>> + Send;
    /// A source of these messages.
    fn source(&self, messages: &[Envelope]) -> impl Future<Output = BoxSource>;
}

impl<D: Statements> Breakable for SqlStore<D> {
    async fn note(tx: &mut SqlTx<D>, id: &str) -> Result<(), BoxError> {
        Ok(D::note(tx.conn(), id).await?)
    }

    async fn harm(tx: &mut SqlTx<D>, way: &str) -> Result<(), BoxError> {
        Ok(<D as Statements>::run(tx.conn(), way).await?)
    }

    async fn source(&self, messages: &[Envelope]) -> BoxSource {
        self.send("jobs", messages).await.expect("messages are sent");
        BoxSource::new(self.queue("jobs"))
    }
}

impl<S: Breakable> Handler<S, Job> for Breaker {
    async fn handle(&self, tx: &mut S::Tx, job: Message<Job>) -> hapax::Result {
        S::note(tx, job.id().as_str()).await?;
        if !job.run.is_empty() {
            let _ = S::harm(tx, &job.run).await; // swallowed, as careless handlers do
        }
        if job.fail { Err(Failure::retry("failed afterwards")) } else { Ok(()) }
    }
}

/// Four messages in one batch, of which the second ends the transaction.
pub(crate) async fn run<S: Breakable>(store: &S, run: &str, fail: bool) -> Summary {
    let job = |n: i32| {
        let (run, fail) = if n == 2 { (run, fail) } else { ("", false) };
        Envelope::new(format!(r#"{{"id":"m{n}","run":"{run}","fail":{fail}}}"#))
    };
    let source = store.source(&[job(1), job(2), job(3), job(4)]).await;
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

/// The ways a handler can end an SQL transaction.
pub(crate) const WAYS: [&str; 5] =
    ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN", "SELECT nonsense"];

/// The error of the one dead letter there is.
pub(crate) async fn reason(store: &impl DeadLetters) -> String {
    let dead =
        store.dead(&DeadFilter { limit: 9, ..DeadFilter::default() }).await.expect("letters are listed");
    assert_eq!(dead.len(), 1, "{dead:?}");
    dead[0].error.clone()
}
