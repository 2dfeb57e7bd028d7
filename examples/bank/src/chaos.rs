//! A publisher on a bad day: it publishes messages twice, late, and out of order, but loses none.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use hapax::{Error, Outgoing, Publisher};

/// How long a message may be held back; its key's next one waits for it.
const HELD_BACK: Duration = Duration::from_millis(20);
/// How late a copy may come: long after what followed it.
const LATE: Duration = Duration::from_secs(2);

/// Publishes a share of all messages twice, and holds back another share.
///
/// What is held back is answered for only when it has been published: if the process is killed before, the outbox
/// still has it. A copy is nobody's loss, and comes when it comes.
pub(crate) struct Chaos<P> {
    inner: Arc<P>,
    share: f64,
    random: Mutex<Rng>,
}

impl<P: Publisher> Chaos<P> {
    /// A share of 0 leaves everything as it is.
    pub(crate) fn new(inner: P, share: f64, seed: u64) -> Self {
        Self { inner: Arc::new(inner), share, random: Mutex::new(Rng::with_seed(seed)) }
    }

    /// Whether a message is copied at once, copied later, and held back.
    fn draw(&self) -> (bool, Option<Duration>, bool) {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        let copied = random.f64() < self.share;
        let late = copied && random.bool();
        let wait = LATE.mul_f64(random.f64());
        (copied && !late, late.then_some(wait), random.f64() < self.share)
    }

    fn publish_later(&self, copy: Outgoing, wait: Duration) {
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            inner.publish(vec![copy]).await
        });
    }

    async fn send(&self, messages: Vec<(usize, Outgoing)>, answers: &mut [Result<(), Error>]) {
        let (places, messages): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
        for (place, answer) in places.into_iter().zip(self.inner.publish(messages).await) {
            if let Some(slot) = answers.get_mut(place) {
                *slot = answer;
            }
        }
    }
}

impl<P: Publisher> Publisher for Chaos<P> {
    async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
        if self.share <= 0.0 {
            return self.inner.publish(messages).await;
        }
        let mut answers: Vec<Result<(), Error>> = messages.iter().map(|_| Ok(())).collect();
        let (mut now, mut held_back, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        for (place, message) in messages.into_iter().enumerate() {
            let (at_once, later, is_held_back) = self.draw();
            if at_once {
                copies.push(message.clone());
            }
            if let Some(wait) = later {
                self.publish_later(message.clone(), wait);
            }
            if is_held_back { &mut held_back } else { &mut now }.push((place, message));
        }
        self.send(now, &mut answers).await;
        if !copies.is_empty() {
            self.inner.publish(copies).await; // one that fails is one duplicate less
        }
        if !held_back.is_empty() {
            tokio::time::sleep(HELD_BACK).await;
            held_back.reverse();
            self.send(held_back, &mut answers).await;
        }
        answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax::{Code, Envelope, ErrorKind};

    /// Notes what it is given; refuses what is called `bad`.
    #[derive(Clone, Default)]
    struct Notes(Arc<Mutex<Vec<String>>>);

    impl Publisher for Notes {
        async fn publish(&self, messages: Vec<Outgoing>) -> Vec<Result<(), Error>> {
            let mut notes = self.0.lock().unwrap();
            let answer = |message: Outgoing| {
                let refused = message.routing_key == "bad";
                notes.push(message.routing_key);
                if refused {
                    Err(Error::new(ErrorKind::Statement, Code::NotPublished, "bad"))
                } else {
                    Ok(())
                }
            };
            messages.into_iter().map(answer).collect()
        }
    }

    fn message(name: impl Into<String>) -> Outgoing {
        Outgoing::to_queue(name, Envelope::new("x"))
    }

    #[tokio::test(start_paused = true)]
    async fn everything_is_published_some_of_it_twice_and_in_another_order() {
        let notes = Notes::default();
        let chaos = Chaos::new(notes.clone(), 0.3, 7);
        let names: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        let answers = chaos.publish(names.iter().map(message).collect()).await;
        assert!(answers.iter().all(Result::is_ok));
        let first: Vec<String> = notes.0.lock().unwrap().clone();
        assert!(names.iter().all(|name| first.contains(name)), "what is answered for has been published");
        assert!(!first.is_sorted_by_key(|name| name.parse::<i32>().unwrap()));
        tokio::time::sleep(LATE).await;
        let copies = notes.0.lock().unwrap().len() - names.len();
        assert!((30..90).contains(&copies), "{copies}");
    }

    #[tokio::test(start_paused = true)]
    async fn each_answer_is_its_own_messages() {
        let chaos = Chaos::new(Notes::default(), 0.5, 7);
        let names = ["a", "bad", "b", "c", "bad", "d"];
        let answers = chaos.publish(names.iter().map(|name| message(*name)).collect()).await;
        for (name, answer) in names.iter().zip(answers) {
            assert_eq!(answer.is_err(), *name == "bad");
        }
    }
}
