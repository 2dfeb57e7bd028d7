//! Standard output, which may be a pipe that somebody closed.

use std::io::Write as _;

/// Prints a line. A reader that has gone, as `head` does, is no error: the program ends quietly.
pub(crate) fn line(text: &std::fmt::Arguments<'_>) {
    if writeln!(std::io::stdout().lock(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// `println!` for a standard output that may be closed.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::out::line(&format_args!($($text)*))
    };
}
pub(crate) use say;
