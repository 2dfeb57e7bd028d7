//! The consumer that is killed.

use std::time::Instant;

use fastrand::Rng;
use hapax_testkit::process::{Running, Subject};
use tokio::time::sleep;

use super::length::Length;
use crate::outage::PATIENCE;

/// The consumer, and how often it was killed.
pub(crate) struct Victim {
    subject: Subject,
    pub(crate) running: Running,
    pub(crate) kills: u32,
}

impl Victim {
    pub(crate) fn start(subject: Subject) -> Self {
        let running = subject.start().expect("it starts");
        Self { subject, running, kills: 0 }
    }

    /// Kills and restarts it at random moments. In the end it runs, since what it survives is an outage, and not one
    /// while it is set up.
    pub(crate) async fn suffer(&mut self, length: &Length, random: &mut Rng) {
        let end = Instant::now() + length.calm;
        for _ in 0..length.kills {
            let life = (length.calm / (length.kills + 1)).mul_f64(0.1 + 0.9 * random.f64());
            sleep(life).await; // the moment is what is tested
            self.running.kill().expect("it is killed");
            self.running.wait_killed(PATIENCE).await;
            self.kills += 1;
            self.running = self.subject.start().expect("it starts");
        }
        sleep(end.saturating_duration_since(Instant::now())).await; // so that messages come through, too
        self.running.wait_output("running", PATIENCE).await;
    }

    pub(crate) fn assert_alive(&mut self, after: &str) {
        assert!(self.running.is_running(), "it did not survive {after}\n{}", self.running);
    }
}
