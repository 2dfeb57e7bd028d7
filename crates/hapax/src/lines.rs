//! A file or standard input as a source: one message a line.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use hapax_core::{
    Capabilities, Code, Delivery, Envelope, Error, ErrorKind, Fetched, Settlement, Settler, Source,
};
use tokio::fs::File;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};

type Reader = BufReader<Box<dyn AsyncRead + Send + Sync + Unpin>>;

/// JSON Lines, or any other text of one message a line: a line is the body, byte for byte, without
/// its line end. Empty lines are skipped.
///
/// Nothing can be acked: after a crash the file is read again from the start, and what took effect is
/// a duplicate.
pub struct Lines {
    path: Option<PathBuf>,
    name: Arc<str>,
    reader: Option<Reader>,
    line: u64,
    /// What a cancelled `next` had read of a line.
    partial: Vec<u8>,
}

impl Lines {
    /// Reads a file.
    pub fn file(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        let shown = path
            .file_name()
            .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        Self {
            name: format!("file:{shown}").into(),
            path: Some(path),
            reader: None,
            line: 0,
            partial: Vec::new(),
        }
    }

    /// Reads standard input.
    pub fn stdin() -> Self {
        Self { name: "stdin".into(), path: None, reader: None, line: 0, partial: Vec::new() }
    }

    async fn open(&self) -> Result<Reader, Error> {
        let Some(path) = &self.path else { return Ok(BufReader::new(Box::new(tokio::io::stdin()))) };
        let refused = |error: std::io::Error| {
            let context = format!("cannot read {}", path.display());
            Error::new(ErrorKind::Setup, Code::SourceUnreadable, context).because(error)
        };
        let file = File::open(path).await.map_err(refused)?;
        if file.metadata().await.map_err(refused)?.is_dir() {
            return Err(refused(std::io::ErrorKind::IsADirectory.into()));
        }
        Ok(BufReader::with_capacity(256 * 1024, Box::new(file)))
    }

    /// The next line without its end; `None` at the end of the file. Cancel safe: what was read of a
    /// line is kept.
    async fn next_line(&mut self) -> Result<Option<Bytes>, Error> {
        let Some(reader) = &mut self.reader else { return Ok(None) };
        let read = reader.read_until(b'\n', &mut self.partial).await.map_err(|error| {
            Error::new(ErrorKind::Setup, Code::SourceUnreadable, format!("cannot read on in {}", self.name))
                .because(error)
        })?;
        if read == 0 && self.partial.is_empty() {
            return Ok(None);
        }
        self.line += 1;
        let mut line = std::mem::take(&mut self.partial);
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        Ok(Some(line.into()))
    }

    fn delivery(&self, body: Bytes) -> Delivery<()> {
        let mut envelope = Envelope::new(body);
        envelope.origin.source = self.name.to_string();
        envelope.origin.position = Some(self.line.to_string());
        Delivery::new(envelope, ())
    }
}

impl Source for Lines {
    type Receipt = ();
    type Settler = LinesSettler;

    fn capabilities(&self) -> Capabilities {
        Capabilities::none().ordered().ending()
    }

    fn settler(&self) -> LinesSettler {
        LinesSettler
    }

    fn name(&self) -> String {
        self.name.to_string()
    }

    async fn prepare(&mut self, _: usize) -> Result<(), Error> {
        self.reader = Some(self.open().await?);
        Ok(())
    }

    async fn next(&mut self, max: usize) -> Result<Fetched<()>, Error> {
        if self.reader.is_none() {
            self.reader = Some(self.open().await?);
        }
        let mut deliveries = Vec::new();
        while deliveries.len() < max {
            // Lines that are buffered already cost nothing; one that is not is waited for only if it is the first.
            let buffered = self.reader.as_ref().is_some_and(|reader| reader.buffer().contains(&b'\n'));
            if !deliveries.is_empty() && !buffered {
                break;
            }
            match self.next_line().await? {
                Some(line) if line.is_empty() => {}
                Some(line) => deliveries.push(self.delivery(line)),
                None if deliveries.is_empty() => return Ok(Fetched::Ended),
                None => break,
            }
        }
        Ok(Fetched::Batch(deliveries))
    }
}

/// Settles nothing: a file forgets no line.
#[derive(Clone, Copy, Debug)]
pub struct LinesSettler;

impl Settler<()> for LinesSettler {
    async fn settle(&self, settlements: Vec<Settlement<()>>) -> Vec<Result<(), Error>> {
        settlements.iter().map(|_| Ok(())).collect()
    }
}
