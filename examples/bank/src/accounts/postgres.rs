//! Accounts on PostgreSQL: the same file, compiled with the types of another database.

use hapax::PgTx as Tx;
use hapax::sqlx::PgConnection as Connection;

#[path = "books.rs"]
#[allow(clippy::duplicate_mod, reason = "the books are written once for both databases")]
pub(crate) mod books;

#[cfg(test)]
mod tests {
    mod server {
        use hapax::{BoxError, ClaimRequest, ConsumerName, ErrorKind, Failure, PgStore, Store as _};
        use hapax_testkit::servers::{Server, TestDatabase, require};

        use super::super::books::create_tables;
        use crate::accounts::Accounts as _;
        use crate::accounts::account::Fact;
        use crate::money::Money;

        #[tokio::test]
        async fn of_two_appends_under_one_version_the_later_is_run_again_and_charged_nothing()
        -> Result<(), BoxError> {
            if !require(Server::Postgres) {
                return Ok(());
            }
            let database = TestDatabase::create().await?;
            let store = PgStore::connect(database.url()).await?;
            store.migrate().await?;
            create_tables(database.url()).await?;
            let name = ConsumerName::new("accounts")?;
            let (mut one, _) = store.begin_claim(&ClaimRequest::none(&name)).await?;
            let (mut two, _) = store.begin_claim(&ClaimRequest::none(&name)).await?;
            assert!(one.append("a", 1, &Fact::Opened(Money(100))).await.is_ok());
            let later = tokio::spawn(async move {
                let appended = two.append("a", 1, &Fact::Opened(Money(100))).await;
                (two, appended)
            });
            store.finish(one).await?;
            let (two, appended) = later.await?;
            let Err(Failure::Retry(fault)) = appended else { panic!("both cannot be appended") };
            let kind = store.kind_of(fault.error().as_ref()).map(|(kind, _)| kind);
            assert_eq!(kind, Some(ErrorKind::Conflict), "{fault}");
            store.roll_back(two).await;
            database.remove().await?;
            Ok(())
        }
    }
}
