//! A child process that cannot outlive its owner: not after a panic, and not after the owner was itself
//! killed.
//!
//! `Drop` ends the child, but a test that is killed (by a runner's timeout, by Ctrl-C) never drops anything.
//! So beside each child stands a *guard*: a shell that reads from a pipe whose other end only we hold. When
//! we vanish, the kernel closes the pipe, and the guard ends the child and removes its folder.

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How often a wait looks again.
pub(crate) const POLL: Duration = Duration::from_millis(5);

/// How long `Drop` waits for an orderly end before it sends SIGKILL.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The guard's whole life: a line means that the child has been reaped and there is nothing to do; the end of
/// the pipe means that its owner is gone. `$0` is the process group, `$1` the signal, `$2` the folder to
/// remove or nothing. The wait is bounded because a dead child stays visible where nobody reaps orphans.
const GUARD: &str = r#"
read -r _ && exit
kill -s "$1" -- "-$0"
n=0
while [ "$n" -lt 50 ] && kill -s 0 -- "-$0"; do n=$((n + 1)); sleep 0.1; done
kill -s KILL -- "-$0"
[ -z "$2" ] || rm -rf -- "$2"
"#;

/// The signals that tests send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// Ask for an orderly end.
    Term,
    /// What Ctrl-C sends; PostgreSQL takes it as "fast shutdown": nobody is waited for, everything is
    /// written.
    Interrupt,
    /// End at once; PostgreSQL takes it as "immediate shutdown", which leaves no shared memory behind.
    Quit,
    /// End without being asked.
    Kill,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Term => "TERM",
            Self::Interrupt => "INT",
            Self::Quit => "QUIT",
            Self::Kill => "KILL",
        }
    }
}

/// A child in a process group of its own, with its guard.
#[derive(Debug)]
pub(crate) struct OwnedChild {
    child: Child,
    guard: Child,
    ending: Signal,
    status: Option<ExitStatus>,
}

impl OwnedChild {
    /// Starts `command` in a new process group. `ending` is the signal that `Drop` and the guard send first;
    /// `folder` is what the guard removes if the owner is killed.
    pub(crate) fn spawn(command: &mut Command, ending: Signal, folder: Option<&Path>) -> io::Result<Self> {
        let mut child = command.process_group(0).spawn().map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", command.get_program().display()))
        })?;
        match guard(child.id(), ending, folder) {
            Ok(guard) => Ok(Self { child, guard, ending, status: None }),
            Err(error) => {
                child.kill().and_then(|()| child.wait())?;
                Err(error)
            }
        }
    }

    /// The child's process id, which is also its group's.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the whole group. Does nothing once the child has been reaped, since its id may be
    /// another's.
    pub(crate) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.try_wait()?.is_some() {
            return Ok(());
        }
        let status = Command::new("sh")
            .args(["-c", r#"kill -s "$1" -- "-$0""#, &self.id().to_string(), signal.name()])
            .stderr(Stdio::null())
            .status()?;
        // It may have ended in between: then there is nobody left to signal, which is no failure.
        if status.success() || self.try_wait()?.is_some() {
            return Ok(());
        }
        Err(io::Error::other(format!("cannot send SIG{} to process {}", signal.name(), self.id())))
    }

    /// The exit status, or `None` while the child runs.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
            if self.status.is_some() {
                self.dismiss_guard();
            }
        }
        Ok(self.status)
    }

    /// Waits at most `timeout`, blocking the thread; `None` if the child still runs then.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.try_wait()? {
                None if Instant::now() < deadline => thread::sleep(POLL),
                outcome => return Ok(outcome),
            }
        }
    }

    fn dismiss_guard(&mut self) {
        if let Some(mut pipe) = self.guard.stdin.take() {
            // A guard that is gone already needs no dismissal.
            let _ = pipe.write_all(b"dismissed\n");
        }
        let _ = self.guard.wait();
    }
}

impl Drop for OwnedChild {
    fn drop(&mut self) {
        // Errors have nowhere to go from here, and the guard is the net below.
        let _ = self.signal(self.ending);
        if !matches!(self.wait(LAST_WORDS), Ok(Some(_))) {
            let _ = self.signal(Signal::Kill);
            let _ = self.wait(LAST_WORDS);
        }
    }
}

/// The guard sits in a group of its own, so that what ends the owner's group does not end the guard.
fn guard(group: u32, ending: Signal, folder: Option<&Path>) -> io::Result<Child> {
    Command::new("sh")
        .args(["-c", GUARD, &group.to_string(), ending.name()])
        .arg(folder.unwrap_or(Path::new("")))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
}
