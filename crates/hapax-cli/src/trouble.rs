//! Every way the program can end badly: a code, a place where there is one, the cause, the cure, and an
//! exit code.

use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use hapax::{Code, Error};
use miette::Diagnostic;

use crate::config::problem::Report;

/// Exit code: the command found something it was asked to look for.
pub(crate) const FINDINGS: u8 = 1;
/// Exit code: the command, or its configuration, is wrong.
pub(crate) const USAGE: u8 = 2;
/// Exit code: a server cannot be reached, or refuses us.
pub(crate) const UNREACHABLE: u8 = 3;

/// What ends the program.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The configuration is wrong.
    Config(Box<Report>),
    /// A store, source or publisher says no.
    Hapax(Box<Error>),
    /// The command's arguments do not fit together, or it was not confirmed.
    Usage {
        /// The code.
        code: Code,
        /// What is wrong.
        message: String,
        /// What to do.
        cure: String,
    },
}

impl Trouble {
    /// A mistake in the command's arguments.
    pub(crate) fn usage(code: Code, message: impl Into<String>, cure: impl Into<String>) -> Self {
        Self::Usage { code, message: message.into(), cure: cure.into() }
    }

    /// The runtime did not start.
    pub(crate) fn runtime(error: &std::io::Error) -> Self {
        Self::usage(
            Code::UsageWrong,
            format!("the program cannot start its threads: {error}"),
            "Raise the limit on threads.",
        )
    }

    /// Its code.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Config(report) => {
                report.problems().next().map_or(Code::ConfigUnreadable, |first| first.problem().code)
            }
            Self::Hapax(error) => error.code(),
            Self::Usage { code, .. } => *code,
        }
    }

    fn exit_code(&self) -> u8 {
        match self.code() {
            Code::StoreUnavailable
            | Code::StoreRefused
            | Code::StoreReadOnly
            | Code::BrokerUnavailable
            | Code::BrokerRefused
            | Code::OutcomeUnknown => UNREACHABLE,
            Code::NotFound | Code::RedriveLost | Code::TotalsWrong => FINDINGS,
            _ => USAGE,
        }
    }

    /// Prints it to standard error and answers with the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let code = ExitCode::from(self.exit_code());
        let report = match self {
            Self::Config(report) => miette::Report::new(*report),
            other => miette::Report::new(other),
        };
        let _ = writeln!(std::io::stderr(), "{report:?}"); // who has closed it will miss it
        code
    }
}

impl From<Report> for Trouble {
    fn from(report: Report) -> Self {
        Self::Config(Box::new(report))
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Hapax(Box::new(error))
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(report) => report.fmt(f),
            Self::Hapax(error) => {
                let text = error.to_string();
                f.write_str(text.strip_prefix(&format!("{}: ", error.code())).unwrap_or(&text))
            }
            Self::Usage { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for Trouble {}

impl Diagnostic for Trouble {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.code()))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        match self {
            Self::Usage { cure, .. } => Some(Box::new(cure)),
            _ => Some(Box::new(cure(self.code()))),
        }
    }
}

/// The cure of a code: the first paragraph of the last section of its page, so that program and page
/// cannot say different things.
pub(crate) fn cure(code: Code) -> String {
    let page = code.page();
    let section = page.split("## What to do").nth(1).unwrap_or_default().trim();
    let paragraph = section.split("\n\n").next().unwrap_or_default();
    let text = paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    format!("{text}\nMore: docs/errors/{code}.md")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_page_and_a_cure() {
        for code in Code::ALL {
            let title = format!("# {code}: {}", code.summary());
            assert_eq!(code.page().lines().next(), Some(title.as_str()));
            for section in ["## What happened", "## Why", "## What to do"] {
                assert!(code.page().contains(section), "{code} lacks {section}");
            }
            assert!(cure(*code).len() > 40, "{code} has no cure");
        }
    }

    #[test]
    fn every_page_has_its_code() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors");
        let pages =
            std::fs::read_dir(folder).unwrap().map(|page| page.unwrap().file_name().into_string().unwrap());
        for page in pages {
            let code = page.strip_suffix(".md").unwrap();
            assert!(code.parse::<Code>().is_ok(), "{page} has no code");
        }
    }
}
