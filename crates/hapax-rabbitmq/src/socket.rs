//! A second handle on the TCP socket under a connection, by which it can be cut.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

/// Cuts its socket when it is dropped, unless it is [released](Self::release).
///
/// lapin runs a thread per connection. It waits without limit for a broker that accepted the
/// connection and then says nothing, during the handshake and during the goodbye; only the end of
/// the socket ends that thread.
#[derive(Debug, Default)]
pub(crate) struct Socket(SocketSlot);

/// Where the connecting side puts the socket once there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketSlot(Arc<Mutex<State>>);

#[derive(Debug, Default)]
enum State {
    #[default]
    Awaited,
    Held(TcpStream),
    /// Cut or released.
    Over,
}

impl Socket {
    pub(crate) fn slot(&self) -> SocketSlot {
        self.0.clone()
    }

    /// Leaves the end of the socket to whoever else holds it.
    pub(crate) fn release(self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = State::Over;
    }
}

impl SocketSlot {
    /// Keeps a handle on the socket; an error if nobody waits for it any more.
    pub(crate) fn hold(&self, socket: &TcpStream) -> io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *state {
            State::Over => Err(io::ErrorKind::TimedOut.into()),
            State::Awaited | State::Held(_) => {
                *state = State::Held(socket.try_clone()?);
                Ok(())
            }
        }
    }

    fn cut(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Held(socket) = std::mem::replace(&mut *state, State::Over) {
            let _ = socket.shutdown(Shutdown::Both); // fails where it is closed already, which is the aim
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.0.cut();
    }
}
