//! The claim, as texts of several statements: one round trip where nothing stands in the way.
//!
//! Whatever is written into a text is a number, or a literal that cannot be anything else.

use std::fmt::Write as _;

use hapax_core::{ConsumerName, InboxState, Key, Timestamp};
use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, MySql, SqlSafeStr};

use super::script::new_token;
use super::{AT, NO_WAIT, NOW, is_lock};
use crate::dialect::{Claims, Driver, Found, Taking, Wanted, int};

/// Takes keys in a transaction, under a token of its own.
pub(super) struct Claiming<'k> {
    inbox: String,
    horizon: String,
    waiting: String,
    consumer: String,
    keys: &'k [Key],
    token: i64,
    /// Whether the transaction is a user's own: it may have begun to read before, so that only a locking read is of
    /// now, and nobody confirms its claims, so that they count at once.
    is_users: bool,
}

impl<'k> Claiming<'k> {
    pub(super) fn new(schema: &str, wanted: Wanted<'k>, is_users: bool) -> Self {
        Self {
            inbox: MySql::table(schema, "inbox"),
            horizon: MySql::table(schema, "horizon"),
            waiting: MySql::table(schema, "waiting"),
            consumer: MySql::literal(wanted.consumer.as_str()),
            keys: wanted.keys,
            token: new_token(),
            is_users,
        }
    }

    /// Begins with a text, if there is one, and takes the keys. One round trip for keys that are new, or done; where
    /// rivals have some, two for each time that the keys are halved to find these.
    pub(super) async fn take(&self, conn: &mut MySqlConnection, begin: &str) -> Result<Taking, sqlx::Error> {
        let mut keys: Vec<&Key> = self.keys.iter().collect();
        keys.sort_unstable_by(|a, b| a.id.cmp(&b.id));
        let text = format!("{begin}{}; {}", self.insert(&keys), self.look(&keys));
        let mut rivals = Vec::new();
        let rows = match fetch(conn, text).await {
            Err(error) if is_lock(&error) => {
                rivals = self.insert_apart(conn, &keys).await?;
                fetch(conn, self.look(&keys)).await?
            }
            rows => rows?,
        };
        let mut taking = Taking::of_rivals(self.keys.len());
        taking.token = self.token;
        taking.mark::<MySql>(self.keys, &rows, found)?;
        if let Some(row) = rows.first() {
            taking.horizon = MySql::int(row, 4)?;
            taking.now = if self.is_users { int::<MySql>(row, 5)? } else { 0 };
        }
        self.take_over(conn, &rivals, &mut taking).await?;
        Ok(taking)
    }

    /// Under a lease that has ended: what a handler commits too early comes again.
    fn insert(&self, keys: &[&Key]) -> String {
        let Self { inbox, consumer, token, .. } = self;
        let mut text = format!(
            "{NO_WAIT}INSERT INTO {inbox} (consumer, id, token, digest, sent_at, processed_at, state, lease_until) VALUES "
        );
        let state = if self.is_users { "0, NULL".to_owned() } else { format!("3, {AT}") };
        for (n, key) in keys.iter().enumerate() {
            let separator = if n == 0 { "" } else { ", " };
            let (id, digest) = (MySql::literal(key.id.as_str()), key.digest.as_i64());
            let sent_at = or_null(key.sent_at.map(Timestamp::as_micros));
            let _ =
                write!(text, "{separator}({consumer}, {id}, {token}, {digest}, {sent_at}, {NOW}, {state})");
        }
        text.push_str(" ON DUPLICATE KEY UPDATE id = id");
        text
    }

    /// Inserts what rivals do not have, and answers with what they have.
    async fn insert_apart(
        &self,
        conn: &mut MySqlConnection,
        keys: &[&'k Key],
    ) -> Result<Vec<&'k Key>, sqlx::Error> {
        let mut rivals = Vec::new();
        let mut parts: Vec<&[&Key]> = halves(keys);
        while let Some(part) = parts.pop() {
            match run(conn, self.insert(part)).await {
                Err(error) if is_lock(&error) && part.len() > 1 => parts.extend(halves(part)),
                Err(error) if is_lock(&error) => rivals.extend(part),
                other => other?,
            }
        }
        Ok(rivals)
    }

    /// What is there. A transaction that reads here for the first time sees all that was committed before its
    /// inserts, under any isolation level.
    fn look(&self, keys: &[&Key]) -> String {
        let Self { inbox, horizon, consumer, token, .. } = self;
        let lock = if self.is_users { " FOR UPDATE SKIP LOCKED" } else { "" };
        format!(
            "SELECT id, CASE token WHEN {token} THEN 1 ELSE 0 END, state, digest, \
             (SELECT sent_at FROM {horizon} WHERE consumer = {consumer}), {NOW} \
             FROM {inbox} WHERE consumer = {consumer} AND id IN ({}){lock}",
            listed(keys.iter().map(|key| key.id.as_str()))
        )
    }

    /// Takes the rows that wait at the place a key names, or whose lease has ended or is the key's. They stay what
    /// they are until they are confirmed.
    async fn take_over(
        &self,
        conn: &mut MySqlConnection,
        rivals: &[&Key],
        taking: &mut Taking,
    ) -> Result<(), sqlx::Error> {
        let free = self.keys.iter().zip(&taking.found).filter(|(key, _)| !rivals.contains(key));
        let conditions: Vec<String> = free.filter_map(|(key, found)| self.may_take(key, *found)).collect();
        if conditions.is_empty() {
            return Ok(());
        }
        let Self { inbox, consumer, token, .. } = self;
        let ids = || self.keys.iter().filter(|key| !rivals.contains(key)).map(|key| key.id.as_str());
        let done = if self.is_users {
            format!(", i.state = 0, i.lease_until = NULL, i.processed_at = {NOW}")
        } else {
            String::new()
        };
        let (rows, ids) = (rows(inbox, consumer, ids()), listed(ids()));
        let text = format!(
            "UPDATE {rows} SET i.token = {token}{done} WHERE {}; \
             SELECT id FROM {inbox} WHERE consumer = {consumer} AND id IN ({ids}) AND token = {token}",
            conditions.join(" OR ")
        );
        let rows = fetch(conn, text).await?;
        let before = taking.found.clone();
        taking.mark::<MySql>(self.keys, &rows, |_| Ok(Found::Updated))?;
        for (found, before) in taking.found.iter_mut().zip(before) {
            if before == Found::Inserted {
                *found = before;
            }
        }
        Ok(())
    }

    /// Under what condition a row that is there may be taken, if there is any.
    fn may_take(&self, key: &Key, found: Found) -> Option<String> {
        let Found::Kept { state, .. } = found else { return None };
        let (id, consumer, waiting) = (MySql::literal(key.id.as_str()), &self.consumer, &self.waiting);
        match (InboxState::from_i64(state)?, key.place, key.fence) {
            (InboxState::Running, _, Some(fence)) => {
                Some(format!("(i.id = {id} AND i.state = 3 AND i.fence = {})", fence.0))
            }
            (InboxState::Running, _, None) => {
                Some(format!("(i.id = {id} AND i.state = 3 AND i.lease_until <= {AT})"))
            }
            (InboxState::Waiting, Some(place), _) => Some(format!(
                "(i.id = {id} AND i.state = 1 AND EXISTS (SELECT 1 FROM {waiting} w \
                 WHERE w.number = {} AND w.consumer = {consumer} AND w.id = {id}))",
                place.0
            )),
            _ => None,
        }
    }
}

/// Makes claims count, as a part of the text that ends their transaction.
pub(super) fn confirm(text: &mut String, inbox: &str, claims: &Claims<'_>) {
    let consumer = MySql::literal(claims.consumer.as_str());
    let rows = rows(inbox, &consumer, claims.ids.iter().map(hapax_core::MessageId::as_str));
    let _ = write!(
        text,
        "UPDATE {rows} SET i.state = 0, i.lease_until = NULL, i.processed_at = {NOW} WHERE i.token = {}; ",
        claims.token
    );
}

/// Rows `i` of the inbox to be changed, each looked up by its whole key. A list of ids may be answered by a scan, which
/// locks the rows of others as well, and under REPEATABLE READ the gaps between them.
fn rows<'i>(inbox: &str, consumer: &str, ids: impl Iterator<Item = &'i str>) -> String {
    // As bytes, or a column of them would be compared by a collation.
    let ids = ids
        .map(|id| format!("SELECT {} AS id", MySql::blob(id.as_bytes())))
        .collect::<Vec<_>>()
        .join(" UNION ALL ");
    format!(
        "({ids}) k STRAIGHT_JOIN {inbox} i FORCE INDEX (PRIMARY) ON i.consumer = {consumer} AND i.id = k.id"
    )
}

/// The horizon, whatever the isolation level makes of reading it.
pub(super) async fn horizon(
    conn: &mut MySqlConnection,
    schema: &str,
    consumer: &ConsumerName,
) -> Result<Option<i64>, sqlx::Error> {
    const ISOLATION: &str = "/*M! @@tx_isolation */ /*!80000 @@transaction_isolation */";
    let (table, consumer) = (MySql::table(schema, "horizon"), MySql::literal(consumer.as_str()));
    let read = format!("SELECT sent_at FROM {table} WHERE consumer = {consumer}");
    let text = format!("SELECT ({read}), CASE {ISOLATION} WHEN 'READ-COMMITTED' THEN 0 ELSE 1 END");
    let rows = fetch(conn, text).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    if int::<MySql>(row, 1)? == 0 {
        return MySql::int(row, 0);
    }
    // Under a snapshot only a locking read is of now.
    let rows = fetch(conn, format!("{read} LOCK IN SHARE MODE")).await?;
    rows.first().map_or(Ok(None), |row| MySql::int(row, 0))
}

fn found(row: &MySqlRow) -> Result<Found, sqlx::Error> {
    if int::<MySql>(row, 1)? == 1 {
        return Ok(Found::Inserted);
    }
    Ok(Found::Kept { state: int::<MySql>(row, 2)?, digest: int::<MySql>(row, 3)? })
}

fn halves<'p, 'k>(keys: &'p [&'k Key]) -> Vec<&'p [&'k Key]> {
    let (one, other) = keys.split_at(keys.len() / 2);
    [other, one].into_iter().filter(|half| !half.is_empty()).collect()
}

fn listed<'t>(texts: impl Iterator<Item = &'t str>) -> String {
    texts.map(MySql::literal).collect::<Vec<_>>().join(", ")
}

fn or_null(value: Option<i64>) -> String {
    value.map_or("NULL".to_owned(), |value| value.to_string())
}

async fn fetch(conn: &mut MySqlConnection, text: String) -> Result<Vec<MySqlRow>, sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(text).into_sql_str()).fetch_all(conn).await
}

async fn run(conn: &mut MySqlConnection, text: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(text).into_sql_str()).execute(conn).await.map(drop)
}
