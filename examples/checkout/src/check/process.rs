//! A child process that is started again when it was killed.

use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use hapax::BoxError;
use tokio::net::TcpSocket;
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};

use crate::client::Server;

/// A running process. Dropping it kills it.
pub(super) struct Process {
    pub(super) server: Server,
    kills: mpsc::Sender<oneshot::Sender<()>>,
    /// Why it is not started again.
    end: Arc<Mutex<Option<String>>>,
    /// Bound, and never listened on: so that no client is given the port for itself while the process is down.
    _port: TcpSocket,
}

struct Plan {
    args: Vec<String>,
    log: PathBuf,
}

impl Process {
    /// Starts this program with other arguments, on a free port.
    pub(super) fn start(args: &[&str], log: PathBuf) -> Result<Self, BoxError> {
        let port = TcpSocket::new_v4()?;
        port.set_reuseaddr(true)?; // the process has to bind it, too
        port.bind(([127, 0, 0, 1], 0).into())?;
        let address = port.local_addr()?.to_string();
        let args = args.iter().copied().chain(["--listen", &address]).map(str::to_owned).collect();
        let (kills, ordered) = mpsc::channel(1);
        let end = Arc::default();
        tokio::spawn(keep_running(Plan { args, log }, ordered, Arc::clone(&end)));
        Ok(Self { server: format!("http://{address}").parse()?, kills, end, _port: port })
    }

    /// Kills it with SIGKILL, and returns when it is started again.
    pub(super) async fn kill(&self) {
        let (done, is_done) = oneshot::channel();
        if self.kills.send(done).await.is_ok() {
            let _ = is_done.await; // fails if it has ended for good, which `check` tells
        }
    }

    /// Whether it has ended without having been killed.
    pub(super) fn check(&self) -> Result<(), BoxError> {
        match &*self.end.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(end) => Err(end.clone().into()),
            None => Ok(()),
        }
    }
}

async fn keep_running(
    plan: Plan,
    mut kills: mpsc::Receiver<oneshot::Sender<()>>,
    end: Arc<Mutex<Option<String>>>,
) {
    let mut ordered: Option<oneshot::Sender<()>> = None;
    let why = loop {
        let mut child = match plan.start() {
            Ok(child) => child,
            Err(error) => break format!("a process cannot be started: {error}"),
        };
        if let Some(done) = ordered.take() {
            let _ = done.send(()); // nobody need wait for it
        }
        tokio::select! {
            order = kills.recv() => {
                let Some(done) = order else { return }; // the child is killed when it is dropped
                if let Err(error) = child.kill().await {
                    break format!("a process cannot be killed: {error}");
                }
                ordered = Some(done);
            }
            ended = child.wait() => match ended {
                Ok(status) => break format!("a process ended by itself ({status}):\n{}", plan.last_lines()),
                Err(error) => break format!("a process cannot be watched: {error}"),
            },
        }
    };
    *end.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
}

impl Plan {
    fn start(&self) -> Result<Child, std::io::Error> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.kill_on_drop(true).spawn()
    }

    fn last_lines(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}
