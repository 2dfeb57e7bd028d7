//! The worst moment to die, for `bank break`.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// Ends the process with SIGKILL on a certain passage, so that no destructor, buffer or handshake can help.
#[derive(Debug)]
pub(super) struct Peril {
    left: Option<AtomicU32>,
}

impl Peril {
    /// On the passage of this number, from 1; never without one.
    pub(super) fn at(passage: Option<u32>) -> Self {
        Self { left: passage.map(AtomicU32::new) }
    }

    /// The moment.
    pub(super) fn pass(&self) {
        let Some(left) = &self.left else { return };
        if left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return;
        }
        // Through `kill(1)`: the standard library has no call for it.
        let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
        loop {
            std::thread::park();
        }
    }
}
