//! The page that shows which failure is tried on which store and broker, made from the report of a test run: a cell is
//! the number of tests of its case that ran on its system, and passed.

mod list;
mod report;

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::{
    failure::{Context, Failure, Result},
    steps,
};
use list::{CASES, Case, Scope};
use report::Test;

/// The page, from the root of the workspace.
const PAGE: &str = "docs/cases.md";

/// Where nextest writes its report, as `.config/nextest.toml` says.
const REPORT: &str = "target/nextest/default/junit.xml";

/// What stands in a test's full name if it ran on the system.
type System = (&'static str, &'static str);

const STORES: [System; 4] =
    [("SQLite", "sqlite"), ("PostgreSQL", "postgres"), ("MariaDB", "mariadb"), ("MongoDB", "mongodb")];

const BROKERS: [System; 6] = [
    ("embedded queue", "embedded_queue"),
    ("RabbitMQ", "rabbitmq"),
    ("Kafka", "kafka"),
    ("JetStream", "nats"),
    ("SQS", "sqs"),
    ("Redis Streams", "redis"),
];

/// Removes an earlier run's report, so that no page is made of it.
pub(crate) fn forget() -> Result {
    match fs::remove_file(report_path()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context("removing the last run's report")
        }
        _ => Ok(()),
    }
}

/// Writes the page of the run that has just ended. Says so if a case that applies to a system was not tried there.
pub(crate) fn write() -> Result {
    let report = fs::read_to_string(report_path()).context(&format!("reading {REPORT}"))?;
    let tests = report::tests(&report);
    let page = page(&tests);
    fs::write(steps::root().join(PAGE), page).context(&format!("writing {PAGE}"))?;
    let missing = missing(&tests);
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("these cases apply and no test of them passed:\n{}", missing.join("\n"))))
}

/// Fails if the page in the repository is not the one that the last run wrote.
pub(crate) fn is_committed() -> Result {
    let mut diff = std::process::Command::new("git");
    diff.current_dir(steps::root()).args(["diff", "--exit-code", "--stat", "--", PAGE]);
    if steps::succeeds(&mut diff) {
        return Ok(());
    }
    Err(Failure::new(format!("{PAGE} is not what the tests say: commit what `cargo xtask test` has written")))
}

fn report_path() -> PathBuf {
    steps::root().join(REPORT)
}

/// How many tests of a case passed on each system.
type Counts = BTreeMap<(u32, &'static str), usize>;

fn counts(tests: &[Test]) -> Counts {
    let mut counts = Counts::new();
    for test in tests.iter().filter(|test| test.passed) {
        for case in test.cases() {
            let systems = STORES.iter().chain(&BROKERS).filter(|(_, word)| test.name.contains(word));
            for (system, _) in systems {
                *counts.entry((case, *system)).or_default() += 1;
            }
            *counts.entry((case, "")).or_default() += 1;
        }
    }
    counts
}

fn page(tests: &[Test]) -> String {
    let counts = counts(tests);
    let table = |systems: &[System], scope: fn(&Case) -> Scope| {
        let head: Vec<&str> = systems.iter().map(|(name, _)| *name).collect();
        let rows = CASES.iter().filter(|case| scope(case) != Scope::None);
        let rows = rows.map(|case| row(case, systems, &counts)).collect::<String>();
        format!("| | case | {} |\n|---|---|{}\n{rows}", head.join(" | "), "---|".repeat(head.len()))
    };
    let others = CASES.iter().filter(|case| case.stores == Scope::None && case.brokers == Scope::None);
    let others = others.map(|case| {
        let tests = counts.get(&(case.number, "")).copied().unwrap_or(0);
        format!("| {:02} | {} | {tests} |\n", case.number, case.title)
    });
    format!(
        "# Which failure is tried where\n\n\
         Written by `cargo xtask test` from the run's own report: a cell is the number of tests of the case that passed on \
         that system, `–` that there is none. The number is part of the tests' names (`case_07_…`), so \
         `cargo nextest run case_07` runs them.\n\n## Stores\n\n{}\n## Brokers\n\n{}\n## On neither\n\n\
         | | case | tests |\n|---|---|---|\n{}",
        table(&STORES, |case| case.stores),
        table(&BROKERS, |case| case.brokers),
        others.collect::<String>()
    )
}

fn row(case: &Case, systems: &[System], counts: &Counts) -> String {
    let cells = systems.iter().map(|(system, _)| match counts.get(&(case.number, *system)) {
        Some(tests) => format!(" {tests} |"),
        None => " – |".to_owned(),
    });
    format!("| {:02} | {} |{}\n", case.number, case.title, cells.collect::<String>())
}

/// The cases that apply to a system and have no test there that passed.
fn missing(tests: &[Test]) -> Vec<String> {
    let counts = counts(tests);
    let of = |systems: &[System], case: &Case, scope: Scope| -> Vec<String> {
        let untried = systems
            .iter()
            .filter(|(system, word)| scope.covers(word) && !counts.contains_key(&(case.number, *system)));
        untried.map(|(system, _)| format!("  case {:02} on {system}: {}", case.number, case.title)).collect()
    };
    CASES
        .iter()
        .flat_map(|case| [of(&STORES, case, case.stores), of(&BROKERS, case, case.brokers)].concat())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(name: &str) -> Test {
        Test { name: name.to_owned(), passed: true }
    }

    #[test]
    fn a_test_counts_for_each_case_and_system_in_its_name() {
        let tests = [
            passed("hapax-testkit::soak server::case_05_case_16_postgres_and_kafka"),
            passed("hapax-sqlx::conformance_sqlite store::claim::case_05_a"),
            Test { passed: false, ..passed("hapax-kafka::server case_05_b") },
        ];
        let counts = counts(&tests);
        assert_eq!(counts[&(5, "PostgreSQL")], 1);
        assert_eq!(counts[&(5, "SQLite")], 1);
        assert_eq!(counts[&(5, "Kafka")], 1);
        assert_eq!(counts[&(16, "Kafka")], 1);
        assert!(!counts.contains_key(&(16, "SQLite")));
    }

    #[test]
    fn what_applies_and_was_not_tried_is_named() {
        let missing = missing(&[passed("hapax-sqlx::conformance_sqlite case_01_a")]);
        assert!(missing.iter().any(|line| line.starts_with("  case 01 on PostgreSQL: ")), "{missing:?}");
        assert!(!missing.iter().any(|line| line.starts_with("  case 01 on SQLite")), "{missing:?}");
        assert!(!missing.iter().any(|line| line.starts_with("  case 18 on RabbitMQ")), "{missing:?}");
    }
}
