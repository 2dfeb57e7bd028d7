//! What came out of it.

use serde_json::json;

use super::contender::Contender;
use super::pace::{Pace, Waits};
use crate::args::Bench;
use crate::out::say;

/// What was measured, a line for each contender.
pub(super) struct Report(Vec<Line>);

struct Line {
    contender: Contender,
    /// Messages a second, of each round.
    rates: Vec<f64>,
    waits: Waits,
}

impl Report {
    /// An empty report.
    pub(super) fn of(contenders: &[Contender]) -> Self {
        let line = |contender: &Contender| Line {
            contender: *contender,
            rates: Vec::new(),
            waits: Waits::default(),
        };
        Self(contenders.iter().map(line).collect())
    }

    /// Notes a pass.
    pub(super) fn note(&mut self, contender: Contender, messages: u32, pace: &Pace) {
        for line in self.0.iter_mut().filter(|line| line.contender == contender) {
            line.rates.push(f64::from(messages) / pace.took().as_secs_f64());
            line.waits.merge(pace.waits());
        }
    }

    /// Prints one line of JSON, or a table for people and what it was measured on.
    pub(super) fn print(&self, args: &Bench, place: &str) {
        if args.json {
            let row = |line: &Line| {
                json!({
                    "name": line.contender.name(),
                    "workers": args.workers,
                    "rate": rounded(line.rate(), 1.0),
                    "ratio": rounded(self.ratio(line), 100.0),
                    "p99_ms": rounded(line.waits.p99_ms(), 100.0),
                })
            };
            say!("{}", json!({ "rows": self.0.iter().map(row).collect::<Vec<_>>() }));
            return;
        }
        say!("{:20} {:>12} {:>7} {:>10}   from slowest to fastest round", "", "messages/s", "ratio", "p99");
        for line in &self.0 {
            let (slowest, fastest) = line.extremes();
            say!(
                "{:20} {:>12.0} {:>7.2} {:>7.1} ms   {slowest:.0} to {fastest:.0}",
                line.contender.name(),
                line.rate(),
                self.ratio(line),
                line.waits.p99_ms(),
            );
        }
        say!("{}", surroundings(args, place));
    }

    /// A line's rate over the baseline's.
    fn ratio(&self, line: &Line) -> f64 {
        self.0.first().map_or(1.0, |baseline| line.rate() / baseline.rate())
    }
}

impl Line {
    /// The median of the rounds.
    fn rate(&self) -> f64 {
        let rates = self.sorted();
        let (lower, upper) = (rates.len().saturating_sub(1) / 2, rates.len() / 2);
        match (rates.get(lower), rates.get(upper)) {
            (Some(lower), Some(upper)) => f64::midpoint(*lower, *upper),
            _ => 0.0,
        }
    }

    fn extremes(&self) -> (f64, f64) {
        let rates = self.sorted();
        (rates.first().copied().unwrap_or(0.0), rates.last().copied().unwrap_or(0.0))
    }

    fn sorted(&self) -> Vec<f64> {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates
    }
}

fn surroundings(args: &Bench, place: &str) -> String {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let Bench { messages, workers, rounds, .. } = args;
    format!(
        "{cores} cores; {place}; {workers} workers; {messages} messages a row and round; medians of {rounds} rounds"
    )
}

/// Rounded to what a measurement can mean: to tenths with 10, to hundredths with 100.
fn rounded(number: f64, parts: f64) -> f64 {
    (number * parts).round() / parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_median_of_its_rounds() {
        let rate = |rates: &[f64]| {
            let waits = Waits::default();
            Line { contender: Contender::Unprotected, rates: rates.to_vec(), waits }.rate()
        };
        assert!((rate(&[3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((rate(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < f64::EPSILON);
    }
}
