//! The program as a user runs it: in a folder with a configuration, looked at from outside.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hapax_testkit::process::{Running, Subject};
use serde_json::Value;
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

/// More than anything here takes on a busy machine.
pub(crate) const SOON: Duration = Duration::from_mins(1);

/// A folder of its own, which goes with the test.
pub(crate) struct Folder(TempDir);

impl Folder {
    /// A folder with these files.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self(tempfile::tempdir().expect("a temporary folder"));
        for (name, text) in files {
            folder.write(name, text);
        }
        folder
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file in the temporary folder");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `hapax` with these arguments, which are separated by spaces. It runs elsewhere, so that what is
    /// relative to the configuration cannot be found relative to the process.
    pub(crate) fn hapax(&self, args: &str) -> Subject {
        let subject = Subject::new(env!("CARGO_BIN_EXE_hapax"))
            .current_dir("/")
            .env_remove("HAPAX_STORE")
            .env_remove("HAPAX_LOG");
        args.split_whitespace().fold(subject, |subject, arg| match arg.strip_prefix('@') {
            Some(file) => subject.arg(self.path(file)),
            None => subject.arg(arg),
        })
    }

    /// Runs `hapax` to its end. `@name` among the arguments is a file of the folder.
    pub(crate) async fn run(&self, args: &str) -> Ended {
        let running = self.hapax(args).start().expect("the program is built with its tests");
        Ended::of(running).await
    }

    /// A second connection to an SQLite database of the folder, which must be there.
    pub(crate) async fn database(&self, name: &str) -> SqliteConnection {
        open(&self.path(name)).await.expect("the database can be opened")
    }
}

/// A connection to an SQLite database that is not created if it is missing.
pub(crate) async fn open(path: &Path) -> Result<SqliteConnection, sqlx::Error> {
    SqliteConnection::connect(&format!("sqlite:{}", path.display())).await
}

/// A run that came to its end.
pub(crate) struct Ended {
    running: Running,
    pub(crate) code: Option<i32>,
}

impl Ended {
    pub(crate) async fn of(mut running: Running) -> Self {
        let code = running.wait_exit(SOON).await.code();
        Self { running, code }
    }

    /// Standard output of a run that must have ended with this exit code.
    #[track_caller]
    pub(crate) fn exit(&self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self}");
        self.running.stdout()
    }

    /// The same, one JSON document a line.
    #[track_caller]
    pub(crate) fn json(&self, code: i32) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}\n{self}"));
        self.exit(code).lines().map(parse).collect()
    }

    pub(crate) fn stderr(&self) -> String {
        self.running.stderr()
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit code {:?} of {}", self.code, self.running)
    }
}
