//! Operations that answer with many documents: they are collected, since a cursor would need the session.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, TryStreamExt as _};
use mongodb::ClientSession;
use mongodb::action::{Aggregate, Find};
use mongodb::bson::{Bson, Document};
use mongodb::options::{Collation, Hint};
use serde::de::DeserializeOwned;

use crate::error::Answer;
use crate::fate::Fate;

macro_rules! options {
    ($action:ident { $($option:ident: $value:ty,)* }) => {
        $(
            #[doc = concat!("The driver's option [`", stringify!($option), "`](mongodb::options).")]
            pub fn $option(mut self, value: $value) -> Self {
                self.action = self.action.$option(value);
                self
            }
        )*
    };
}

/// A `find` in the transaction, which answers with a `Vec`: set its options, then `.await` it.
#[must_use = "an operation does nothing until it is awaited"]
pub struct TxFind<'t, T: Send + Sync> {
    action: Find<'t, T>,
    session: &'t mut ClientSession,
    fate: &'t mut Fate,
}

impl<'t, T: Send + Sync> TxFind<'t, T> {
    pub(super) fn new(
        action: Find<'t, T>,
        longest: Option<Duration>,
        session: &'t mut ClientSession,
        fate: &'t mut Fate,
    ) -> Self {
        let action = if let Some(longest) = longest { action.max_time(longest) } else { action };
        Self { action, session, fate }
    }

    options! { Find {
        allow_disk_use: bool, batch_size: u32, collation: Collation, comment: impl Into<Bson>, hint: Hint,
        let_vars: Document, limit: i64, max_time: Duration, projection: Document, skip: u64, sort: Document,
    } }
}

impl<'t, T: DeserializeOwned + Send + Sync + Unpin + 't> IntoFuture for TxFind<'t, T> {
    type Output = Answer<Vec<T>>;
    type IntoFuture = BoxFuture<'t, Answer<Vec<T>>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { action, session, fate } = self;
        let collected = async move {
            let mut cursor = action.session(&mut *session).await?;
            cursor.stream(session).try_collect().await
        };
        async move { fate.watch(collected).await }.boxed()
    }
}

/// An aggregation in the transaction, which answers with a `Vec`: set its options, then `.await` it.
#[must_use = "an operation does nothing until it is awaited"]
pub struct TxAggregate<'t> {
    action: Aggregate<'t>,
    session: &'t mut ClientSession,
    fate: &'t mut Fate,
}

impl<'t> TxAggregate<'t> {
    pub(super) fn new(
        action: Aggregate<'t>,
        longest: Option<Duration>,
        session: &'t mut ClientSession,
        fate: &'t mut Fate,
    ) -> Self {
        let action = if let Some(longest) = longest { action.max_time(longest) } else { action };
        Self { action, session, fate }
    }

    options! { Aggregate {
        allow_disk_use: bool, batch_size: u32, collation: Collation, comment: impl Into<Bson>, hint: Hint,
        let_vars: Document, max_time: Duration,
    } }
}

impl<'t> IntoFuture for TxAggregate<'t> {
    type Output = Answer<Vec<Document>>;
    type IntoFuture = BoxFuture<'t, Answer<Vec<Document>>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { action, session, fate } = self;
        let collected = async move {
            let mut cursor = action.session(&mut *session).await?;
            cursor.stream(session).try_collect().await
        };
        async move { fate.watch(collected).await }.boxed()
    }
}

impl<T: Send + Sync> fmt::Debug for TxFind<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxFind").finish_non_exhaustive()
    }
}

impl fmt::Debug for TxAggregate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxAggregate").finish_non_exhaustive()
    }
}
