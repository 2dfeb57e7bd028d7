//! Transactions whose process is gone.
//!
//! MongoDB does not tie a transaction to a connection. What a killed process had open stays open, and its messages
//! busy, until the server ends it after a minute. So whoever meets a rival looks whether the connection that a
//! transaction was last heard on is still there, and ends those for which it is not. Should that ever meet a live one,
//! it is rolled back whole and runs again: nobody's attempt.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use mongodb::bson::{Bson, Document, doc};

use crate::document::maybe_int;
use crate::error::{Answer, answered};
use crate::store::MongoStore;

/// The shortest time between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a look may take: it is a help, no more.
const LOOK: Duration = Duration::from_secs(2);

/// When somebody looked last.
#[derive(Debug, Default)]
pub(crate) struct Looked(Mutex<Option<Instant>>);

impl Looked {
    /// Whether it is time to look again, which is then done.
    fn is_long_ago(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let long_ago = last.is_none_or(|last| last.elapsed() >= PAUSE);
        if long_ago {
            *last = Some(Instant::now());
        }
        long_ago
    }
}

impl MongoStore {
    /// Ends transactions whose process is gone, unless somebody has just looked. Two round trips at most.
    pub(crate) async fn end_orphans(&self) {
        if !self.inner.looked.is_long_ago() {
            return;
        }
        if let Err(error) = answered(LOOK, self.end_those_without_connection()).await {
            tracing::debug!(store = self.place(), %error, "cannot see whose transactions are in the way");
        }
    }

    async fn end_those_without_connection(&self) -> Answer<()> {
        let admin = self.inner.database.client().database("admin");
        // One's own may be seen without a privilege.
        let all = doc! { "$currentOp": { "allUsers": false, "idleConnections": true, "idleSessions": true } };
        let fields =
            doc! { "$project": { "type": 1, "connectionId": 1, "appName": 1, "lsid": 1, "transaction": 1 } };
        let all: Vec<Document> = admin.aggregate([all, fields]).await?.try_collect().await?;
        let orphans = orphans(&all, &self.inner.app_name);
        if orphans.is_empty() {
            return Ok(());
        }
        tracing::info!(
            store = self.place(),
            count = orphans.len(),
            "ends transactions whose process is gone"
        );
        admin.run_command(doc! { "killSessions": orphans }).await.map(drop)
    }
}

/// The sessions of idle transactions of ours that were last heard on a connection that is closed.
fn orphans(all: &[Document], app_name: &str) -> Vec<Document> {
    let is_idle_session = |entry: &&Document| entry.get_str("type") == Ok("idleSession");
    let connections: HashSet<i64> = all
        .iter()
        .filter(|entry| !is_idle_session(entry))
        .filter_map(|entry| maybe_int(entry, "connectionId"))
        .collect();
    all.iter()
        .filter(is_idle_session)
        .filter(|entry| entry.contains_key("transaction") && entry.get_str("appName") == Ok(app_name))
        .filter(|entry| maybe_int(entry, "connectionId").is_some_and(|last| !connections.contains(&last)))
        .filter_map(|entry| session(entry.get("lsid")?))
        .collect()
}

fn session(lsid: &Bson) -> Option<Document> {
    let id = lsid.as_document()?.get("id")?;
    Some(doc! { "id": id.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_idle_transactions_of_ours_without_their_connection_are_orphans() {
        let session = |connection: i64, app: &str, transaction: bool| {
            let mut entry = doc! {
                "type": "idleSession", "connectionId": connection, "appName": app, "lsid": { "id": connection, "uid": 0 },
            };
            if transaction {
                entry.insert("transaction", doc! {});
            }
            entry
        };
        let all = [
            doc! { "type": "op", "connectionId": 1_i64 },
            doc! { "type": "idle", "connectionId": 2_i64 },
            session(1, "hapax", true),
            session(2, "hapax", true),
            session(3, "hapax", true),
            session(4, "shop", true),
            session(5, "hapax", false),
        ];
        assert_eq!(orphans(&all, "hapax"), [doc! { "id": 3_i64 }]);
    }
}
