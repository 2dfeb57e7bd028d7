//! A handler's hold on the transaction of its request.

use std::fmt;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hapax_core::{Code, Store};
use http::{Extensions, StatusCode};

use crate::problem::Problem;

/// The transaction in which a request is recorded: what the handler writes in it commits together with the
/// record and the answer, or not at all.
///
/// It dereferences to the store's transaction (`PgTx`, `SqliteTx`, …), and is an extractor of axum with the
/// feature `axum`. A request has one transaction: it can be taken again once it was dropped, but not twice
/// at a time. It must be dropped before the handler's answer is read to its end; kept any longer it is
/// rolled back (`HX0094`).
///
/// ```
/// # #[cfg(feature = "axum")] {
/// use axum::{Router, routing::post};
/// use hapax_http::Tx;
/// use hapax_testkit::memory::MemoryStore;
///
/// async fn pay(mut tx: Tx<MemoryStore>) -> &'static str {
///     tx.add("paid", 1).expect("a number");
///     "paid"
/// }
/// let app: Router = Router::new().route("/payments", post(pay));
/// # }
/// ```
pub struct Tx<S: Store> {
    /// Always there until the drop.
    tx: Option<S::Tx>,
    slot: Slot<S>,
}

impl<S: Store> Tx<S> {
    /// Takes the transaction out of a request's extensions. A [`Problem`] (500, `HX0094`) where there is
    /// none, or where it is taken.
    pub fn take(extensions: &Extensions) -> Result<Self, Problem> {
        let slot = extensions.get::<Slot<S>>().ok_or_else(|| {
            let detail = "the handler asked for a transaction on a request that has none";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::TransactionMisplaced, detail)
        })?;
        slot.lend().ok_or_else(|| {
            let detail = "the handler asked for the request's transaction while it had it already";
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, Code::TransactionMisplaced, detail)
        })
    }
}

impl<S: Store> Deref for Tx<S> {
    type Target = S::Tx;

    fn deref(&self) -> &S::Tx {
        self.tx.as_ref().expect("there until the drop")
    }
}

impl<S: Store> DerefMut for Tx<S> {
    fn deref_mut(&mut self) -> &mut S::Tx {
        self.tx.as_mut().expect("there until the drop")
    }
}

impl<S: Store> Drop for Tx<S> {
    fn drop(&mut self) {
        if let Some(tx) = self.tx.take() {
            self.slot.give_back(tx);
        }
    }
}

impl<S: Store> fmt::Debug for Tx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

#[cfg(feature = "axum")]
impl<S: Store, T: Send + Sync> axum::extract::FromRequestParts<T> for Tx<S> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut http::request::Parts, _: &T) -> Result<Self, Problem> {
        Self::take(&parts.extensions)
    }
}

/// Where a request's transaction lies while nobody has it; a request extension.
pub(crate) struct Slot<S: Store> {
    place: Arc<Mutex<Place<S::Tx>>>,
    store: S,
}

enum Place<T> {
    Here(T),
    Lent,
    /// The handler has returned.
    Closed,
}

impl<S: Store> Slot<S> {
    pub(crate) fn new(store: S, tx: S::Tx) -> Self {
        Self { place: Arc::new(Mutex::new(Place::Here(tx))), store }
    }

    /// Ends the lending; none if the handler has the transaction still, which is rolled back when it lets
    /// it go.
    pub(crate) fn close(&self) -> Option<S::Tx> {
        match mem::replace(&mut *self.lock(), Place::Closed) {
            Place::Here(tx) => Some(tx),
            Place::Lent | Place::Closed => None,
        }
    }

    fn lend(&self) -> Option<Tx<S>> {
        let mut place = self.lock();
        match mem::replace(&mut *place, Place::Lent) {
            Place::Here(tx) => Some(Tx { tx: Some(tx), slot: self.clone() }),
            other => {
                *place = other;
                None
            }
        }
    }

    fn give_back(&self, tx: S::Tx) {
        let mut place = self.lock();
        if matches!(*place, Place::Lent) {
            *place = Place::Here(tx);
            return;
        }
        drop(place);
        // Without a runtime, the drop of the transaction rolls back.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let store = self.store.clone();
            runtime.spawn(async move { store.abort(tx).await });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Place<S::Tx>> {
        // Every change is one assignment: a panic leaves nothing half done.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Store> Clone for Slot<S> {
    fn clone(&self) -> Self {
        Self { place: Arc::clone(&self.place), store: self.store.clone() }
    }
}
