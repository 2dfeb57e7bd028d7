//! Where the subject's effects are left, so that they can be counted.

use std::future::Future;
use std::time::Duration;

use hapax::core::BoxError;
use hapax::mongodb::bson::{Document, doc};
use hapax::sql::{Dialect, SqlStore, SqlTx};
use hapax::sqlx::{
    self, Connection as _, MySql, MySqlConnection, PgConnection, Postgres, Sqlite, SqliteConnection,
};
use hapax::{BoxSource, ClaimRequest, ConsumerName, ConsumerStore, MongoStore, MongoTx, Store as _};

use crate::SplitInbox;

/// A store in whose database an effect can be left.
pub(crate) trait Ledger: ConsumerStore {
    /// The effect, in the handler's transaction.
    fn note(tx: &mut Self::Tx, id: &str) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Makes the schema and the ledger in the store at this URL.
    fn prepare(&self, url: &str) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// A queue in the same database, if it has any.
    fn queue(&self, name: &str, lease: Option<Duration>) -> Option<BoxSource>;
}

/// An SQL database.
pub(crate) trait Statements: Dialect {
    fn insert(conn: &mut Self::Connection, id: &str) -> impl Future<Output = sqlx::Result<()>> + Send;
    fn create(conn: &mut Self::Connection) -> impl Future<Output = sqlx::Result<()>> + Send;
}

const INSERT: &str = "INSERT INTO ledger (message_id) VALUES ($1)";
const CREATE: &str = "CREATE TABLE IF NOT EXISTS ledger (message_id TEXT NOT NULL)";

impl Statements for Sqlite {
    async fn insert(conn: &mut SqliteConnection, id: &str) -> sqlx::Result<()> {
        sqlx::query(INSERT).bind(id).execute(conn).await.map(|_| ())
    }

    async fn create(conn: &mut SqliteConnection) -> sqlx::Result<()> {
        sqlx::query(CREATE).execute(conn).await.map(|_| ())
    }
}

impl Statements for Postgres {
    async fn insert(conn: &mut PgConnection, id: &str) -> sqlx::Result<()> {
        sqlx::query(INSERT).bind(id).execute(conn).await.map(|_| ())
    }

    async fn create(conn: &mut PgConnection) -> sqlx::Result<()> {
        sqlx::query(CREATE).execute(conn).await.map(|_| ())
    }
}

impl Statements for MySql {
    async fn insert(conn: &mut MySqlConnection, id: &str) -> sqlx::Result<()> {
        let insert = "INSERT INTO ledger (message_id) VALUES (?)";
        sqlx::query(insert).bind(id).execute(conn).await.map(|_| ())
    }

    async fn create(conn: &mut MySqlConnection) -> sqlx::Result<()> {
        let create = "CREATE TABLE IF NOT EXISTS ledger (message_id VARCHAR(255) NOT NULL)";
        sqlx::query(create).execute(conn).await.map(|_| ())
    }
}

impl<D: Statements> Ledger for SqlStore<D> {
    async fn note(tx: &mut SqlTx<D>, id: &str) -> Result<(), BoxError> {
        Ok(D::insert(tx.conn(), id).await?)
    }

    async fn prepare(&self, url: &str) -> Result<(), BoxError> {
        self.migrate().await?;
        let mut conn = D::Connection::connect(url).await?;
        Ok(D::create(&mut conn).await?)
    }

    fn queue(&self, name: &str, lease: Option<Duration>) -> Option<BoxSource> {
        let queue = SqlStore::queue(self, name);
        Some(BoxSource::new(if let Some(lease) = lease { queue.lease(lease) } else { queue }))
    }
}

impl Ledger for MongoStore {
    async fn note(tx: &mut MongoTx, id: &str) -> Result<(), BoxError> {
        tx.collection::<Document>("ledger").insert_one(doc! { "message_id": id }).await?;
        Ok(())
    }

    /// A transaction makes the collection: so careless users are.
    async fn prepare(&self, _url: &str) -> Result<(), BoxError> {
        self.migrate().await?;
        let name = ConsumerName::new("setup")?;
        let (mut tx, _) = self.begin_claim(&ClaimRequest::none(&name)).await?;
        let nothing = doc! { "_id": "nothing" };
        tx.collection::<Document>("ledger")
            .update_one(nothing.clone(), doc! { "$set": { "n": 0 } })
            .upsert(true)
            .await?;
        tx.collection::<Document>("ledger").delete_one(nothing).await?;
        Ok(self.finish(tx).await?)
    }

    fn queue(&self, _name: &str, _lease: Option<Duration>) -> Option<BoxSource> {
        None
    }
}

impl<S: Ledger> Ledger for SplitInbox<S> {
    fn note(tx: &mut S::Tx, id: &str) -> impl Future<Output = Result<(), BoxError>> + Send {
        S::note(tx, id)
    }

    fn prepare(&self, url: &str) -> impl Future<Output = Result<(), BoxError>> + Send {
        self.0.prepare(url)
    }

    fn queue(&self, name: &str, lease: Option<Duration>) -> Option<BoxSource> {
        self.0.queue(name, lease)
    }
}
