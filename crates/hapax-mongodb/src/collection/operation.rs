//! An operation of the driver's under watch, with the options that make sense in a transaction.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use mongodb::action::{
    CountDocuments, Delete, Distinct, FindOne, FindOneAndDelete, FindOneAndReplace, FindOneAndUpdate,
    InsertMany, InsertOne, ReplaceOne, Update,
};
use mongodb::bson::{Bson, Document};
use mongodb::options::{Collation, Hint, ReturnDocument};

use crate::error::Answer;
use crate::fate::Fate;

/// An operation that is ready to run in the transaction: set its options, then `.await` it.
#[must_use = "an operation does nothing until it is awaited"]
pub struct TxOperation<'t, A> {
    action: A,
    fate: &'t mut Fate,
}

impl<'t, A> TxOperation<'t, A> {
    pub(super) fn new(action: A, fate: &'t mut Fate) -> Self {
        Self { action, fate }
    }
}

impl<'t, A, T> IntoFuture for TxOperation<'t, A>
where
    A: IntoFuture<Output = Answer<T>, IntoFuture: Send> + Send + 't,
    T: Send,
{
    type Output = Answer<T>;
    type IntoFuture = BoxFuture<'t, Answer<T>>;

    fn into_future(self) -> Self::IntoFuture {
        async move { self.fate.watch(self.action).await }.boxed()
    }
}

impl<A> fmt::Debug for TxOperation<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxOperation").finish_non_exhaustive()
    }
}

/// Passes options on to the driver's operation.
macro_rules! options {
    ($([$($generics:tt)*] $operation:ty { $($option:ident: $value:ty,)* })*) => {
        $(impl<$($generics)*> TxOperation<'_, $operation> {
            $(
                #[doc = concat!("The driver's option [`", stringify!($option), "`](mongodb::options).")]
                pub fn $option(mut self, value: $value) -> Self {
                    self.action = self.action.$option(value);
                    self
                }
            )*
        })*
    };
}

options! {
    ['a] InsertOne<'a> { bypass_document_validation: bool, comment: impl Into<Bson>, }
    ['a] InsertMany<'a> { bypass_document_validation: bool, ordered: bool, comment: impl Into<Bson>, }
    ['a] Update<'a> {
        array_filters: impl IntoIterator<Item = Document>, bypass_document_validation: bool, upsert: bool,
        collation: Collation, hint: Hint, let_vars: Document, sort: Document, comment: impl Into<Bson>,
    }
    ['a] ReplaceOne<'a> {
        bypass_document_validation: bool, upsert: bool, collation: Collation, hint: Hint, let_vars: Document,
        sort: Document, comment: impl Into<Bson>,
    }
    ['a] Delete<'a> { collation: Collation, hint: Hint, let_vars: Document, comment: impl Into<Bson>, }
    ['a] CountDocuments<'a> {
        collation: Collation, hint: Hint, limit: u64, skip: u64, max_time: Duration, comment: impl Into<Bson>,
    }
    ['a] Distinct<'a> { collation: Collation, hint: Hint, max_time: Duration, comment: impl Into<Bson>, }
    ['a, T: Send + Sync] FindOne<'a, T> {
        collation: Collation, hint: Hint, let_vars: Document, max_time: Duration, projection: Document, skip: u64,
        sort: Document, comment: impl Into<Bson>,
    }
    ['a, T: Send + Sync] FindOneAndUpdate<'a, T> {
        array_filters: impl IntoIterator<Item = Document>, bypass_document_validation: bool, upsert: bool,
        return_document: ReturnDocument, collation: Collation, hint: Hint, let_vars: Document, max_time: Duration,
        projection: Document, sort: Document, comment: impl Into<Bson>,
    }
    ['a, T: Send + Sync] FindOneAndReplace<'a, T> {
        bypass_document_validation: bool, upsert: bool, return_document: ReturnDocument, collation: Collation,
        hint: Hint, let_vars: Document, max_time: Duration, projection: Document, sort: Document,
        comment: impl Into<Bson>,
    }
    ['a, T: Send + Sync] FindOneAndDelete<'a, T> {
        collation: Collation, hint: Hint, let_vars: Document, max_time: Duration, projection: Document,
        sort: Document, comment: impl Into<Bson>,
    }
}
