//! What is wrong with a configuration: the code, the place in the file, the cause and the cure.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use miette::{Diagnostic, LabeledSpan, NamedSource, Severity, SourceCode, SourceSpan};

use super::secret;
use hapax::Code;

/// A range of bytes in the configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// Offset of the first byte.
    pub start: usize,
    /// Offset behind the last byte.
    pub end: usize,
}

impl Place {
    /// Whether it is the place of what the file does not mention.
    pub(crate) fn is_nowhere(self) -> bool {
        self == Self::default()
    }

    /// The part of this place that `range` selects, counted from its start.
    #[must_use]
    pub(crate) fn within(self, range: &Range<usize>) -> Self {
        Self { start: self.start + range.start, end: self.start + range.end }
    }
}

impl From<Range<usize>> for Place {
    fn from(range: Range<usize>) -> Self {
        Self { start: range.start, end: range.end }
    }
}

impl From<Place> for SourceSpan {
    fn from(place: Place) -> Self {
        Self::from(place.start..place.end)
    }
}

/// A value and where the file says it, for errors that only show once a server has been asked.
///
/// Two of them are equal if their values are: the place is no part of the meaning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Placed<T> {
    /// The value.
    pub value: T,
    /// Where it stands; the empty place at offset zero for a default that the file does not mention.
    pub place: Place,
}

impl<T> Placed<T> {
    /// A value at a place.
    pub(crate) fn new(value: T, place: Place) -> Self {
        Self { value, place }
    }

    /// Whether the file says it; else it is a default.
    pub(crate) fn is_written(&self) -> bool {
        !self.place.is_nowhere()
    }
}

impl<T> From<T> for Placed<T> {
    fn from(value: T) -> Self {
        Self::new(value, Place::default())
    }
}

impl<T> Deref for Placed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: PartialEq> PartialEq for Placed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl<T: Eq> Eq for Placed<T> {}

/// One thing that is wrong (or, as a note, worth knowing) about a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The page that explains it.
    pub code: Code,
    /// What is wrong, in one line. Quotes the file as it is written, never a value that was filled in.
    pub message: String,
    /// Where; none if the file as a whole is meant.
    pub place: Option<Place>,
    /// What is said at the place itself.
    pub label: String,
    /// What to do.
    pub help: String,
    /// Whether this stops the program or is only told.
    pub severity: Severity,
}

impl Problem {
    /// An error at a place, labelled "here" until [`Problem::label`] says more.
    pub(crate) fn new(code: Code, place: Place, message: impl Into<String>) -> Self {
        Self { place: Some(place), ..Self::of_file(code, message) }
    }

    /// An error of the whole file.
    pub(crate) fn of_file(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            place: None,
            label: "here".to_owned(),
            help: String::new(),
            severity: Severity::Error,
        }
    }

    /// What is said at the place itself.
    #[must_use]
    pub(crate) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// The cure.
    #[must_use]
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// Turns the error into a note: the program says it and goes on.
    #[must_use]
    pub(crate) fn into_note(mut self) -> Self {
        self.severity = Severity::Advice;
        self
    }
}

/// The configuration file as error reports show it: its name, and its text with every password blanked.
#[derive(Clone)]
pub(crate) struct Origin(Arc<NamedSource<String>>);

impl Origin {
    /// The file `name` with the text `text`.
    ///
    /// Passwords that stand in the text are blanked here, once, byte for byte, so that no report can show
    /// one as the neighbour of the line it is about.
    pub(crate) fn new(name: &str, text: &str) -> Self {
        Self(Arc::new(NamedSource::new(name, secret::blank_out(text)).with_language("TOML")))
    }

    /// The file's name as it was given.
    pub(crate) fn name(&self) -> &str {
        self.0.name()
    }

    /// The line and the column of a place, both counted from one, the column in characters.
    pub(crate) fn line_and_column(&self, place: Place) -> (usize, usize) {
        let text = self.0.inner();
        let before = text.get(..place.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// A report of these problems in the order of the file; `None` if there are none.
    pub(crate) fn report(&self, mut problems: Vec<Problem>) -> Option<Report> {
        problems.sort_by_key(|problem| problem.place);
        let located = |problem| Located { problem, origin: self.clone() };
        let mut problems = problems.into_iter().map(located);
        let first = Box::new(problems.next()?);
        Some(Report { first, others: problems.collect() })
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Origin").field(&self.name()).finish()
    }
}

/// A problem together with the file it is in; prints its message alone, since [`miette`] draws the place.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    problem: Problem,
    origin: Origin,
}

impl Located {
    /// The problem.
    pub(crate) fn problem(&self) -> &Problem {
        &self.problem
    }

    /// The line and the column, both counted from one; `None` if the file as a whole is meant.
    pub(crate) fn line_and_column(&self) -> Option<(usize, usize)> {
        self.problem.place.map(|place| self.origin.line_and_column(place))
    }

    /// One line for a log: `hapax.toml:12:5: HX0002: …`.
    pub(crate) fn one_line(&self) -> String {
        let Problem { code, message, .. } = &self.problem;
        let name = self.origin.name();
        match self.line_and_column() {
            Some((line, column)) => format!("{name}:{line}:{column}: {code}: {message}"),
            None => format!("{name}: {code}: {message}"),
        }
    }
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.message)
    }
}

impl std::error::Error for Located {}

impl Diagnostic for Located {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.problem.code))
    }

    fn severity(&self) -> Option<Severity> {
        Some(self.problem.severity)
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = &self.problem.help;
        (!help.is_empty()).then(|| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&*self.origin.0)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let label = LabeledSpan::new_with_span(Some(self.problem.label.clone()), self.problem.place?);
        Some(Box::new(std::iter::once(label)))
    }
}

/// Everything that is wrong with a configuration, for [`miette`] to print: the first problem of the file
/// with the others as its relatives. Holds at least one problem.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    first: Box<Located>,
    others: Vec<Located>,
}

impl Report {
    /// A report of one problem.
    pub(super) fn single(origin: &Origin, problem: Problem) -> Self {
        let first = Located { problem, origin: origin.clone() };
        Self { first: Box::new(first), others: Vec::new() }
    }

    /// Every problem, in the order of the file.
    pub(crate) fn problems(&self) -> impl Iterator<Item = &Located> {
        std::iter::once(&*self.first).chain(&self.others)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)
    }
}

impl std::error::Error for Report {}

impl Diagnostic for Report {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.first.code()
    }

    fn severity(&self) -> Option<Severity> {
        self.first.severity()
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.first.help()
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.first.source_code()
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        self.first.labels()
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.others.iter().map(|located| located as &dyn Diagnostic)))
    }
}
