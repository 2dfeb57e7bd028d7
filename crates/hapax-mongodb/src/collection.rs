//! Collections bound to a transaction.

use std::fmt;
use std::time::Duration;

use mongodb::action::{
    CountDocuments, Delete, Distinct, FindOne, FindOneAndDelete, FindOneAndReplace, FindOneAndUpdate,
    InsertMany, InsertOne, ReplaceOne, Update,
};
use mongodb::bson::Document;
use mongodb::options::UpdateModifications;
use mongodb::{ClientSession, Collection};
use serde::{Serialize, de::DeserializeOwned};

use crate::fate::Fate;

mod operation;
mod rows;

pub use operation::TxOperation;
pub use rows::{TxAggregate, TxFind};

/// A collection whose every operation runs in a handler's transaction.
///
/// The operations are the driver's own, with its options, and answer with its results and errors. One round trip
/// each; one that reads many documents takes one more for each further batch.
pub struct TxCollection<'t, T: Send + Sync> {
    pub(crate) collection: Collection<T>,
    pub(crate) session: &'t mut ClientSession,
    pub(crate) fate: &'t mut Fate,
    /// The longest a read may run on the server.
    pub(crate) longest: Option<Duration>,
}

/// The driver's operation with the session, and the watch over its answer.
macro_rules! bound {
    ($self:ident, $action:expr) => {
        TxOperation::new($action.session(&mut *$self.session), $self.fate)
    };
}

/// The same for an operation that the server can be told to stop.
macro_rules! bounded {
    ($self:ident, $action:expr) => {{
        let action = $action.session(&mut *$self.session);
        let action = if let Some(longest) = $self.longest { action.max_time(longest) } else { action };
        TxOperation::new(action, $self.fate)
    }};
}

impl<T: Send + Sync> TxCollection<'_, T> {
    /// Its name.
    pub fn name(&self) -> &str {
        self.collection.name()
    }

    /// Updates the first document that fits.
    pub fn update_one(
        &mut self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> TxOperation<'_, Update<'_>> {
        bound!(self, self.collection.update_one(filter, update))
    }

    /// Updates every document that fits.
    pub fn update_many(
        &mut self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> TxOperation<'_, Update<'_>> {
        bound!(self, self.collection.update_many(filter, update))
    }

    /// Deletes the first document that fits.
    pub fn delete_one(&mut self, filter: Document) -> TxOperation<'_, Delete<'_>> {
        bound!(self, self.collection.delete_one(filter))
    }

    /// Deletes every document that fits.
    pub fn delete_many(&mut self, filter: Document) -> TxOperation<'_, Delete<'_>> {
        bound!(self, self.collection.delete_many(filter))
    }

    /// Counts the documents that fit.
    pub fn count_documents(&mut self, filter: Document) -> TxOperation<'_, CountDocuments<'_>> {
        bounded!(self, self.collection.count_documents(filter))
    }

    /// The distinct values of a field in the documents that fit.
    pub fn distinct(&mut self, field: impl AsRef<str>, filter: Document) -> TxOperation<'_, Distinct<'_>> {
        bounded!(self, self.collection.distinct(field, filter))
    }

    /// Runs an aggregation and collects what it answers.
    pub fn aggregate(&mut self, pipeline: impl IntoIterator<Item = Document>) -> TxAggregate<'_> {
        let action = self.collection.aggregate(pipeline);
        TxAggregate::new(action, self.longest, self.session, self.fate)
    }

    /// Finds the documents that fit and collects them.
    pub fn find(&mut self, filter: Document) -> TxFind<'_, T> {
        TxFind::new(self.collection.find(filter), self.longest, self.session, self.fate)
    }
}

impl<T: Serialize + Send + Sync> TxCollection<'_, T> {
    /// Inserts a document.
    pub fn insert_one(&mut self, document: impl std::borrow::Borrow<T>) -> TxOperation<'_, InsertOne<'_>> {
        bound!(self, self.collection.insert_one(document))
    }

    /// Inserts documents, all or none.
    pub fn insert_many(
        &mut self,
        documents: impl IntoIterator<Item = impl std::borrow::Borrow<T>>,
    ) -> TxOperation<'_, InsertMany<'_>> {
        bound!(self, self.collection.insert_many(documents))
    }

    /// Replaces the first document that fits.
    pub fn replace_one(
        &mut self,
        filter: Document,
        replacement: impl std::borrow::Borrow<T>,
    ) -> TxOperation<'_, ReplaceOne<'_>> {
        bound!(self, self.collection.replace_one(filter, replacement))
    }
}

impl<T: DeserializeOwned + Send + Sync> TxCollection<'_, T> {
    /// Finds the first document that fits.
    pub fn find_one(&mut self, filter: Document) -> TxOperation<'_, FindOne<'_, T>> {
        bounded!(self, self.collection.find_one(filter))
    }

    /// Updates the first document that fits and answers with it as it was, or as it is then.
    pub fn find_one_and_update(
        &mut self,
        filter: Document,
        update: impl Into<UpdateModifications>,
    ) -> TxOperation<'_, FindOneAndUpdate<'_, T>> {
        bounded!(self, self.collection.find_one_and_update(filter, update))
    }

    /// Deletes the first document that fits and answers with it.
    pub fn find_one_and_delete(&mut self, filter: Document) -> TxOperation<'_, FindOneAndDelete<'_, T>> {
        bounded!(self, self.collection.find_one_and_delete(filter))
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync> TxCollection<'_, T> {
    /// Replaces the first document that fits and answers with it as it was, or as it is then.
    pub fn find_one_and_replace(
        &mut self,
        filter: Document,
        replacement: impl std::borrow::Borrow<T>,
    ) -> TxOperation<'_, FindOneAndReplace<'_, T>> {
        bounded!(self, self.collection.find_one_and_replace(filter, replacement))
    }
}

impl<T: Send + Sync> fmt::Debug for TxCollection<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TxCollection").field("name", &self.name()).finish_non_exhaustive()
    }
}
