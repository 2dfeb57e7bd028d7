//! Open connections.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error;

/// A connection for commands that are answered at once; many may be under way on it. It is never mended: once
/// lost, it is replaced by another one.
pub(crate) struct Link {
    connection: MultiplexedConnection,
    answer: Duration,
    lost: CancellationToken,
}

impl Link {
    pub(crate) fn new(connection: MultiplexedConnection, answer: Duration) -> Self {
        Self { connection, answer, lost: CancellationToken::new() }
    }

    /// Waits until the connection is known to be lost.
    pub(crate) async fn lost(&self) {
        self.lost.cancelled().await;
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// What is said on another connection to the same server is true of this one, too.
    pub(crate) fn give_up(&self) {
        self.lost.cancel();
    }

    /// Sends a command and waits for its answer. The first poll queues it, so that commands leave in the order
    /// in which they are first polled.
    pub(crate) async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        let mut connection = self.connection.clone();
        let answer = match timeout(self.answer, connection.send_packed_command(command)).await {
            Ok(answer) => answer.and_then(Value::extract_error),
            Err(_) => Err(RedisError::from((ErrorKind::Io, "the server did not answer in time"))),
        };
        if answer.as_ref().is_err_and(error::is_loss) {
            self.lost.cancel();
        }
        answer
    }
}

/// A connection that waits for messages. One command at a time.
pub(crate) struct Reading {
    connection: MultiplexedConnection,
    /// The server's number for it, by which a wait can be ended; none if the user may not ask for it.
    id: Option<i64>,
}

impl Reading {
    pub(crate) async fn new(mut connection: MultiplexedConnection) -> RedisResult<Self> {
        match redis::cmd("CLIENT").arg("ID").query_async(&mut connection).await {
            Ok(id) => Ok(Self { connection, id: Some(id) }),
            Err(cause) if error::is_loss(&cause) => Err(cause),
            Err(_) => Ok(Self { connection, id: None }),
        }
    }

    pub(crate) async fn wait_for(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.connection.send_packed_command(command).await.and_then(Value::extract_error)
    }

    /// The command, for another connection, that ends a wait on this one at once.
    pub(crate) fn unblock(&self) -> Option<Cmd> {
        let mut command = redis::cmd("CLIENT");
        command.arg("UNBLOCK").arg(self.id?);
        Some(command)
    }
}
