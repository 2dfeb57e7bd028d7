//! The report of nextest, in the form of `JUnit`.

/// A test that ran.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// Package, binary and path, such as `hapax-sqlx::sqlite claims::case_04_of_many_rivals_one_commits`.
    pub(super) name: String,
    pub(super) passed: bool,
}

impl Test {
    /// The numbers in its name: `case_05_case_16_…`.
    pub(super) fn cases(&self) -> Vec<u32> {
        let behind = self.name.match_indices("case_").map(|(place, word)| &self.name[place + word.len()..]);
        behind.filter_map(|rest| rest.split('_').next()?.parse().ok()).collect()
    }
}

/// The tests of a report.
pub(super) fn tests(report: &str) -> Vec<Test> {
    let elements = report.split("<testcase ").skip(1);
    elements
        .filter_map(|element| {
            let (tag, rest) = element.split_once('>')?;
            let name = format!("{} {}", attribute(tag, "classname")?, attribute(tag, "name")?);
            let body = if tag.ends_with('/') { "" } else { rest.split("</testcase>").next().unwrap_or(rest) };
            let passed = !["<failure", "<error", "<skipped"].iter().any(|mark| body.contains(mark));
            Some(Test { name, passed })
        })
        .collect()
}

/// Names of tests hold nothing that XML escapes.
fn attribute<'t>(tag: &'t str, name: &str) -> Option<&'t str> {
    tag.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix("=\"")?.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_and_failed_tests_are_told_apart() {
        let report = r#"<testsuite name="a"><testcase name="x::case_01_y" classname="a::b" time="0.1"><system-out>&lt;failure</system-out>
        </testcase><testcase name="z" classname="a"><failure type="t"/></testcase><testcase name="w" classname="a"/></testsuite>"#;
        let found: Vec<_> = tests(report).into_iter().map(|test| (test.name, test.passed)).collect();
        let expected = [("a::b x::case_01_y", true), ("a z", false), ("a w", true)];
        assert_eq!(found, expected.map(|(name, passed)| (name.to_owned(), passed)));
    }

    #[test]
    fn a_name_may_hold_several_cases_and_words_that_look_like_one() {
        let test = Test { name: "a server::case_05_case_16_b_case_of_c".into(), passed: true };
        assert_eq!(test.cases(), [5, 16]);
    }
}
