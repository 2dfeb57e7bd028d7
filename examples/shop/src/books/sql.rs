//! Orders in SQLite, PostgreSQL and MySQL or MariaDB.

use hapax::sqlx::{self, Connection as _, MySqlConnection, PgConnection, SqliteConnection};
use hapax::{BoxError, BoxPublisher, BoxSource, MySqlStore, MySqlTx, PgStore, PgTx, SqliteStore, SqliteTx};

use super::{Books, Order};

/// The literals are how the database writes its first and second parameter.
macro_rules! books {
    ($store:ty, $tx:ty, $connection:ty, $one:literal, $two:literal) => {
        impl Books for $store {
            async fn open(url: &str, schema: &str) -> Result<Self, BoxError> {
                let store = Self::builder(url).schema(schema).connect().await?;
                store.migrate().await?;
                let table = "CREATE TABLE IF NOT EXISTS shop_orders (
                    id           BIGINT      PRIMARY KEY,
                    status       VARCHAR(10) NOT NULL DEFAULT 'open',
                    paid_cents   BIGINT      NOT NULL DEFAULT 0,
                    emails       BIGINT      NOT NULL DEFAULT 0,
                    booked_cents BIGINT      NOT NULL DEFAULT 0
                )";
                sqlx::query(table).execute(&mut <$connection>::connect(url).await?).await?;
                Ok(store)
            }

            async fn pay(tx: &mut $tx, order: i64, cents: i64) -> Result<bool, BoxError> {
                let paid = concat!(
                    "UPDATE shop_orders SET status = 'paid', paid_cents = paid_cents + ",
                    $one,
                    " WHERE id = ",
                    $two
                );
                let paid = sqlx::query(paid).bind(cents).bind(order).execute(tx.conn()).await?;
                Ok(paid.rows_affected() > 0)
            }

            async fn mail(tx: &mut $tx, order: i64) -> Result<(), BoxError> {
                let sent = concat!("UPDATE shop_orders SET emails = emails + 1 WHERE id = ", $one);
                sqlx::query(sent).bind(order).execute(tx.conn()).await?;
                Ok(())
            }

            async fn book(tx: &mut $tx, order: i64, cents: i64) -> Result<(), BoxError> {
                let booked = concat!(
                    "UPDATE shop_orders SET booked_cents = booked_cents + ",
                    $one,
                    " WHERE id = ",
                    $two
                );
                sqlx::query(booked).bind(cents).bind(order).execute(tx.conn()).await?;
                Ok(())
            }

            async fn new_order(&self, url: &str) -> Result<i64, BoxError> {
                let mut database = <$connection>::connect(url).await?;
                let mut transaction = database.begin().await?;
                let next = "INSERT INTO shop_orders (id) SELECT COALESCE(MAX(id), 0) + 1 FROM shop_orders";
                sqlx::query(next).execute(&mut *transaction).await?;
                let order = sqlx::query_scalar("SELECT MAX(id) FROM shop_orders");
                let order = order.fetch_one(&mut *transaction).await?;
                transaction.commit().await?;
                Ok(order)
            }

            async fn look_up(&self, url: &str, order: i64) -> Result<Order, BoxError> {
                let row = concat!(
                    "SELECT status, paid_cents, emails, booked_cents FROM shop_orders WHERE id = ",
                    $one
                );
                let mut database = <$connection>::connect(url).await?;
                Ok(sqlx::query_as(row).bind(order).fetch_one(&mut database).await?)
            }

            fn embedded(&self, queue: &str) -> Option<(BoxSource, BoxPublisher)> {
                Some((BoxSource::new(self.queue(queue)), BoxPublisher::new(self.queues())))
            }
        }
    };
}

books!(SqliteStore, SqliteTx, SqliteConnection, "$1", "$2");
books!(PgStore, PgTx, PgConnection, "$1", "$2");
books!(MySqlStore, MySqlTx, MySqlConnection, "?", "?");
