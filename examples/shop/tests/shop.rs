//! The shop on SQLite with the embedded queue, which needs no server.

mod program;

use std::path::Path;

use hapax::BoxError;
use hapax::sqlx::{self, Connection as _, SqliteConnection};
use program::{Order, paid, run};

async fn orders(folder: &Path) -> Result<Vec<Order>, sqlx::Error> {
    let url = format!("sqlite:{}", folder.join("shop.db").display());
    let mut database = SqliteConnection::connect(&url).await?;
    let orders = "SELECT status, paid_cents, emails FROM shop_orders ORDER BY id";
    sqlx::query_as(orders).fetch_all(&mut database).await
}

#[tokio::test]
async fn a_payment_that_comes_twice_takes_effect_once() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let table = [
        " order  status       paid  e-mails",
        "     1  paid        25.00        1",
        "     2  paid         9.90        1",
        "     3  paid      1299.00        1",
        "3 handled, 3 duplicates",
    ];
    assert_eq!(run(folder.path(), &[], &[]).lines().collect::<Vec<_>>(), table);
    assert_eq!(orders(folder.path()).await?, paid(1));

    run(folder.path(), &[], &[]);
    assert_eq!(orders(folder.path()).await?, [paid(1), paid(1)].concat());
    Ok(())
}

#[tokio::test]
async fn without_the_inbox_it_takes_effect_twice() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let printed = run(folder.path(), &["--unprotected"], &[]);
    assert!(printed.ends_with("6 handled, 0 duplicates\n"), "{printed}");
    assert_eq!(orders(folder.path()).await?, paid(2));
    Ok(())
}
