//! A program that runs as a separate process and is to die at a chosen point.
//!
//! What survives a crash can only be seen from outside: a panic unwinds, an abort of a task leaves the pool
//! alive, but SIGKILL leaves exactly what was committed. A [`Subject`] describes the program;
//! [`Subject::start`] runs it, as often as the test likes; the [`Running`] process is watched, ended, and
//! shown whole when an assertion fails.
//!
//! The program learns where to die from two environment variables, which the crash points read:
//! [`CRASH_AT`] (`name:n`, the n-th passage) and [`CRASH_SEED`].

use std::{
    ffi::{OsStr, OsString},
    fmt, io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use tempfile::NamedTempFile;

use crate::local::child::{OwnedChild, POLL, Signal};

/// Where the process is to end itself with SIGKILL: the crash point's name, a colon, and on which passage
/// (from 1).
pub const CRASH_AT: &str = "HAPAX_CRASH_AT";

/// A number from which a process that crashes at random points draws them, so that a run can be repeated.
pub const CRASH_SEED: &str = "HAPAX_CRASH_SEED";

/// Linux and every other Unix agree on this number.
const SIGKILL: i32 = 9;

/// A program with its arguments and environment: what to start, again and again.
///
/// It inherits this process's environment, except for [`CRASH_AT`] and [`CRASH_SEED`], so that a run without
/// a crash point never crashes by accident.
///
/// ```no_run
/// # async fn example() -> std::io::Result<()> {
/// use std::time::Duration;
/// use hapax_testkit::process::Subject;
///
/// let service = Subject::new("target/debug/orders").env("DATABASE_URL", "sqlite:orders.db");
/// let mut doomed = service.clone().crash_at("after-commit", 3).start()?;
/// doomed.wait_killed(Duration::from_secs(10)).await;
/// let mut second = service.start()?;
/// assert!(second.wait_exit(Duration::from_secs(10)).await.success());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a subject does nothing until it is started"]
pub struct Subject {
    program: PathBuf,
    args: Vec<OsString>,
    /// In the order of the calls; no value means that the variable is taken away.
    environment: Vec<(OsString, Option<OsString>)>,
    folder: Option<PathBuf>,
}

impl Subject {
    /// Describes the program at `program`; in an integration test that is `env!("CARGO_BIN_EXE_name")`.
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), args: Vec::new(), environment: Vec::new(), folder: None }
    }

    /// An example of the package whose tests are running. `cargo test` builds the examples along with the
    /// tests; told to build certain tests only, it needs `cargo build --example NAME` first.
    ///
    /// Fails if the running program has no path.
    pub fn example(name: &str) -> io::Result<Self> {
        let mut path = std::env::current_exe()?;
        path.pop(); // the test's own name
        path.pop(); // deps
        Ok(Self::new(path.join("examples").join(name)))
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Sets an environment variable; the last value of a name counts.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Takes away an environment variable that it would inherit.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), None));
        self
    }

    /// The folder it starts in; otherwise this process's own.
    pub fn current_dir(mut self, folder: impl AsRef<Path>) -> Self {
        self.folder = Some(folder.as_ref().to_owned());
        self
    }

    /// Has the process end itself with SIGKILL on the `nth` passage (from 1) of the crash point `name`.
    pub fn crash_at(self, name: &str, nth: u32) -> Self {
        self.env(CRASH_AT, format!("{name}:{nth}"))
    }

    /// Sets the number from which random crash points are drawn.
    pub fn crash_seed(self, seed: u64) -> Self {
        self.env(CRASH_SEED, seed.to_string())
    }

    /// Starts the process, with nothing on its standard input. Fails if the program cannot be run.
    pub fn start(&self) -> io::Result<Running> {
        let (stdout, stderr) = (NamedTempFile::new()?, NamedTempFile::new()?);
        let mut command = Command::new(&self.program);
        command.args(&self.args).env_remove(CRASH_AT).env_remove(CRASH_SEED);
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        // Files, not pipes: a process that nobody reads from must not block, and what it said before it was
        // killed must be there at once.
        command.stdin(Stdio::null()).stdout(stdout.reopen()?).stderr(stderr.reopen()?);
        let process = OwnedChild::spawn(&mut command, Signal::Kill, None).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot start {}: {error}", self.program.display()))
        })?;
        Ok(Running { subject: self.clone(), process, stdout, stderr })
    }
}

impl fmt::Display for Subject {
    /// The command line with its crash point, to tell runs apart in a failure. Other variables may hold
    /// secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            if let Some(value) = value.as_ref().filter(|_| name == CRASH_AT || name == CRASH_SEED) {
                write!(f, "{}={} ", name.display(), value.display())?;
            }
        }
        write!(f, "{}", self.program.display())?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", arg.display()))
    }
}

/// A started [`Subject`]. Dropping it kills it with SIGKILL.
#[derive(Debug)]
pub struct Running {
    subject: Subject,
    process: OwnedChild,
    stdout: NamedTempFile,
    stderr: NamedTempFile,
}

impl Running {
    /// The process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the process has ended by SIGKILL.
    ///
    /// # Panics
    /// If it ends in another way (a crash point that was never passed looks like this), or still runs after
    /// `timeout`; with the command, its status and its output.
    pub async fn wait_killed(&mut self, timeout: Duration) {
        let status = self.wait_exit(timeout).await;
        assert!(status.signal() == Some(SIGKILL), "should have been killed, but: {status}\n{self}");
    }

    /// Waits until the process has ended, in whatever way.
    ///
    /// # Panics
    /// If it still runs after `timeout`, with the command and its output.
    pub async fn wait_exit(&mut self, timeout: Duration) -> ExitStatus {
        let deadline = Instant::now() + timeout;
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return status,
                Ok(None) => {}
                Err(error) => panic!("cannot wait for the process: {error}\n{self}"),
            }
            assert!(Instant::now() < deadline, "still running after {timeout:?}\n{self}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until standard output or standard error contains `text`: the sign that the process got
    /// somewhere.
    ///
    /// # Panics
    /// If it ends without having said so, or has not said so after `timeout`; with the command and its
    /// output.
    pub async fn wait_output(&mut self, text: &str, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        loop {
            // Asked first: whatever was written before the end is then seen below.
            let ended = !self.is_running();
            if self.stdout().contains(text) || self.stderr().contains(text) {
                return;
            }
            assert!(!ended, "ended without saying {text:?}\n{self}");
            assert!(Instant::now() < deadline, "has not said {text:?} after {timeout:?}\n{self}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Sends SIGKILL to it and its children, and does not wait; `Ok` if it had ended already.
    pub fn kill(&mut self) -> io::Result<()> {
        self.process.signal(Signal::Kill)
    }

    /// Sends SIGTERM to it and its children, and does not wait; `Ok` if it had ended already.
    pub fn terminate(&mut self) -> io::Result<()> {
        self.process.signal(Signal::Term)
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        read(&self.stdout)
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        read(&self.stderr)
    }
}

impl fmt::Display for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, .. } = self;
        write!(
            f,
            "process {}: {subject}\n--- stdout\n{}\n--- stderr\n{}",
            self.id(),
            self.stdout(),
            self.stderr()
        )
    }
}

/// Output is for people here: what is no UTF-8, or cannot be read, is shown as such.
fn read(file: &NamedTempFile) -> String {
    match std::fs::read(file.path()) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => format!("(cannot be read: {error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn shell(script: &str) -> Subject {
        Subject::new("sh").arg("-c").arg(script)
    }

    fn exists(pid: &str) -> bool {
        Path::new("/proc").join(pid).exists()
    }

    /// What the crash-point macro does, in shell: count passages, and kill oneself on the n-th.
    const CRASHING: &str = r#"
        passage=0
        for message in 1 2 3 4; do
            passage=$((passage + 1))
            echo "message $message"
            [ "$HAPAX_CRASH_AT" != "after-commit:$passage" ] || kill -s KILL $$
        done
        echo "seed ${HAPAX_CRASH_SEED:-none}"
    "#;

    #[tokio::test]
    async fn a_subject_dies_at_its_crash_point_and_lives_without_one() -> io::Result<()> {
        let subject = shell(CRASHING);
        let mut doomed = subject.clone().crash_at("after-commit", 2).start()?;
        doomed.wait_killed(SOON).await;
        assert_eq!(doomed.stdout(), "message 1\nmessage 2\n");

        let mut second = subject.crash_seed(7).start()?;
        assert!(second.wait_exit(SOON).await.success());
        assert!(second.stdout().ends_with("message 4\nseed 7\n"), "{second}");
        Ok(())
    }

    #[tokio::test]
    #[should_panic(expected = "said on stderr")]
    async fn an_exit_instead_of_a_kill_fails_and_shows_the_output() {
        let mut running = shell("echo said on stderr >&2; exit 3").start().unwrap();
        running.wait_killed(SOON).await;
    }

    #[tokio::test]
    #[should_panic(expected = "still running after 50ms")]
    async fn a_process_that_hangs_fails_the_test() {
        let mut running = shell("sleep 60").start().unwrap();
        running.wait_exit(Duration::from_millis(50)).await;
    }

    #[tokio::test]
    async fn terminate_asks_and_kill_does_not() -> io::Result<()> {
        let stubborn = shell("trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done");
        let mut running = stubborn.start()?;
        running.wait_output("ready", SOON).await;
        running.terminate()?;
        running.wait_output("asked", SOON).await;
        assert!(running.is_running());
        running.kill()?;
        running.wait_killed(SOON).await;
        running.kill()?;
        Ok(())
    }

    #[tokio::test]
    async fn dropping_a_running_process_kills_it_and_its_children() -> io::Result<()> {
        let mut running = shell("sleep 60 & echo child $!; wait").start()?;
        running.wait_output("child", SOON).await;
        let (parent, child) =
            (running.id().to_string(), running.stdout().replace("child ", "").trim().to_owned());
        drop(running);
        assert!(!exists(&parent), "the process itself is reaped");
        // Its child is an orphan, which whoever adopts it has to reap first.
        crate::servers::eventually("the child is gone", SOON, async || !alive(&child)).await;
        Ok(())
    }

    /// Neither gone nor a zombie.
    fn alive(pid: &str) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z ")
    }

    #[tokio::test]
    async fn the_guard_ends_the_child_when_its_owner_is_killed() -> io::Result<()> {
        // The owner must be a process that can be killed: this very test binary, running the test below.
        let folder = tempfile::tempdir()?;
        let mut owner = Subject::new(std::env::current_exe()?)
            .arg("--exact")
            .arg(OWNER_TEST)
            .arg("--nocapture")
            .arg("--test-threads=1")
            .env(OWNER_FOLDER, folder.path())
            .start()?;
        owner.wait_output("child=", SOON).await;
        let stdout = owner.stdout();
        let child = stdout.split_once("child=").and_then(|(_, rest)| rest.split_whitespace().next()).unwrap();
        assert!(alive(child));
        owner.kill()?;
        owner.wait_killed(SOON).await;
        crate::servers::eventually("the guard has cleaned up", SOON, async || {
            !alive(child) && !folder.path().exists()
        })
        .await;
        Ok(())
    }

    const OWNER_FOLDER: &str = "HAPAX_TESTKIT_OWNER_FOLDER";
    const OWNER_TEST: &str = "process::tests::owner_to_be_killed";

    /// Does nothing unless the test above runs it.
    #[test]
    fn owner_to_be_killed() -> io::Result<()> {
        let Some(folder) = std::env::var_os(OWNER_FOLDER) else { return Ok(()) };
        let child = OwnedChild::spawn(Command::new("sleep").arg("60"), Signal::Term, Some(folder.as_ref()))?;
        println!("child={} ", child.id());
        std::thread::sleep(SOON);
        Ok(())
    }
}
