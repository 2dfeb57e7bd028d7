//! Thousands of messages and their copies, while the consumer is killed and its servers are stopped.
//!
//! `cargo xtask soak` runs it in full (with `HAPAX_SOAK` set) and keeps the table it prints; every other run
//! of the tests runs it in short. `HAPAX_SOAK_MESSAGES` and `HAPAX_SOAK_MINUTES` say how long the full run is,
//! `HAPAX_SOAK_SEED` repeats a run's choices.

mod outage;

mod server {
    use std::env;
    use std::time::{Duration, Instant};

    use fastrand::Rng;
    use hapax_core::Envelope;
    use hapax_testkit::process::{Running, Subject};
    use hapax_testkit::servers::{PrivatePostgres, PrivateRabbit, Server, require};
    use tokio::time::{sleep, sleep_until};

    use crate::outage::{PATIENCE, Producer, consumer, message, until_handled};

    const QUEUE: &str = "messages";
    /// The share of messages that are sent twice.
    const COPIED: f64 = 0.3;
    /// Messages that are published together.
    const TOGETHER: usize = 20;
    /// How far behind its message a copy may be.
    const BEHIND: f64 = 500.0;

    /// How long a run is.
    struct Length {
        messages: usize,
        /// Database and broker are each away once in a round.
        rounds: u32,
        outage: Duration,
        /// Between two outages, in which the consumer is killed again and again.
        calm: Duration,
        /// Between two kills, at most.
        kill_within: Duration,
    }

    impl Length {
        fn from_environment() -> Self {
            let number = |name: &str| env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
            let seconds = Duration::from_secs;
            if env::var_os("HAPAX_SOAK").is_none() {
                let (outage, calm, kill_within) = (seconds(3), seconds(3), seconds(2));
                return Self { messages: 500, rounds: 1, outage, calm, kill_within };
            }
            let (outage, calm, kill_within) = (seconds(60), seconds(30), seconds(8));
            let messages = number("HAPAX_SOAK_MESSAGES").unwrap_or(10_000) as usize;
            let round = 2 * (outage + calm).as_secs();
            let minutes = number("HAPAX_SOAK_MINUTES").unwrap_or(6);
            let rounds = u32::try_from(u64::from(minutes) * 60 / round).unwrap_or(1).max(1);
            Self { messages, rounds, outage, calm, kill_within }
        }

        fn total(&self) -> Duration {
            2 * self.rounds * (self.outage + self.calm)
        }
    }

    /// What is sent, in order: every message, and the copies of some a little later.
    fn plan(messages: usize, random: &mut Rng) -> Vec<usize> {
        let mut sent: Vec<(f64, usize)> = Vec::with_capacity(2 * messages);
        let mut place = 0.0;
        for number in 0..messages {
            place += 1.0;
            sent.push((place, number));
            if random.f64() < COPIED {
                sent.push((place + random.f64() * BEHIND, number));
            }
        }
        sent.sort_by(|(one, _), (two, _)| one.total_cmp(two));
        sent.into_iter().map(|(_, number)| number).collect()
    }

    /// Most simply work; some fail once, some take a while.
    fn work(number: usize) -> Envelope {
        message(
            number,
            match number % 50 {
                7 => "fail once",
                21 => "take a while",
                _ => "pay",
            },
        )
    }

    /// Publishes at a pace that lasts as long as the outages do.
    async fn produce(producer: Producer, plan: Vec<usize>, time: Duration) -> Producer {
        let begun = tokio::time::Instant::now();
        let calls = u32::try_from(plan.len().div_ceil(TOGETHER)).expect("not that many");
        for (call, together) in (0..).zip(plan.chunks(TOGETHER)) {
            sleep_until(begun + time * call / calls).await;
            producer.send(together.iter().map(|number| work(*number)).collect()).await;
        }
        producer
    }

    /// The consumer, and how often it was killed.
    struct Victim {
        subject: Subject,
        running: Running,
        kills: u32,
    }

    impl Victim {
        fn start(subject: Subject) -> Self {
            let running = subject.start().expect("it starts");
            Self { subject, running, kills: 0 }
        }

        /// Kills and restarts it at random moments. In the end it runs, since what it survives is an outage, and
        /// not one while it is set up.
        async fn suffer(&mut self, length: &Length, random: &mut Rng) {
            let end = Instant::now() + length.calm;
            loop {
                let life = length.kill_within.mul_f64(0.1 + 0.9 * random.f64());
                if Instant::now() + life > end {
                    sleep(end.saturating_duration_since(Instant::now())).await;
                    return self.running.wait_output("running", PATIENCE).await;
                }
                sleep(life).await; // the moment is what is tested
                self.running.kill().expect("it is killed");
                self.running.wait_killed(PATIENCE).await;
                self.kills += 1;
                self.running = self.subject.start().expect("it starts");
            }
        }

        fn assert_alive(&mut self, after: &str) {
            assert!(self.running.is_running(), "it did not survive {after}\n{}", self.running);
        }
    }

    /// Takes away the database, then the broker, and gives each back.
    async fn round(
        number: u32,
        (postgres, rabbit): (&mut PrivatePostgres, &mut PrivateRabbit),
        victim: &mut Victim,
        length: &Length,
        random: &mut Rng,
    ) {
        let orderly = number % 2 == 1;
        victim.suffer(length, random).await;
        if orderly { postgres.stop_orderly().await } else { postgres.stop().await }.expect("it stops");
        sleep(length.outage).await; // the time is what is tested
        postgres.start_again().await.expect("it starts again");
        victim.assert_alive("the database's outage");
        victim.suffer(length, random).await;
        if orderly { rabbit.stop_orderly().await } else { rabbit.stop().await }.expect("it stops");
        sleep(length.outage).await; // the time is what is tested
        rabbit.start_again().await.expect("it starts again");
        victim.assert_alive("the broker's outage");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_lost_and_nothing_doubled_on_private_servers() {
        if !require(Server::PrivatePostgres) || !require(Server::PrivateRabbit) {
            return;
        }
        let (length, begun) = (Length::from_environment(), Instant::now());
        let seed = env::var("HAPAX_SOAK_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| fastrand::u64(..));
        println!("HAPAX_SOAK_SEED={seed}");
        let mut random = Rng::with_seed(seed);

        let mut postgres = PrivatePostgres::start().await.expect("a server of its own");
        let mut rabbit = PrivateRabbit::start().await.expect("a node of its own");
        let url = postgres.url("postgres");
        let producer = Producer::declare(&rabbit.url(), QUEUE).await;
        let plan = plan(length.messages, &mut random);
        let copies = plan.len() - length.messages;
        let subject = consumer(&url, &format!("rabbit:{QUEUE}")).env("HAPAX_TEST_RABBITMQ", rabbit.url());
        let mut victim = Victim::start(subject);
        let producing = tokio::spawn(produce(producer, plan, length.total()));
        for number in 0..length.rounds {
            round(number, (&mut postgres, &mut rabbit), &mut victim, &length, &mut random).await;
        }
        let producer = producing.await.expect("all are confirmed");
        let tally = until_handled(&url, length.messages, &mut victim.running).await;
        victim.running.terminate().expect("it is told to end");
        assert!(victim.running.wait_exit(PATIENCE).await.success(), "{}", victim.running);

        producer.clear_up().await;

        let lost = length.messages - tally.messages;
        let doubled = tally.effects - tally.messages;
        println!("| | |\n|---|---|");
        println!("| messages | {} |", length.messages);
        println!("| copies sent besides | {copies} |");
        println!("| the consumer killed (SIGKILL) | {} times |", victim.kills);
        println!("| the database stopped | {} × {} s |", length.rounds, length.outage.as_secs());
        println!("| the broker stopped | {} × {} s |", length.rounds, length.outage.as_secs());
        println!("| the whole run | {} s |", begun.elapsed().as_secs());
        println!("| lost | {lost} |");
        println!("| doubled | {doubled} |");
        println!("| seed | {seed} |");
        assert_eq!((lost, doubled), (0, 0), "{}", victim.running);
    }
}
