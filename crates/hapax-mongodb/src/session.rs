//! Sessions with a transaction, bounded in number, and what becomes of one that nobody ended.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Code, Error, ErrorKind};
use mongodb::bson::{Document, doc};
use mongodb::options::{ReadConcern, ReadPreference, SelectionCriteria, WriteConcern};
use mongodb::{Client, ClientSession, Collection};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::document::maybe_int;
use crate::error::{Answer, Result, answered, failed};
use crate::fate::Fate;

/// Turns for what goes on beside the transactions: leases, instances, purges, looks. Reserved, or N handlers
/// would wait for one that only they could free.
pub(crate) const SIDE: usize = 2;
/// A roll-back that takes longer is not worth waiting for: the server ends the transaction by itself.
const ROLL_BACK: Duration = Duration::from_secs(5);

/// A store's sessions.
pub(crate) struct Sessions {
    client: Client,
    answer: Duration,
    /// How long the server lets a transaction live.
    lifetime: Duration,
    /// Read to begin a transaction that is to push another one out.
    mark: Collection<Document>,
    main: Arc<Semaphore>,
    side: Arc<Semaphore>,
}

impl Sessions {
    pub(crate) fn new(
        client: Client,
        mark: Collection<Document>,
        pool: usize,
        answer: Duration,
        lifetime: Duration,
    ) -> Arc<Self> {
        let (main, side) = (Arc::new(Semaphore::new(pool)), Arc::new(Semaphore::new(SIDE)));
        Arc::new(Self { client, answer, lifetime, mark, main, side })
    }

    /// How long an answer may take.
    pub(crate) fn limit(&self) -> Duration {
        self.answer
    }

    /// A session whose transaction is the handler's, with nothing done in it yet.
    pub(crate) async fn main(self: &Arc<Self>) -> Result<Held> {
        let permit = turn(&self.main).await?;
        self.hold(permit).await
    }

    /// A session for a transaction beside the handlers'.
    pub(crate) async fn side(self: &Arc<Self>) -> Result<Held> {
        let permit = turn(&self.side).await?;
        self.hold(permit).await
    }

    /// A turn for an operation without a transaction.
    pub(crate) async fn side_turn(&self) -> Result<OwnedSemaphorePermit> {
        turn(&self.side).await
    }

    async fn hold(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Result<Held> {
        // What a transaction must see is on the primary, and the snapshot is of what is there.
        let session = self.client.start_session().causal_consistency(false).await;
        let session = session.map_err(failed("cannot start a session"))?;
        let mut held = Held {
            session: Some(session),
            fate: Fate::new(self.lifetime),
            sessions: Arc::clone(self),
            runtime: Handle::current(),
            permit: Some(permit),
        };
        if let Err(error) = held.begin().await {
            held.let_go(); // nothing has reached a server
            return Err(failed("cannot begin a transaction")(error));
        }
        Ok(held)
    }

    /// Ends whatever is open on a session of which nobody knows what is still on its way.
    ///
    /// A dropped future may leave an operation running, or yet to arrive. So what runs is stopped first, and then
    /// a younger transaction takes the session over: whatever arrives late belongs to an older one and is refused.
    /// The driver alone does neither: it believes a transaction whose first operation was dropped to be empty, and
    /// one whose commit was dropped to be committed, and hands the session to the next.
    async fn undo(&self, mut session: ClientSession) {
        let kill = doc! { "killSessions": [session.id().clone()] };
        let killed = answered(ROLL_BACK, self.client.database("admin").run_command(kill)).await;
        let _ = answered(ROLL_BACK, session.abort_transaction()).await;
        if killed.is_ok() {
            let _ = answered(ROLL_BACK, self.push_out(&mut session)).await;
        }
    }

    async fn push_out(&self, session: &mut ClientSession) -> Answer<()> {
        session.start_transaction().await?;
        self.mark.find_one(doc! {}).session(&mut *session).await?;
        session.abort_transaction().await
    }
}

async fn turn(turns: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit> {
    let closed = || Error::new(ErrorKind::Unavailable, Code::StoreUnavailable, "the store is closed");
    Arc::clone(turns).acquire_owned().await.map_err(|_| closed())
}

/// A session in a transaction. Dropped anywhere but after a clean end, the transaction is undone by a task that
/// keeps the turn until it has.
pub(crate) struct Held {
    /// Always there but in what consumes `self`.
    session: Option<ClientSession>,
    fate: Fate,
    sessions: Arc<Sessions>,
    runtime: Handle,
    permit: Option<OwnedSemaphorePermit>,
}

impl Held {
    /// The session and what is known of its transaction.
    pub(crate) fn parts(&mut self) -> (&mut ClientSession, &mut Fate) {
        let session = self.session.as_mut().expect("taken only where `self` is consumed");
        (session, &mut self.fate)
    }

    pub(crate) fn fate(&self) -> &Fate {
        &self.fate
    }

    /// How long an answer may take.
    pub(crate) fn limit(&self) -> Duration {
        self.sessions.answer
    }

    async fn begin(&mut self) -> Answer<()> {
        let limit = self.sessions.answer;
        let (session, fate) = self.parts();
        fate.begin();
        let begun = session
            .start_transaction()
            .read_concern(ReadConcern::snapshot())
            .write_concern(WriteConcern::majority())
            .selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary))
            .max_commit_time(limit);
        answered(limit, begun).await
    }

    /// Rolls back and begins anew, with a new snapshot.
    pub(crate) async fn restart(&mut self) -> Answer<()> {
        let (session, _) = self.parts();
        answered(ROLL_BACK, session.abort_transaction()).await?;
        self.begin().await
    }

    /// Commits a side transaction.
    pub(crate) async fn commit(mut self) -> Answer<()> {
        let limit = self.limit();
        let (session, fate) = self.parts();
        fate.watch(answered(limit, session.commit_transaction())).await?;
        self.let_go();
        Ok(())
    }

    /// Commits a side transaction if all went well in it, else rolls it back.
    pub(crate) async fn end<T>(self, done: Answer<T>) -> Answer<T> {
        match done {
            Ok(done) => self.commit().await.map(|()| done),
            Err(error) => {
                self.roll_back().await;
                Err(error)
            }
        }
    }

    /// Updates documents, each in its own way, for which the driver has no operation, and says how many were there.
    /// One round trip.
    pub(crate) async fn update_each(
        &mut self,
        table: &Collection<Document>,
        updates: Vec<Document>,
    ) -> Answer<i64> {
        let limit = self.limit();
        let namespace = table.namespace();
        let database = self.sessions.client.database(&namespace.db);
        let update = doc! { "update": namespace.coll, "updates": updates };
        let (session, fate) = self.parts();
        let answer = fate.watch(answered(limit, database.run_command(update).session(session))).await?;
        Ok(maybe_int(&answer, "n").unwrap_or(0))
    }

    /// Rolls back. Never fails: what the server does not hear of, it ends by itself.
    pub(crate) async fn roll_back(mut self) {
        if self.fate.is_in_flight() {
            return;
        }
        let (session, _) = self.parts();
        if answered(ROLL_BACK, session.abort_transaction()).await.is_ok() {
            self.let_go();
        }
    }

    /// Gives the session back. Only where its transaction has ended.
    pub(crate) fn let_go(&mut self) {
        drop(self.session.take());
    }

    /// Undoes the transaction and waits for it.
    pub(crate) async fn undo(mut self) {
        if let Some(session) = self.session.take() {
            let (sessions, permit) = (Arc::clone(&self.sessions), self.permit.take());
            // A task, so that it is not cut short where the caller is.
            let undone = self.runtime.spawn(async move {
                sessions.undo(session).await;
                drop(permit);
            });
            let _ = undone.await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            let (sessions, permit) = (Arc::clone(&self.sessions), self.permit.take());
            self.runtime.spawn(async move {
                sessions.undo(session).await;
                drop(permit);
            });
        }
    }
}
