//! Processes and servers on this machine, with nothing but the standard library and without waiting for
//! anything.
//!
//! Two crates need this: the test kit, whose tests stop servers of their own, and `xtask`, which starts
//! servers before the tests run and must build even while the workspace does not. `xtask` therefore includes
//! this folder by path instead of depending on the test kit; hence also `mod.rs`, since an included file
//! finds its modules beside it.

pub(crate) mod child;
pub(crate) mod daemon;
pub(crate) mod mariadb;
pub(crate) mod mongod;
pub(crate) mod moto;
pub(crate) mod nats_server;
pub(crate) mod node;
pub(crate) mod op_msg;
pub(crate) mod port;
pub(crate) mod postmaster;
pub(crate) mod probe;
pub(crate) mod redis_server;
pub(crate) mod tansu;
pub(crate) mod url;
