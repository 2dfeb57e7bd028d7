//! A service as a child process, which is killed and started again.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use hapax::BoxError;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use crate::client::{get, send};
use crate::service::Health;

/// How long a service that is about to be killed may take to say what it has seen.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How a service is started.
pub(crate) struct Plan {
    /// Its subcommand and arguments, without the address.
    pub(crate) args: Vec<String>,
    /// What it logs.
    pub(crate) log: PathBuf,
    /// How often it is to die by itself, at its worst moment, and what that moment is drawn from.
    pub(crate) deaths: (u32, Rng),
}

/// A running service. Dropping it kills it.
pub(crate) struct Process {
    pub(crate) address: SocketAddr,
    kills: mpsc::Sender<oneshot::Sender<()>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The last words of every process that has been.
    seen: Mutex<Vec<Health>>,
    deaths: AtomicU32,
    /// Why it is not started again.
    end: Mutex<Option<String>>,
}

impl Process {
    /// Starts it on a free port.
    pub(crate) fn start(plan: Plan) -> Result<Self, BoxError> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let (kills, ordered) = mpsc::channel(1);
        let shared = Arc::new(Shared::default());
        tokio::spawn(keep_running(plan, address, ordered, Arc::clone(&shared)));
        Ok(Self { address, kills, shared })
    }

    /// Kills it with SIGKILL; it is started again at once.
    pub(crate) async fn kill(&self) {
        let (done, is_done) = oneshot::channel();
        if self.kills.send(done).await.is_ok() {
            let _ = is_done.await; // fails if it has ended for good, which `check` tells
        }
    }

    /// What it says of itself, if it answers.
    pub(crate) async fn health(&self) -> Option<Health> {
        let health = ask_health(self.address).await?;
        self.shared.note(health);
        Some(health)
    }

    /// Duplicates that all its processes have seen. What a process saw in its very last moment, after it was asked
    /// and before it was killed, is not among them.
    pub(crate) fn duplicates(&self) -> u64 {
        self.shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|seen| seen.duplicates)
            .sum()
    }

    /// How often it was killed.
    pub(crate) fn deaths(&self) -> u32 {
        self.shared.deaths.load(Ordering::SeqCst)
    }

    /// Whether it has ended without having been killed.
    pub(crate) fn check(&self) -> Result<(), BoxError> {
        match &*self.shared.end.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(end) => Err(end.clone().into()),
            None => Ok(()),
        }
    }
}

impl Shared {
    fn note(&self, health: Health) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|earlier| earlier.process != health.process);
        seen.push(health);
    }
}

async fn ask_health(address: SocketAddr) -> Option<Health> {
    let answer = send(address, get("/health").ok()?).await.ok()?;
    serde_json::from_slice(&answer.body).ok()
}

async fn keep_running(
    mut plan: Plan,
    address: SocketAddr,
    mut kills: mpsc::Receiver<oneshot::Sender<()>>,
    shared: Arc<Shared>,
) {
    let mut ordered: Option<oneshot::Sender<()>> = None;
    let end = loop {
        let mut child = match plan.start(address) {
            Ok(child) => child,
            Err(error) => break format!("a service cannot be started: {error}"),
        };
        if let Some(done) = ordered.take() {
            let _ = done.send(()); // nobody need wait for it
        }
        tokio::select! {
            order = kills.recv() => {
                let Some(done) = order else { return }; // the child is killed when it is dropped
                if let Ok(Some(words)) = tokio::time::timeout(LAST_WORDS, ask_health(address)).await {
                    shared.note(words);
                }
                if let Err(error) = child.kill().await {
                    break format!("a service cannot be killed: {error}");
                }
                ordered = Some(done);
            }
            ended = child.wait() => match ended {
                Ok(status) if plan.deaths.0 > 0 && was_killed(status) => plan.deaths.0 -= 1,
                Ok(status) => break format!("a service ended by itself ({status}):\n{}", plan.last_lines()),
                Err(error) => break format!("a service cannot be watched: {error}"),
            },
        }
        shared.deaths.fetch_add(1, Ordering::SeqCst);
    };
    *shared.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
}

fn was_killed(status: ExitStatus) -> bool {
    use std::os::unix::process::ExitStatusExt as _;
    status.signal() == Some(9)
}

impl Plan {
    fn start(&mut self, address: SocketAddr) -> Result<Child, std::io::Error> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.args).arg("--listen").arg(address.to_string());
        let (deaths, random) = &mut self.deaths;
        if *deaths > 0 {
            command.arg("--die-at").arg(random.u32(2..8).to_string());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).kill_on_drop(true).spawn()
    }

    fn last_lines(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}
