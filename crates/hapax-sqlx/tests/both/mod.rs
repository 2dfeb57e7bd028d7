//! What is special to the SQL stores and the same on every database: each test folder file opens its
//! database and runs these.

#![allow(dead_code)] // each file uses what applies to its database

use std::any::Any;
use std::future::Future;
use std::time::Duration;

use hapax_core::{
    Burial, Claim, ClaimRequest, Code, ConsumerName, Digest, Envelope, Error, ErrorKind, Key, MessageId,
    Origin, Parking, RawMessage, Store, Timestamp,
};
use hapax_sqlx::{Dialect, SqlStore, SqlTx};

pub(crate) mod claims;
pub(crate) mod queue;
pub(crate) mod rooms;
pub(crate) mod transactions;

/// A database of a test's own, with an `effects` table beside Hapax's.
pub(crate) struct Fixture<D: Run> {
    pub(crate) store: SqlStore<D>,
    pub(crate) effects: String,
    pub(crate) guard: Box<dyn Any + Send>,
}

/// Statements of a user's handler, which sqlx takes on concrete connections only.
pub(crate) trait Run: Dialect {
    /// Whether several transactions can write at the same time.
    const MANY_WRITERS: bool;
    /// A table of Hapax's, under its schema or prefix.
    fn of_hapax(schema: &str, name: &str) -> String;
    /// Statements that end the transaction under a handler's feet, one set per way.
    fn breakers(effects: &str) -> Vec<Vec<String>>;
    fn execute_sql(
        conn: &mut Self::Connection,
        sql: String,
    ) -> impl Future<Output = Result<u64, sqlx::Error>> + Send;
    fn count_sql(
        conn: &mut Self::Connection,
        sql: String,
    ) -> impl Future<Output = Result<i64, sqlx::Error>> + Send;
}

/// The part that reads the same on every driver.
#[macro_export]
macro_rules! run_with_sqlx {
    ($connection:ty) => {
        async fn execute_sql(conn: &mut $connection, sql: String) -> Result<u64, sqlx::Error> {
            Ok(sqlx::query(sqlx::AssertSqlSafe(sql)).execute(conn).await?.rows_affected())
        }

        async fn count_sql(conn: &mut $connection, sql: String) -> Result<i64, sqlx::Error> {
            sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(conn).await
        }
    };
}

/// Makes a test of each scenario.
#[macro_export]
macro_rules! scenarios {
    ($open:path; $($module:ident: $($name:ident)*;)*) => {
        $(mod $module {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                $crate::both::$module::$name($open().await).await;
            })*
        })*
    };
}

/// Makes a test of every scenario.
#[macro_export]
macro_rules! every_scenario {
    ($open:path) => {
        $crate::scenarios! { $open;
            claims: case_36_ids_are_kept_byte_for_byte a_claim_lasts_only_with_its_transaction
                another_payload_under_a_known_id_is_told purged_messages_are_ambiguous
                case_04_of_many_rivals_one_commits a_rival_is_busy_and_then_a_duplicate
                a_claim_works_in_a_transaction_of_the_users_own records_move_with_their_consumer
                a_lazy_record_is_made_once suspects_are_charged_as_long_as_they_are_free
                instances_are_known_until_they_leave an_older_version_is_not_newer;
            transactions: case_46_a_handler_that_ends_the_transaction_is_found_out
                a_broken_transaction_settles_nothing nested_transactions_are_savepoints
                case_43_a_call_cancelled_anywhere_leaves_nothing_open migrations_apply_once
                a_transaction_that_is_dropped_is_rolled_back errors_of_handlers_are_recognised;
            rooms: a_parked_message_is_leased_when_it_is_due leases_end_and_are_told_apart
                case_49_messages_of_a_key_keep_their_order case_10_one_of_two_operators_redrives
                a_redriven_letter_is_handled_once letters_without_id_need_one
                another_payload_set_aside_leaves_the_row_as_it_is
                discarding_frees_the_key_and_keeps_the_row;
            queue: messages_come_in_order_and_are_acked_in_the_transaction a_lease_that_ended_is_not_ours
                what_is_handed_back_comes_again a_cancelled_next_loses_nothing
                closing_hands_back_what_was_never_handed_over case_40_bodies_are_kept_byte_for_byte
                sending_in_a_transaction_commits_with_it;
        }
    };
}

pub(crate) fn consumer() -> ConsumerName {
    ConsumerName::new("orders").unwrap()
}

pub(crate) fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

pub(crate) fn key(text: &str) -> Key {
    Key::new(id(text), Digest::of(text.as_bytes()))
}

pub(crate) fn request<'r>(consumer: &'r ConsumerName, keys: &'r [Key]) -> ClaimRequest<'r> {
    ClaimRequest { consumer, keys, slack: Duration::ZERO, timeout: None }
}

pub(crate) fn message(text: &str) -> RawMessage {
    let mut envelope = Envelope::new(text.to_owned()).with_id(text).with_type("Paid");
    envelope.origin = Origin { source: "test".into(), position: None };
    RawMessage {
        id: id(text),
        kind: "Paid".into(),
        key: None,
        sent_at: None,
        digest: Digest::of(text.as_bytes()),
        payload: envelope.body.clone(),
        envelope,
    }
}

pub(crate) fn parking<'p>(message: &'p RawMessage, order: Option<&'p str>) -> Parking<'p> {
    Parking {
        message,
        failures: 1,
        error: "no",
        code: Some(Code::HandlerFailed),
        wait: Duration::ZERO,
        order,
    }
}

pub(crate) fn burial<'b>(message: &'b RawMessage, order: Option<&'b str>) -> Burial<'b> {
    Burial {
        envelope: &message.envelope,
        id: Some(&message.id),
        kind: &message.kind,
        order,
        place: None,
        reason: Code::Rejected,
        error: "never",
        failures: 2,
        crashes: 0,
    }
}

impl<D: Run> Fixture<D> {
    pub(crate) async fn begin(&self, keys: &[Key]) -> (SqlTx<D>, Vec<Claim>) {
        self.store.begin_claim(&request(&consumer(), keys)).await.unwrap()
    }

    /// The only claim of a key, in a transaction that is rolled back.
    pub(crate) async fn ask(&self, key: Key) -> Claim {
        let (tx, claims) = self.begin(&[key]).await;
        self.store.roll_back(tx).await;
        claims[0]
    }

    /// Claims a key, inserts an effect and commits.
    pub(crate) async fn handle(&self, key: Key) -> Result<Claim, Error> {
        let (mut tx, claims) =
            self.store.begin_claim(&request(&consumer(), std::slice::from_ref(&key))).await?;
        if !claims[0].is_ours() {
            self.store.roll_back(tx).await;
            return Ok(claims[0]);
        }
        self.effect(&mut tx).await;
        self.store.finish(tx).await?;
        Ok(claims[0])
    }

    pub(crate) async fn effect(&self, tx: &mut SqlTx<D>) {
        D::execute_sql(tx.conn(), format!("INSERT INTO {} (n) VALUES (1)", self.effects)).await.unwrap();
    }

    /// Effects that are committed.
    pub(crate) async fn effects(&self) -> i64 {
        self.count(&format!("SELECT count(*) FROM {}", self.effects)).await
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        let (mut tx, _) = self.begin(&[]).await;
        let count = D::count_sql(tx.conn(), sql.to_owned()).await.unwrap();
        self.store.roll_back(tx).await;
        count
    }

    pub(crate) async fn execute(&self, sql: &str) {
        let (mut tx, _) = self.begin(&[]).await;
        D::execute_sql(tx.conn(), sql.to_owned()).await.unwrap();
        self.store.finish(tx).await.unwrap();
    }

    /// A table of Hapax's.
    pub(crate) fn table(&self, name: &str) -> String {
        D::of_hapax(self.store.schema(), name)
    }
}

/// A time that is long past by any clock.
pub(crate) fn long_ago(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_600_000_000_000_000 + seconds * 1_000_000)
}

pub(crate) fn is(error: &Error, kind: ErrorKind, code: Code) -> bool {
    error.kind() == kind && error.code() == code
}
