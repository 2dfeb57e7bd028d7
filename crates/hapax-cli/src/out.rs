//! Standard output, which may be a pipe that somebody closed, or a file on a full disk.

use std::io::{Error, ErrorKind, Write as _};

use crate::trouble::FINDINGS;

/// Prints a line, or ends the program. Ids, types and bodies come from outside: what would move a terminal's cursor is
/// printed as an escape.
pub(crate) fn line(text: &std::fmt::Arguments<'_>) {
    let text = escaped(&text.to_string(), |c| c == '\n' || c == '\t');
    if let Err(error) = writeln!(std::io::stdout().lock(), "{text}") {
        failed(&error);
    }
}

/// A text as one line of a list.
pub(crate) fn one_line(text: &str) -> String {
    escaped(text, |_| false)
}

fn escaped(text: &str, allowed: impl Fn(char) -> bool) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, c| {
        if c.is_control() && !allowed(c) {
            escaped.extend(c.escape_default());
        } else {
            escaped.push(c);
        }
        escaped
    })
}

/// Ends the program. A reader that has gone, as `head` does, is no error, and nothing is said of it.
pub(crate) fn failed(error: &Error) -> ! {
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("cannot write to standard output: {error}");
    std::process::exit(FINDINGS.into());
}

/// `println!` for a standard output that may fail.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::out::line(&format_args!($($text)*))
    };
}
pub(crate) use say;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_cursor_is_escaped() {
        assert_eq!(one_line("a\u{1b}[2J\nb\u{7}ć"), "a\\u{1b}[2J\\nb\\u{7}ć");
        assert_eq!(escaped("a\n\tb\r", |c| c == '\n' || c == '\t'), "a\n\tb\\r");
    }
}
