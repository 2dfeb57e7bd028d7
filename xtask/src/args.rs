//! The command line.

/// What `help` prints.
pub(crate) const USAGE: &str = "\
cargo xtask TASK

  test [--embedded] [-- ARGS]   start the servers that tests need where they are missing, then run all tests;
                                --embedded: only those that need no server;
                                ARGS go to the test runner, e.g. a test's name
  soak [--minutes N] [--messages N]
                                run the long outage test and the bank's check, and write what they say to
                                docs/soak.md
  ci                            everything CI checks, in its order
  help                          this text";

/// A parsed command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    Ci,
    Test { scope: Scope, runner: Vec<String> },
    Soak(Length),
}

/// Which tests to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// Those outside modules named `server`.
    Embedded,
}

/// How long to soak; where nothing is said, the test decides.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Length {
    pub(crate) minutes: Option<u32>,
    pub(crate) messages: Option<u32>,
}

impl Task {
    /// Reads the arguments after the program's name. The error is a sentence for whoever typed them.
    pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut args = args.into_iter();
        let task = args.next().unwrap_or_else(|| "help".into());
        match task.as_str() {
            "help" | "--help" | "-h" => nothing_more(args, Self::Help),
            "ci" => nothing_more(args, Self::Ci),
            "test" => Self::test(args),
            "soak" => Self::soak(args),
            other => Err(format!("no such task: {other}")),
        }
    }

    fn test(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut scope = Scope::All;
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--embedded" => scope = Scope::Embedded,
                "--" => return Ok(Self::Test { scope, runner: args.collect() }),
                other => {
                    return Err(format!("`test` does not know {other}; what is the runner's follows `--`"));
                }
            }
        }
        Ok(Self::Test { scope, runner: Vec::new() })
    }

    fn soak(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut length = Length::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--minutes" => length.minutes = Some(number(&arg, args.next())?),
                "--messages" => length.messages = Some(number(&arg, args.next())?),
                other => return Err(format!("`soak` does not know {other}")),
            }
        }
        Ok(Self::Soak(length))
    }
}

fn nothing_more(mut args: impl Iterator<Item = String>, task: Task) -> Result<Task, String> {
    args.next().map_or(Ok(task), |arg| Err(format!("nothing may follow here, but there is {arg}")))
}

fn number(option: &str, value: Option<String>) -> Result<u32, String> {
    let value = value.ok_or_else(|| format!("{option} needs a number"))?;
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{option} needs a number above zero, not {value}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Task, String> {
        Task::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn tasks_and_their_options_are_read() {
        assert_eq!(parse(""), Ok(Task::Help));
        assert_eq!(parse("ci"), Ok(Task::Ci));
        assert_eq!(parse("test"), Ok(Task::Test { scope: Scope::All, runner: vec![] }));
        let runner = vec!["case_07".to_owned(), "--nocapture".to_owned()];
        assert_eq!(
            parse("test --embedded -- case_07 --nocapture"),
            Ok(Task::Test { scope: Scope::Embedded, runner })
        );
        let length = Length { minutes: Some(5), messages: None };
        assert_eq!(parse("soak --minutes 5"), Ok(Task::Soak(length)));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, named) in [
            ("tset", "tset"),
            ("test case_07", "case_07"),
            ("ci --fast", "--fast"),
            ("soak --minutes", "--minutes"),
            ("soak --messages 0", "above zero"),
        ] {
            let mistake = parse(line).unwrap_err();
            assert!(mistake.contains(named), "{mistake}");
        }
    }
}
