//! The commands.

pub(crate) mod bench;
pub(crate) mod dead;
pub(crate) mod inbox;
pub(crate) mod migrate;
pub(crate) mod outbox;
pub(crate) mod relay;
pub(crate) mod run;
pub(crate) mod send;
