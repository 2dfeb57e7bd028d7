//! One open connection.

use std::time::Duration;

use lapin::{Channel, Connection};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::socket::Socket;

/// How long the broker may take to answer our goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// An open connection, closed politely when it is dropped and by force where that gets no answer.
///
/// A channel that is dropped open is closed by lapin in the background. If the connection closes at the
/// same moment, that attempt fails, and lapin reports it as an error of the connection. So channels that
/// live as long as the connection are [kept](Self::keep) until the goodbye is over.
pub(crate) struct Link {
    open: Option<(Connection, Socket)>,
    kept: Vec<Channel>,
}

impl Link {
    pub(crate) fn new(connection: Connection, socket: Socket) -> Self {
        Self { open: Some((connection, socket)), kept: Vec::new() }
    }

    /// Has a channel outlive the connection.
    pub(crate) fn keep(&mut self, channel: Channel) {
        self.kept.push(channel);
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
            say_goodbye(connection, socket, std::mem::take(&mut self.kept)).await;
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
            runtime.spawn(say_goodbye(connection, socket, std::mem::take(&mut self.kept)));
        }
    }
}

async fn say_goodbye(connection: Connection, socket: Socket, kept: Vec<Channel>) {
    match timeout(GOODBYE, connection.close(200, "OK".into())).await {
        Ok(Ok(())) => socket.release(), // lapin hangs up once it has digested the answer
        _ => drop(socket),
    }
    drop(kept);
}
