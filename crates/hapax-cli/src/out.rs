//! Standard output, which may be a pipe that somebody closed, or a file on a full disk.

use std::io::{Error, ErrorKind, Write as _};

use crate::trouble::FINDINGS;

/// Prints a line, or ends the program.
pub(crate) fn line(text: &std::fmt::Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout().lock(), "{text}") {
        failed(&error);
    }
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
