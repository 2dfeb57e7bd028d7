//! `${NAME}` and `${file:/path}` inside the configuration's strings.
//!
//! Every string is filled in, except SQL (`run`), whose text reaches the database as it is written:
//! values get into a statement through parameters only. A lone `$` stands for itself; `$${` writes `${`.
//! What was filled in is not looked at again, so a value may hold any characters.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What a configuration may look at beside its own text: the environment and the files it names.
///
/// Tests pass their own; the program passes [`Surroundings::of_process`].
#[derive(Clone, Copy)]
pub(crate) struct Surroundings<'a> {
    /// The value of an environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// The text of a file.
    pub file: &'a dyn Fn(&Path) -> io::Result<String>,
}

impl Surroundings<'static> {
    /// The process's environment and the machine's files.
    pub(crate) fn of_process() -> Self {
        Self { variable: &|name| std::env::var(name).ok(), file: &|path| std::fs::read_to_string(path) }
    }
}

impl fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Surroundings").finish_non_exhaustive()
    }
}

impl Surroundings<'_> {
    /// A file's text without the one newline that editors and `echo` put at its end.
    pub(super) fn read_trimmed(&self, path: &Path) -> io::Result<String> {
        let mut text = (self.file)(path)?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(text)
    }
}

/// Why a string could not be filled in.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unfilled {
    /// The environment has no such variable.
    #[error("the environment variable `{0}` is not set")]
    Variable(String),
    /// The file cannot be read.
    #[error("the file `{}` cannot be read: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
    /// What stands between the braces is neither a variable's name nor `file:` and a path.
    #[error("`{0}` is neither `${{NAME}}` nor `${{file:/path}}`")]
    Malformed(String),
}

/// A part of a string that could not be filled in: the part as it is written, and the reason.
#[derive(Debug)]
pub(super) struct Hole {
    pub(super) written: String,
    pub(super) reason: Unfilled,
}

/// Fills in every `${…}` of `text`; paths are relative to `base`.
pub(super) fn interpolate(text: &str, base: &Path, around: &Surroundings<'_>) -> Result<String, Hole> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find("${") {
        let (before, hole) = rest.split_at(dollar);
        if let Some(before) = before.strip_suffix('$') {
            filled.push_str(before);
            filled.push_str("${");
            rest = &hole["${".len()..];
            continue;
        }
        filled.push_str(before);
        let length = hole.find('}').map_or(hole.len(), |brace| brace + 1);
        let (written, after) = hole.split_at(length);
        let value = look_up(written, base, around);
        filled.push_str(&value.map_err(|reason| Hole { written: written.to_owned(), reason })?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

fn look_up(written: &str, base: &Path, around: &Surroundings<'_>) -> Result<String, Unfilled> {
    let inside = written.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).unwrap_or_default();
    if let Some(path) = inside.strip_prefix("file:").filter(|path| !path.is_empty()) {
        let path = base.join(path);
        return around.read_trimmed(&path).map_err(|error| Unfilled::File { path, error });
    }
    if !is_variable_name(inside) {
        return Err(Unfilled::Malformed(written.to_owned()));
    }
    (around.variable)(inside).ok_or_else(|| Unfilled::Variable(inside.to_owned()))
}

fn is_variable_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(text: &str) -> Result<String, Hole> {
        let around = Surroundings {
            variable: &|name| (name == "NAME").then(|| "${NAME}".to_owned()),
            file: &|path| match path.to_str() {
                Some("/etc/hapax/pass") => Ok("se cret\n\n".to_owned()),
                Some("/run/crlf") => Ok("x\r\n".to_owned()),
                _ => Err(io::ErrorKind::NotFound.into()),
            },
        };
        interpolate(text, Path::new("/etc/hapax"), &around)
    }

    #[test]
    fn variables_and_files_are_filled_in_once() {
        for (text, filled) in [
            ("a ${NAME} b", "a ${NAME} b"),
            ("${NAME}${NAME}", "${NAME}${NAME}"),
            ("<${file:pass}>", "<se cret\n>"),
            ("${file:/run/crlf}", "x"),
            ("$1 $ $$ $x }", "$1 $ $$ $x }"),
            ("$${NAME} ${NAME}", "${NAME} ${NAME}"),
        ] {
            assert_eq!(fill(text).expect(text), filled, "{text}");
        }
    }

    #[test]
    fn a_hole_that_cannot_be_filled_says_why() {
        for (text, written, reason) in [
            ("x ${GONE} y", "${GONE}", "the environment variable `GONE` is not set"),
            ("${file:gone}", "${file:gone}", "the file `/etc/hapax/gone` cannot be read: entity not found"),
            ("${NAME:-x}", "${NAME:-x}", "`${NAME:-x}` is neither `${NAME}` nor `${file:/path}`"),
            ("${}", "${}", "`${}` is neither `${NAME}` nor `${file:/path}`"),
            ("${NAME", "${NAME", "`${NAME` is neither `${NAME}` nor `${file:/path}`"),
        ] {
            let hole = fill(text).expect_err(text);
            assert_eq!((hole.written.as_str(), hole.reason.to_string().as_str()), (written, reason));
        }
    }
}
