//! One open connection.

use std::time::Duration;

use lapin::{Channel, Connection};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::socket::Socket;

/// How long the broker may take to answer our goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// An open connection, closed politely when it is dropped and by force where that gets no answer.
pub(crate) struct Link {
    open: Option<(Connection, Socket)>,
}

impl Link {
    pub(crate) fn new(connection: Connection, socket: Socket) -> Self {
        Self { open: Some((connection, socket)) }
    }

    pub(crate) async fn channel(&self) -> lapin::Result<Channel> {
        self.connection().create_channel().await
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.connection().status().connected()
    }

    /// The largest frame both sides agreed on, in bytes. Headers must fit into one.
    pub(crate) fn frame_max(&self) -> usize {
        usize::try_from(self.connection().configuration().frame_max()).unwrap_or(usize::MAX)
    }

    pub(crate) async fn close(mut self) {
        if let Some((connection, socket)) = self.open.take() {
            say_goodbye(connection, socket).await;
        }
    }

    fn connection(&self) -> &Connection {
        let (connection, _) =
            self.open.as_ref().expect("only `close` and `drop` take it, and both end the link");
        connection
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let (Some((connection, socket)), Ok(runtime)) = (self.open.take(), Handle::try_current()) {
            runtime.spawn(say_goodbye(connection, socket));
        }
    }
}

async fn say_goodbye(connection: Connection, socket: Socket) {
    let _ = timeout(GOODBYE, connection.close(200, "OK".into())).await; // no answer: the socket is cut below
    drop(socket);
}
