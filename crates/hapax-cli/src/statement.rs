//! SQL with named parameters (`:order_id`), and its text for each database.
//!
//! Only as much of SQL is understood as tells a parameter from what merely looks like one: casts (`::int`),
//! assignments (`:=`), array slices (`a[1:n]`), strings, quoted identifiers, dollar-quoted bodies and
//! comments. Everything that is no parameter reaches the database byte for byte.

use std::ops::Range;

/// One SQL statement whose parameters have been found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Statement {
    sql: String,
    names: Vec<String>,
    uses: Vec<Use>,
    foreign: Option<Range<usize>>,
}

/// One occurrence of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    /// Its index in [`Statement::parameters`].
    parameter: usize,
    /// The bytes it takes, its colon included.
    range: Range<usize>,
}

impl Statement {
    /// Finds the parameters of a statement.
    ///
    /// ```text
    /// UPDATE orders SET paid = :amount::numeric, seen = '12:30' WHERE id = :order_id
    ///                          ^^^^^^^                                     ^^^^^^^^^
    /// ```
    ///
    /// A name is made of ASCII letters, digits and `_`. Inside brackets a colon that directly follows a
    /// value separates the bounds of a slice (`a[1:n]`, `a[lo:hi]`); `a[:n]` is a parameter, and a bound
    /// that is one is written with a space before it (`a[1: :n]`).
    pub(crate) fn parse(sql: &str) -> Result<Self, ParseError> {
        let mut scanner = Scanner::new(sql);
        scanner.scan()?;
        if scanner.is_empty {
            return Err(ParseError::Empty);
        }
        scanner.check_first_words()?;
        let Scanner { names, uses, foreign, .. } = scanner;
        Ok(Self { sql: sql.to_owned(), names, uses, foreign })
    }

    /// The statement as it was written.
    #[cfg(test)]
    pub(crate) fn sql(&self) -> &str {
        &self.sql
    }

    /// The parameters in the order of their first use, each once. The parameter at index *i* is number
    /// *i* + 1 of every rendering.
    pub(crate) fn parameters(&self) -> &[String] {
        &self.names
    }

    /// Every use of a parameter in order: its name, and the bytes it takes with its colon.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (&str, Range<usize>)> {
        self.uses.iter().map(|used| (self.names[used.parameter].as_str(), used.range.clone()))
    }

    /// The first thing that SQLite would take for a parameter although it is none here: `?`, `@name`,
    /// `$name`. SQLite would run the statement with NULL in its place. Elsewhere these are operators.
    pub(crate) fn sqlite_placeholder(&self) -> Option<Range<usize>> {
        self.foreign.clone()
    }

    /// The statement for PostgreSQL: `$1`, the same number for every use of a name.
    pub(crate) fn postgres(&self) -> String {
        self.render(|number, _| format!("${number}"))
    }

    /// The statement for SQLite: `?1`, the same number for every use of a name.
    pub(crate) fn sqlite(&self) -> String {
        self.render(|number, _| format!("?{number}"))
    }

    /// The statement with what `placeholder` returns for each use, given the parameter's number (from 1)
    /// and name: `|number, _| format!("(${number}::text)::numeric(12,2)")` binds text as a number.
    pub(crate) fn render(&self, mut placeholder: impl FnMut(usize, &str) -> String) -> String {
        let mut rendered = String::with_capacity(self.sql.len());
        let mut copied = 0;
        for Use { parameter, range } in &self.uses {
            rendered.push_str(&self.sql[copied..range.start]);
            rendered.push_str(&placeholder(parameter + 1, &self.names[*parameter]));
            copied = range.end;
        }
        rendered.push_str(&self.sql[copied..]);
        rendered
    }
}

/// Why a text is not one statement with named parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParseError {
    /// There is nothing but white space and comments.
    #[error("the statement is empty")]
    Empty,
    /// Something is opened and never closed.
    #[error("{what} is never closed")]
    Unclosed {
        /// What is opened.
        what: &'static str,
        /// Where.
        at: Range<usize>,
    },
    /// More SQL follows a semicolon.
    #[error("there is more than one statement")]
    SecondStatement {
        /// Where the second one starts.
        at: Range<usize>,
    },
    /// A parameter is written by number: `$1`, `:1`.
    #[error("`{written}` refers to a parameter by number")]
    Numbered {
        /// What is written.
        written: String,
        /// Where.
        at: Range<usize>,
    },
    /// It would begin or end a transaction, or change the session that all messages share.
    #[error("`{written}` does not belong in a handler's transaction")]
    NotInside {
        /// The word, or two, that tell.
        written: String,
        /// Where.
        at: Range<usize>,
    },
    /// A parameter follows a word without a space: `LIMIT:n`.
    #[error("`:{name}` stands right behind a word")]
    Glued {
        /// The parameter's name.
        name: String,
        /// Where.
        at: Range<usize>,
    },
}

impl ParseError {
    /// The bytes of the statement that it is about.
    pub(crate) fn place(&self) -> Range<usize> {
        match self {
            Self::Empty => 0..0,
            Self::Unclosed { at, .. }
            | Self::SecondStatement { at }
            | Self::Numbered { at, .. }
            | Self::NotInside { at, .. }
            | Self::Glued { at, .. } => at.clone(),
        }
    }

    /// What to do about it.
    pub(crate) fn cure(&self) -> String {
        match self {
            Self::Empty => "Write an SQL statement.".to_owned(),
            Self::Unclosed { .. } => {
                "Close it. A quote inside a string or an identifier is written twice.".to_owned()
            }
            Self::SecondStatement { .. } => {
                "Give every statement its own `run`: they all run in the same transaction, in order."
                    .to_owned()
            }
            Self::Numbered { .. } => "Parameters have names: declare one, and write `:name`.".to_owned(),
            Self::NotInside { written, .. } if written.eq_ignore_ascii_case("set") => {
                "Write `SET LOCAL …`, which ends with the transaction, or remove the statement.".to_owned()
            }
            Self::NotInside { .. } => {
                "Remove the statement: Hapax begins and commits the transaction itself.".to_owned()
            }
            Self::Glued { name, .. } => format!("Write a space before `:{name}`."),
        }
    }
}

/// First words of statements that would begin or end a transaction, or change the session.
const NOT_INSIDE: [&str; 14] = [
    "BEGIN",
    "START",
    "COMMIT",
    "END",
    "ROLLBACK",
    "ABORT",
    "SAVEPOINT",
    "RELEASE",
    "DEALLOCATE",
    "DISCARD",
    "VACUUM",
    "ATTACH",
    "DETACH",
    "PRAGMA",
];

/// A walk over the bytes of a statement. Everything it looks for is ASCII, and no byte of a longer
/// character is, so it never stops inside one.
struct Scanner<'a> {
    sql: &'a str,
    at: usize,
    /// How many brackets are open.
    brackets: usize,
    /// Whether a semicolon has ended the statement.
    ended: bool,
    /// Whether only white space, comments and semicolons have been seen.
    is_empty: bool,
    /// The first two words, if the statement begins with words.
    first: Vec<Range<usize>>,
    names: Vec<String>,
    uses: Vec<Use>,
    foreign: Option<Range<usize>>,
}

impl<'a> Scanner<'a> {
    fn new(sql: &'a str) -> Self {
        Self {
            sql,
            at: 0,
            brackets: 0,
            ended: false,
            is_empty: true,
            first: Vec::new(),
            names: Vec::new(),
            uses: Vec::new(),
            foreign: None,
        }
    }

    fn scan(&mut self) -> Result<(), ParseError> {
        while let Some(byte) = self.peek(0) {
            match (byte, self.peek(1)) {
                (b' ' | b'\t' | b'\n' | b'\r' | b'\x0c', _) => self.at += 1,
                (b'-', Some(b'-')) => self.skip_line_comment(),
                (b'/', Some(b'*')) => self.skip_block_comment()?,
                (b';', _) => {
                    self.ended = !self.is_empty;
                    self.at += 1;
                }
                _ if self.ended => return Err(ParseError::SecondStatement { at: self.at..self.sql.len() }),
                _ => {
                    self.is_empty = false;
                    self.note_first_word();
                    self.scan_token(byte)?;
                }
            }
        }
        Ok(())
    }

    /// Called for every byte of a word: those behind its first belong to a word that is noted.
    fn note_first_word(&mut self) {
        if self.first.len() < 2 && self.first.last().is_none_or(|word| word.end <= self.at) {
            self.first.push(self.at..self.at + self.word_length(0));
        }
    }

    fn check_first_words(&self) -> Result<(), ParseError> {
        let is = |at: usize, word: &str| {
            self.first.get(at).is_some_and(|range| self.sql[range.clone()].eq_ignore_ascii_case(word))
        };
        let prepares = is(0, "PREPARE") && is(1, "TRANSACTION");
        let sets = is(0, "SET") && !is(1, "LOCAL") && !is(1, "CONSTRAINTS");
        if !prepares && !sets && !NOT_INSIDE.iter().any(|word| is(0, word)) {
            return Ok(());
        }
        let at = self.first[0].start..self.first[usize::from(prepares)].end;
        Err(ParseError::NotInside { written: self.sql[at.clone()].to_owned(), at })
    }

    fn scan_token(&mut self, byte: u8) -> Result<(), ParseError> {
        match byte {
            b'\'' if self.follows_escape_prefix() => self.skip_quoted("a string", b'\'', Some(b'\\')),
            b'\'' => self.skip_quoted("a string", b'\'', None),
            b'"' | b'`' => self.skip_quoted("a quoted identifier", byte, None),
            b'$' if !self.follows_word() => self.scan_dollar(),
            b':' => self.scan_colon(),
            b'?' => {
                self.note_foreign(1);
                Ok(())
            }
            b'@' if self.peek(1).is_some_and(is_word) => {
                self.note_foreign(1 + self.word_length(1));
                Ok(())
            }
            b'[' => {
                self.brackets += 1;
                self.at += 1;
                Ok(())
            }
            b']' => {
                self.brackets = self.brackets.saturating_sub(1);
                self.at += 1;
                Ok(())
            }
            _ => {
                self.at += 1;
                Ok(())
            }
        }
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.sql.as_bytes().get(self.at + ahead).copied()
    }

    fn previous(&self) -> Option<u8> {
        self.sql.as_bytes()[..self.at].last().copied()
    }

    fn follows_word(&self) -> bool {
        self.previous().is_some_and(|byte| is_word(byte) || byte == b'$')
    }

    /// How many bytes of a word start `ahead` of here.
    fn word_length(&self, ahead: usize) -> usize {
        self.sql.as_bytes()[self.at + ahead..].iter().take_while(|byte| is_word(**byte)).count()
    }

    /// `E'…'` and not `name'…'`: only there does a backslash escape (PostgreSQL).
    fn follows_escape_prefix(&self) -> bool {
        match self.sql.as_bytes()[..self.at] {
            [.., before, b'e' | b'E'] => !is_word(before),
            [b'e' | b'E'] => true,
            _ => false,
        }
    }

    fn skip_line_comment(&mut self) {
        let rest = &self.sql[self.at..];
        self.at += rest.find('\n').unwrap_or(rest.len());
    }

    /// Comments nest, as the SQL standard and PostgreSQL have it.
    fn skip_block_comment(&mut self) -> Result<(), ParseError> {
        let start = self.at;
        let mut depth = 0_usize;
        while let (Some(byte), next) = (self.peek(0), self.peek(1)) {
            match (byte, next) {
                (b'/', Some(b'*')) => depth += 1,
                (b'*', Some(b'/')) => depth -= 1,
                _ => {
                    self.at += 1;
                    continue;
                }
            }
            self.at += 2;
            if depth == 0 {
                return Ok(());
            }
        }
        Err(ParseError::Unclosed { what: "a comment", at: start..start + 2 })
    }

    /// A quote inside is written twice, which reads as one quoted text right behind another.
    fn skip_quoted(&mut self, what: &'static str, quote: u8, escape: Option<u8>) -> Result<(), ParseError> {
        let start = self.at;
        self.at += 1;
        while let Some(byte) = self.peek(0) {
            self.at += if Some(byte) == escape { 2 } else { 1 };
            if byte != quote {
                continue;
            }
            if self.peek(0) != Some(quote) {
                return Ok(());
            }
            self.at += 1;
        }
        Err(ParseError::Unclosed { what, at: start..start + 1 })
    }

    /// `$$…$$` and `$tag$…$tag$` are strings; `$1` would mix with the numbers of a rendering.
    fn scan_dollar(&mut self) -> Result<(), ParseError> {
        let length = self.word_length(1);
        if self.peek(1).is_some_and(|byte| byte.is_ascii_digit()) {
            return Err(self.numbered(1 + length));
        }
        if self.peek(1 + length) != Some(b'$') {
            self.note_foreign(1 + length);
            return Ok(());
        }
        let start = self.at;
        let tag = &self.sql[start..start + length + 2];
        let body = start + tag.len();
        let Some(end) = self.sql[body..].find(tag) else {
            return Err(ParseError::Unclosed { what: "a dollar-quoted string", at: start..body });
        };
        self.at = body + end + tag.len();
        Ok(())
    }

    fn scan_colon(&mut self) -> Result<(), ParseError> {
        let Some(next) = self.peek(1) else {
            self.at += 1;
            return Ok(());
        };
        if matches!(next, b':' | b'=') {
            self.at += 2;
            return Ok(());
        }
        if !is_word(next) || self.separates_slice() {
            self.at += 1;
            return Ok(());
        }
        if next.is_ascii_digit() && self.brackets == 0 {
            return Err(self.numbered(1 + self.word_length(1)));
        }
        if !next.is_ascii_alphabetic() && next != b'_' {
            self.note_foreign(1 + self.word_length(1));
            return Ok(());
        }
        self.take_parameter()
    }

    fn take_parameter(&mut self) -> Result<(), ParseError> {
        let is_name = |byte: &&u8| byte.is_ascii_alphanumeric() || **byte == b'_';
        let length = self.sql.as_bytes()[self.at + 1..].iter().take_while(is_name).count();
        let range = self.at..self.at + 1 + length;
        let name = &self.sql[range.start + 1..range.end];
        if self.follows_word() {
            return Err(ParseError::Glued { name: name.to_owned(), at: range });
        }
        let known = self.names.iter().position(|known| known == name);
        let parameter = known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        self.at = range.end;
        self.uses.push(Use { parameter, range });
        Ok(())
    }

    /// Whether the colon here stands between the bounds of a slice.
    fn separates_slice(&self) -> bool {
        let follows_value = || self.previous().is_some_and(|byte| is_word(byte) || b")]\"'".contains(&byte));
        self.brackets > 0 && follows_value()
    }

    fn note_foreign(&mut self, length: usize) {
        let range = self.at..self.at + length;
        self.at = range.end;
        self.foreign.get_or_insert(range);
    }

    fn numbered(&self, length: usize) -> ParseError {
        let at = self.at..self.at + length;
        ParseError::Numbered { written: self.sql[at.clone()].to_owned(), at }
    }
}

/// Whether a byte belongs to a word: an ASCII letter, digit or `_`, or a part of any other character.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(sql: &str) -> Statement {
        Statement::parse(sql).expect(sql)
    }

    #[test]
    fn a_name_has_one_number_however_often_it_is_used() {
        let statement = parse("UPDATE t SET a = :a, b = :b_2 WHERE a <> :a AND c IN(:c,:b_2)");
        assert_eq!(statement.parameters(), ["a", "b_2", "c"]);
        assert_eq!(statement.postgres(), "UPDATE t SET a = $1, b = $2 WHERE a <> $1 AND c IN($3,$2)");
        assert_eq!(statement.sqlite(), "UPDATE t SET a = ?1, b = ?2 WHERE a <> ?1 AND c IN(?3,?2)");
        let cast = statement.render(|number, name| match name {
            "a" => format!("(${number}::text)::numeric(12,2)"),
            _ => format!("${number}"),
        });
        assert!(cast.starts_with("UPDATE t SET a = ($1::text)::numeric(12,2), b = $2 WHERE"), "{cast}");
    }

    #[test]
    fn what_only_looks_like_a_parameter_is_left_alone() {
        for sql in [
            "SELECT '12:30', ':a', 'it''s :a', '\\'",
            "SELECT E'\\':a', e'\\\\', E'''\\':a'",
            "SELECT \":a\" FROM `:a` WHERE \"q\"\":a\" = 1",
            "SELECT $$ :a $$, $tag$ $$ :a $$ $tag$",
            "SELECT 1::int, x::text, y :: numeric",
            "SELECT a[1:2], a[lo:hi], a[f(1):n], a[b[1]:n], a[1:2][3:n]",
            "SELECT 1 -- :a\n, 2 /* :a /* :a */ :a */",
            "UPDATE t SET x := y",
            "SELECT a$b$ , c$1 FROM t$b$",
            "SELECT name'x' FROM t",
            "SELECT f(a := 1), b : c",
        ] {
            let statement = parse(sql);
            assert_eq!(statement.parameters(), [] as [&str; 0], "{sql}");
            assert_eq!(statement.postgres(), sql);
        }
    }

    #[test]
    fn parameters_stand_beside_all_of_these() {
        for (sql, rendered) in [
            (":a::int", "$1::int"),
            ("x=:a", "x=$1"),
            ("a[:n]", "a[$1]"),
            ("a[1: :n]", "a[1: $1]"),
            ("f(a := :a)", "f(a := $1)"),
            ("'é':a", "'é'$1"),
            ("E'\\\\':a", "E'\\\\'$1"),
            ("size'\\':a", "size'\\'$1"),
            ("$$x$$ || :a;", "$$x$$ || $1;"),
            ("/* c */:a--:b", "/* c */$1--:b"),
            ("data ->> :a ?& :b", "data ->> $1 ?& $2"),
        ] {
            assert_eq!(parse(sql).postgres(), rendered, "{sql}");
        }
    }

    #[test]
    fn one_statement_may_end_with_semicolons_and_a_second_is_refused() {
        parse("DELETE FROM t; ; -- done\n /* ; */");
        let error = Statement::parse("DELETE FROM t; DELETE FROM u").expect_err("two statements");
        assert_eq!(error, ParseError::SecondStatement { at: 15..28 });
        assert!(error.cure().contains("its own `run`"));
        for empty in ["", " \n", "-- x", ";", "/* x */;"] {
            assert_eq!(Statement::parse(empty), Err(ParseError::Empty), "{empty}");
        }
    }

    #[test]
    fn what_is_opened_must_be_closed() {
        for (sql, what, at) in [
            ("SELECT 'a''", "a string", 7..8),
            ("SELECT E'a\\'", "a string", 8..9),
            ("SELECT E'\\", "a string", 8..9),
            ("SELECT \"a", "a quoted identifier", 7..8),
            ("SELECT $a$ $b$", "a dollar-quoted string", 7..10),
            ("SELECT /* /* */", "a comment", 7..9),
        ] {
            assert_eq!(Statement::parse(sql), Err(ParseError::Unclosed { what, at }), "{sql}");
        }
    }

    #[test]
    fn numbers_and_glued_names_are_refused() {
        for sql in ["SELECT $1", "SELECT :1"] {
            let error = Statement::parse(sql).expect_err(sql);
            assert!(matches!(&error, ParseError::Numbered { at, .. } if *at == (7..9)), "{error:?}");
        }
        let error = Statement::parse("SELECT 1 LIMIT:n").expect_err("glued");
        assert_eq!(error, ParseError::Glued { name: "n".to_owned(), at: 14..16 });
    }

    #[test]
    fn what_begins_or_ends_a_transaction_or_changes_the_session_is_refused() {
        for (sql, written) in [
            ("BEGIN", "BEGIN"),
            ("start transaction", "start"),
            (" -- done\n/* really */ ;Commit;", "Commit"),
            ("END", "END"),
            ("ROLLBACK TO a", "ROLLBACK"),
            ("ABORT", "ABORT"),
            ("SAVEPOINT a", "SAVEPOINT"),
            ("RELEASE a", "RELEASE"),
            ("PREPARE TRANSACTION 'a'", "PREPARE TRANSACTION"),
            ("DEALLOCATE ALL", "DEALLOCATE"),
            ("DISCARD ALL", "DISCARD"),
            ("VACUUM", "VACUUM"),
            ("ATTACH 'x.db' AS x", "ATTACH"),
            ("DETACH x", "DETACH"),
            ("PRAGMA foreign_keys = 0", "PRAGMA"),
            ("SET search_path = shop", "SET"),
            ("SET SESSION x = 1", "SET"),
            ("set", "set"),
        ] {
            let error = Statement::parse(sql).expect_err(sql);
            assert_eq!(&sql[error.place()], written);
            assert_eq!(error, ParseError::NotInside { written: written.to_owned(), at: error.place() });
            assert_eq!(error.cure().contains("SET LOCAL"), written.eq_ignore_ascii_case("set"), "{sql}");
        }
        for sql in [
            "SET LOCAL x = 1",
            "set/* */local x = 1",
            "PREPARE a AS SELECT 1",
            "SELECT 'COMMIT'",
            "\"COMMIT\"",
            "COMMITS",
            "(SELECT 1)",
            "DO $$ BEGIN COMMIT; END $$",
            "WITH a AS (SELECT 1) UPDATE t SET x = 1",
        ] {
            parse(sql);
        }
    }

    #[test]
    fn what_sqlite_would_bind_to_null_is_pointed_at() {
        for (sql, placeholder) in [
            ("SELECT ?", Some("?")),
            ("SELECT :a, @b", Some("@b")),
            ("SELECT $cd", Some("$cd")),
            ("SELECT :é", Some(":é")),
            ("SELECT '?', \"@b\", -@ 5", None),
        ] {
            let found = parse(sql).sqlite_placeholder();
            assert_eq!(found.map(|range| &sql[range]), placeholder, "{sql}");
        }
    }

    /// Pieces that make the scanner change its mind, in any order.
    fn pieces() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("'"),
            Just("''"),
            Just("E'"),
            Just("\""),
            Just("`"),
            Just("$$"),
            Just("$t$"),
            Just("--"),
            Just("/*"),
            Just("*/"),
            Just("\n"),
            Just("["),
            Just("]"),
            Just(":"),
            Just("::"),
            Just(":="),
            Just(":a"),
            Just(":bc "),
            Just(" :a1"),
            Just("\\"),
            Just("é"),
            Just("x"),
            Just(" "),
            Just("7"),
            Just(";"),
            Just("?"),
            Just("("),
            Just(")"),
        ];
        prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn everything_but_the_parameters_stays_byte_for_byte(sql in pieces()) {
            let Ok(statement) = Statement::parse(&sql) else { return Ok(()) };
            prop_assert_eq!(statement.render(|_, name| format!(":{name}")), sql.clone());
            let mut rest = statement.render(|_, _| "\u{1}".to_owned());
            for (name, range) in statement.uses() {
                prop_assert_eq!(&sql[range], format!(":{name}"));
                rest = rest.replacen('\u{1}', &format!(":{name}"), 1);
            }
            prop_assert_eq!(rest, sql);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(sql in "\\PC{0,40}") {
            if let Err(error) = Statement::parse(&sql) {
                prop_assert!(sql.get(error.place()).is_some());
            }
        }
    }
}
