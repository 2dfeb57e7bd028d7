//! What this test's thread logs.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber};

/// Warnings, as long as it lives. A test with a runtime of one thread logs on that thread.
pub(crate) struct Log {
    pub(crate) lines: Arc<Mutex<String>>,
    _listening: DefaultGuard,
}

impl Log {
    pub(crate) fn listen() -> Self {
        let lines = Arc::default();
        let listening = tracing::subscriber::set_default(Warnings(Arc::clone(&lines)));
        Self { lines, _listening: listening }
    }

    pub(crate) fn contains(&self, words: &str) -> bool {
        self.lines.lock().unwrap().contains(words)
    }
}

struct Warnings(Arc<Mutex<String>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push_str(&line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1) // spans are not enabled
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}"); // writing to a string cannot fail
    }
}
