//! A typed reader over the parsed TOML document.
//!
//! It knows the place of every key and value, the path to it, and which keys a table was asked for: what
//! nobody asked for is an unknown key. Readers return `None` after noting the problem, so that one pass
//! finds every mistake of a file; a configuration is only built from a pass that noted none.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::interpolate::{Surroundings, Unfilled, interpolate};
use super::nearest::suggestion;
use super::problem::{Place, Placed, Problem};
use hapax::Code;

/// One pass over one file.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    text: &'a str,
    base: &'a Path,
    around: &'a Surroundings<'a>,
    problems: RefCell<Vec<Problem>>,
}

impl<'a> Reading<'a> {
    /// A pass over `text`, in which relative paths start at `base`.
    pub(super) fn new(text: &'a str, base: &'a Path, around: &'a Surroundings<'a>) -> Self {
        Self { text, base, around, problems: RefCell::default() }
    }

    /// Ends the pass with everything that was noted.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }

    /// Reads the document's root table and complains about the keys that `read` did not ask for.
    pub(super) fn root<T>(&'a self, root: &'a DeTable<'a>, read: impl FnOnce(&mut Table<'a>) -> T) -> T {
        let place = Place { start: 0, end: self.text.len().min(1) };
        Table::new(self, String::new(), place, root).read(read)
    }

    fn note(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }
}

/// A type whose values are written as one of a few words.
pub(super) trait Choice: Copy + 'static {
    /// Every word with what it means.
    const CHOICES: &'static [(&'static str, Self)];
}

/// A string of the file, filled in.
#[derive(Clone, Debug)]
pub(super) struct Text {
    /// The string with every `${…}` filled in.
    pub(super) value: String,
    /// The string as the file says it, for messages: what was filled in may be a secret.
    pub(super) written: String,
}

/// A value of the document, with the key it stands under.
#[derive(Clone, Debug)]
pub(super) struct Value<'a> {
    reading: &'a Reading<'a>,
    path: String,
    key: Place,
    place: Place,
    node: &'a DeValue<'a>,
}

impl<'a> Value<'a> {
    /// Where the value stands. A table that a header opens has no text of its own: then it is the key.
    pub(super) fn place(&self) -> Place {
        if self.node.is_table() && !self.source().starts_with('{') { self.key } else { self.place }
    }

    /// Where the key stands.
    pub(super) fn key(&self) -> Place {
        self.key
    }

    /// Whether it is a list.
    pub(super) fn is_list(&self) -> bool {
        self.node.is_array()
    }

    /// The parsed value, for keys that take any shape.
    pub(super) fn any(&self) -> &'a DeValue<'a> {
        self.node
    }

    /// The value as it stands in the file.
    fn source(&self) -> &'a str {
        self.reading.text.get(self.place.start..self.place.end).unwrap_or_default()
    }

    /// Where `part` stands inside this string; the whole string if escapes hide it.
    pub(super) fn place_of(&self, part: &str) -> Place {
        let Some(start) = self.source().find(part) else { return self.place };
        self.place.within(&(start..start + part.len()))
    }

    /// Where a range of this string's characters stands, counted in `text`, the string without its quotes;
    /// the whole string if escapes shift them.
    pub(super) fn place_in(&self, text: &str, range: &Range<usize>) -> Place {
        let Some(start) = self.source().find(text) else { return self.place };
        self.place.within(&(start + range.start..start + range.end))
    }

    /// Notes a wrong value: HX0004 at this value, saying what and how to mend it.
    pub(super) fn wrong(&self, cause: impl AsRef<str>, cure: impl Into<String>) {
        self.wrong_as(Code::ConfigWrongValue, cause, cure);
    }

    /// Notes a wrong value under another code.
    pub(super) fn wrong_as(&self, code: Code, cause: impl AsRef<str>, cure: impl Into<String>) {
        let message = format!("`{}` {}", self.path, cause.as_ref());
        self.note(Problem::new(code, self.place(), message).help(cure));
    }

    /// Notes that the key itself is wrong, where the user chooses it: HX0004 at the key.
    pub(super) fn wrong_key(&self, cause: &str, cure: impl Into<String>) {
        let message = format!("`{}` {cause}", self.path);
        self.note(Problem::new(Code::ConfigWrongValue, self.key, message).help(cure));
    }

    /// Notes a problem that was made elsewhere.
    pub(super) fn note(&self, problem: Problem) {
        self.reading.note(problem);
    }

    fn wrong_type(&self, expected: &str, cure: &str) {
        let found = match self.node.type_str() {
            found @ ("integer" | "array") => format!("an {found}"),
            found => format!("a {found}"),
        };
        self.wrong(format!("must be {expected}, and is {found}"), cure);
    }

    /// Pairs what `read` returns with this value's place.
    pub(super) fn placed<T>(&self, read: impl FnOnce(&Self) -> Option<T>) -> Option<Placed<T>> {
        read(self).map(|value| Placed::new(value, self.place()))
    }

    /// A string exactly as it is written: SQL.
    pub(super) fn verbatim(&self) -> Option<&'a str> {
        let text = self.node.as_str();
        if text.is_none() {
            self.wrong_type("a string", "Put it in quotes.");
        }
        text
    }

    /// A string, filled in.
    pub(super) fn text(&self) -> Option<Text> {
        let written = self.verbatim()?;
        let value = self.fill_in(written)?;
        Some(Text { value, written: written.to_owned() })
    }

    /// A string that is not empty, filled in.
    pub(super) fn name(&self) -> Option<String> {
        let text = self.text()?;
        if text.value.is_empty() {
            self.wrong("is empty", "Write a name, or remove the line.");
            return None;
        }
        Some(text.value)
    }

    fn fill_in(&self, written: &str) -> Option<String> {
        let hole = match interpolate(written, self.reading.base, self.reading.around) {
            Ok(filled) => return Some(filled),
            Err(hole) => hole,
        };
        let (code, cure) = match &hole.reason {
            Unfilled::Variable(name) => {
                (Code::ConfigMissingValue, format!("Set `{name}` in the environment of the process."))
            }
            Unfilled::File { .. } => (
                Code::ConfigMissingValue,
                "Create the file, or let the process read it; relative paths start at the configuration file."
                    .to_owned(),
            ),
            Unfilled::Malformed(_) => {
                (Code::ConfigWrongValue, "To write the characters `${` themselves, write `$${`.".to_owned())
            }
        };
        let message = format!("`{}`: {}", self.path, hole.reason);
        self.note(Problem::new(code, self.place_of(&hole.written), message).help(cure));
        None
    }

    /// A path, relative to the configuration file.
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.name().map(|name| self.reading.base.join(name))
    }

    /// The file that this value names: its path and its text.
    pub(super) fn file(&self) -> Option<(PathBuf, String)> {
        let path = self.path()?;
        match self.reading.around.read_trimmed(&path) {
            Ok(text) => Some((path, text)),
            Err(error) => {
                let cause = format!("names the file `{}`, which cannot be read: {error}", path.display());
                let cure = "Create the file, or let the process read it; relative paths start at the \
                            configuration file.";
                self.wrong_as(Code::ConfigMissingValue, cause, cure);
                None
            }
        }
    }

    /// The directory that relative paths start at.
    pub(super) fn base(&self) -> &'a Path {
        self.reading.base
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self) -> Option<bool> {
        let Some(boolean) = self.node.as_bool() else {
            self.wrong_type("`true` or `false`", "Write `true` or `false`, without quotes.");
            return None;
        };
        Some(boolean)
    }

    /// A whole number between two bounds, both included. As a string only to take it from `${…}`.
    pub(super) fn integer<N>(&self, least: N, most: N) -> Option<N>
    where
        N: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        let cure = format!("Write a whole number from {least} to {most}.");
        let number = match self.node {
            DeValue::Integer(integer) => i64::from_str_radix(integer.as_str(), integer.radix()).ok(),
            DeValue::String(written) if written.contains("${") => self.fill_in(written)?.parse().ok(),
            _ => {
                self.wrong_type("a whole number", &cure);
                return None;
            }
        };
        let number = number.and_then(|number| N::try_from(number).ok());
        let number = number.filter(|number| (&least..=&most).contains(&number));
        if number.is_none() {
            self.wrong(format!("must be a whole number from {least} to {most}"), cure);
        }
        number
    }

    /// One of a few words.
    pub(super) fn choice<C: Choice>(&self) -> Option<C> {
        let text = self.text()?;
        let found = C::CHOICES.iter().find(|(word, _)| *word == text.value);
        if found.is_none() {
            let words: Vec<_> = C::CHOICES.iter().map(|(word, _)| *word).collect();
            self.wrong(format!("does not know `{}`", text.written), suggestion(&text.written, &words));
        }
        found.map(|(_, choice)| *choice)
    }

    /// A list whose items `read` reads; every item is read even if one before it is wrong.
    pub(super) fn list<T>(&self, read: impl Fn(&Value<'a>) -> Option<T>) -> Option<Vec<T>> {
        let Some(array) = self.node.as_array() else {
            self.wrong_type("a list", "Put it in brackets: `[…]`, or `[[…]]` for tables.");
            return None;
        };
        let read_item = |(index, item): (usize, &'a toml::Spanned<DeValue<'a>>)| {
            let place = Place::from(item.span());
            let path = format!("{}[{index}]", self.path);
            read(&Value { reading: self.reading, path, key: place, place, node: item.get_ref() })
        };
        let items: Vec<_> = array.iter().enumerate().map(read_item).collect();
        items.into_iter().collect()
    }

    /// A table whose keys are the user's own names.
    pub(super) fn entries<T>(
        &self,
        read: impl Fn(&str, &Value<'a>) -> Option<T>,
    ) -> Option<BTreeMap<String, T>> {
        let table = self.open()?;
        let read_entry = |key: &str| {
            let value = table.get(key)?;
            read(key, &value).map(|read| (key.to_owned(), read))
        };
        let entries: Vec<_> = table.entries.keys().map(|key| read_entry(key.get_ref())).collect();
        entries.into_iter().collect()
    }

    /// A table with known keys; complains about the keys that `read` did not ask for.
    pub(super) fn table<T>(&self, read: impl FnOnce(&mut Table<'a>) -> Option<T>) -> Option<T> {
        self.open()?.read(read)
    }

    fn open(&self) -> Option<Table<'a>> {
        let Some(entries) = self.node.as_table() else {
            self.wrong_type("a table", "Write `{ … }`, or open it with a `[header]`.");
            return None;
        };
        Some(Table::new(self.reading, self.path.clone(), self.place(), entries))
    }
}

/// A table of the document that remembers which keys it was asked for.
#[derive(Debug)]
pub(super) struct Table<'a> {
    reading: &'a Reading<'a>,
    path: String,
    place: Place,
    entries: &'a DeTable<'a>,
    known: Vec<&'static str>,
    accepts_everything: bool,
}

impl<'a> Table<'a> {
    fn new(reading: &'a Reading<'a>, path: String, place: Place, entries: &'a DeTable<'a>) -> Self {
        Self { reading, path, place, entries, known: Vec::new(), accepts_everything: false }
    }

    /// What `read` makes of a key's value; `None` if the key is missing or wrong.
    pub(super) fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> Option<T> {
        read(&self.take(key)?)
    }

    /// Like [`Table::optional`], with what holds if the key is missing.
    pub(super) fn or<T>(
        &mut self,
        key: &'static str,
        otherwise: T,
        read: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> T {
        self.optional(key, read).unwrap_or(otherwise)
    }

    /// Like [`Table::optional`], and complains if the key is missing. `cure` says what to write.
    pub(super) fn required<T>(
        &mut self,
        key: &'static str,
        cure: &str,
        read: impl FnOnce(&Value<'a>) -> Option<T>,
    ) -> Option<T> {
        let value = self.take(key);
        if value.is_none() {
            self.wrong(format!("lacks `{key}`"), cure);
        }
        read(&value?)
    }

    /// A key's value as it is, and the key is known from now on.
    pub(super) fn take(&mut self, key: &'static str) -> Option<Value<'a>> {
        self.known.push(key);
        self.get(key)
    }

    /// How many problems the pass has noted so far, to tell whether reading some keys added any.
    pub(super) fn problems(&self) -> usize {
        self.reading.problems.borrow().len()
    }

    /// Accepts whatever other keys there are: tables of things that this release cannot read yet.
    pub(super) fn accept_everything(&mut self) {
        self.accepts_everything = true;
    }

    /// Notes something wrong with the table as a whole: HX0004 at its key.
    pub(super) fn wrong(&self, cause: impl AsRef<str>, cure: impl Into<String>) {
        let subject = if self.path.is_empty() { "the file".to_owned() } else { format!("`{}`", self.path) };
        let message = format!("{subject} {}", cause.as_ref());
        self.reading.note(Problem::new(Code::ConfigWrongValue, self.place, message).help(cure));
    }

    /// Notes something about the table as a whole under another code.
    pub(super) fn note(&self, code: Code, message: &str, cure: String) {
        self.reading.note(Problem::new(code, self.place, message).help(cure));
    }

    fn get(&self, key: &str) -> Option<Value<'a>> {
        let (key, value) = self.entries.get_key_value(key)?;
        let dot = if self.path.is_empty() { "" } else { "." };
        Some(Value {
            reading: self.reading,
            path: format!("{}{dot}{}", self.path, key.get_ref()),
            key: key.span().into(),
            place: value.span().into(),
            node: value.get_ref(),
        })
    }

    fn read<T>(mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let result = read(&mut self);
        if self.accepts_everything {
            return result;
        }
        for key in self.entries.keys().filter(|key| !self.known.contains(&key.get_ref().as_ref())) {
            self.reading.note(self.unknown(key.get_ref(), key.span().into()));
        }
        result
    }

    fn unknown(&self, key: &str, place: Place) -> Problem {
        let whereabouts =
            if self.path.is_empty() { "at the top".to_owned() } else { format!("in `{}`", self.path) };
        let mut known = self.known.clone();
        known.sort_unstable();
        Problem::new(Code::ConfigUnknownKey, place, format!("unknown key `{key}` {whereabouts}"))
            .label("unknown key")
            .help(suggestion(key, &known))
    }
}
