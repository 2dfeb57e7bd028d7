//! A server's process over its life: started, probed, ended, started again, in one folder.

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::child::{OwnedChild, Signal};

/// A server that may or may not be running. Dropping it ends it; the folder is its owner's to remove.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: &'static str,
    folder: PathBuf,
    ending: Signal,
    process: Option<OwnedChild>,
}

impl Daemon {
    /// A server that is not running yet. `name` is for messages; `ending` is what `Drop` sends.
    pub(crate) fn new(name: &'static str, folder: &Path, ending: Signal) -> Self {
        Self { name, folder: folder.to_owned(), ending, process: None }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts the process, its output going to the folder, and returns at once: ask [`Daemon::is_ready`].
    pub(crate) fn start(&mut self, command: &mut Command) -> io::Result<()> {
        if self.is_running()? {
            return Err(io::Error::new(ErrorKind::AlreadyExists, format!("this {} is running", self.name)));
        }
        let output = fs::OpenOptions::new().create(true).append(true).open(self.output())?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        self.process = Some(OwnedChild::spawn(command, self.ending, Some(&self.folder))?);
        Ok(())
    }

    /// Whether `probe` finds it answering. Fails, with the end of its output, if it has ended instead.
    pub(crate) fn is_ready(&mut self, probe: impl FnOnce() -> bool) -> io::Result<bool> {
        if self.is_running()? {
            return Ok(probe());
        }
        let output = last_lines(&self.output());
        Err(io::Error::other(format!("{} ended instead of starting:\n{output}", self.name)))
    }

    /// Whether there is a process.
    pub(crate) fn is_running(&mut self) -> io::Result<bool> {
        let running = match &mut self.process {
            Some(process) => process.try_wait()?.is_none(),
            None => false,
        };
        if !running {
            self.process = None;
        }
        Ok(running)
    }

    /// Sends a signal and returns at once: ask [`Daemon::is_running`]. Does nothing to a server that does not
    /// run.
    pub(crate) fn signal(&mut self, signal: Signal) -> io::Result<()> {
        self.process.as_mut().map_or(Ok(()), |process| process.signal(signal))
    }

    fn output(&self) -> PathBuf {
        self.folder.join("output.log")
    }
}

/// The end of a log: enough to see why, short enough to read.
fn last_lines(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_else(|error| error.to_string().into_bytes());
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
