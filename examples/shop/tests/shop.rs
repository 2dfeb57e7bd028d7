//! The shop on SQLite with the embedded queue, which needs no server.

mod program;

use std::path::Path;

use hapax::BoxError;
use hapax::sqlx::{self, Connection as _, SqliteConnection};
use program::run;

/// An order's status, the cents paid for it, its e-mails, and the cents that were booked.
type Order = (String, i64, i64, i64);

/// How it is read.
const ORDERS: &str = "SELECT status, paid_cents, emails, booked_cents FROM shop_orders ORDER BY id";

/// The three orders of a run in which every payment took effect so many times.
fn paid(times: i64) -> Vec<Order> {
    [2500, 990, 129_900].map(|cents| ("paid".to_owned(), times * cents, times, times * cents)).to_vec()
}

async fn orders(folder: &Path) -> Result<Vec<Order>, sqlx::Error> {
    let url = format!("sqlite:{}", folder.join("shop.db").display());
    let mut database = SqliteConnection::connect(&url).await?;
    sqlx::query_as(ORDERS).fetch_all(&mut database).await
}

#[tokio::test]
async fn a_payment_that_comes_twice_takes_effect_once() -> Result<(), BoxError> {
    let folder = tempfile::tempdir()?;
    let table = [
        " order  status       paid  e-mails     booked",
        "     1  paid        25.00        1      25.00",
        "     2  paid         9.90        1       9.90",
        "     3  paid      1299.00        1    1299.00",
        "orders: 3 handled, 3 duplicates",
        "mails: 3 handled, 0 duplicates",
        "accounting: 3 handled, 3 duplicates",
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
    assert!(printed.ends_with("accounting: 6 handled, 0 duplicates\n"), "{printed}");
    assert_eq!(orders(folder.path()).await?, paid(2));
    Ok(())
}
