//! Handlers of a configuration file: SQL with named parameters, run in the inbox's transaction.

mod handler;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;
mod publish;
#[cfg(feature = "sqlite")]
mod sqlite;
mod target;

pub(crate) use handler::{SqlHandler, Step};
pub(crate) use publish::Publishing;
pub(crate) use target::{SqlTarget, Unfit};
