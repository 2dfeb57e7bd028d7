//! Requests about many deliveries at once: by tens, and looked at entry by entry.

use std::future::Future;
use std::time::Duration;

use aws_sdk_sqs::types::BatchResultErrorEntry;
use futures::StreamExt as _;
use futures::stream;
use hapax_core::Error;
use tokio::time::sleep;

use crate::error::{self, Setback};

/// The most entries of one request.
pub(crate) const MOST_ENTRIES: usize = 10;
/// The most requests at once.
const AT_ONCE: usize = 8;
/// Before what SQS failed by its own fault is tried once more.
pub(crate) const PAUSE: Duration = Duration::from_millis(100);

/// What became of one entry.
pub(crate) type Outcome = Result<(), Setback>;

/// Sends the entries 0 to `count` by tens, and once more those which SQS failed by its own fault. `send` answers with
/// an outcome per entry, in order; so does this.
pub(crate) async fn in_tens<F>(count: usize, send: impl Fn(Vec<usize>) -> F) -> Vec<Result<(), Error>>
where
    F: Future<Output = Vec<Outcome>>,
{
    let mut outcomes: Vec<Outcome> = (0..count).map(|_| Err(error::left_out())).collect();
    round((0..count).collect(), &send, &mut outcomes).await;
    let again: Vec<usize> = (0..count).filter(|entry| is_worth_another(&outcomes[*entry])).collect();
    if !again.is_empty() {
        sleep(PAUSE).await;
        round(again, &send, &mut outcomes).await;
    }
    outcomes.into_iter().map(|outcome| outcome.map_err(|setback| setback.error)).collect()
}

async fn round<F>(entries: Vec<usize>, send: &impl Fn(Vec<usize>) -> F, outcomes: &mut [Outcome])
where
    F: Future<Output = Vec<Outcome>>,
{
    let tens: Vec<Vec<usize>> = entries.chunks(MOST_ENTRIES).map(<[usize]>::to_vec).collect();
    let requests = tens.into_iter().map(|ten| {
        let sending = send(ten.clone());
        async move { (ten, sending.await) }
    });
    let mut answers = stream::iter(requests).buffer_unordered(AT_ONCE);
    while let Some((ten, answer)) = answers.next().await {
        for (entry, outcome) in ten.into_iter().zip(answer) {
            outcomes[entry] = outcome;
        }
    }
}

pub(crate) fn is_worth_another(outcome: &Outcome) -> bool {
    matches!(outcome, Err(setback) if setback.again)
}

/// Reads the answer to a request whose entries were called by their places, `"0"` and so on.
pub(crate) fn outcomes<'a>(
    count: usize,
    successful: impl Iterator<Item = &'a str>,
    failed: &[BatchResultErrorEntry],
    setback: impl Fn(&BatchResultErrorEntry) -> Setback,
) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = (0..count).map(|_| Err(error::left_out())).collect();
    let place = |id: &str| id.parse().ok().filter(|place: &usize| *place < count);
    for place in successful.filter_map(place) {
        outcomes[place] = Ok(());
    }
    for entry in failed {
        if let Some(place) = place(entry.id()) {
            outcomes[place] = Err(setback(entry));
        }
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn every_entry_has_its_own_result_and_what_sqs_failed_is_sent_once_more() {
        let requests = Mutex::new(Vec::new());
        let send = |ten: Vec<usize>| {
            let mut requests = requests.lock().unwrap();
            let first_time = requests.len() < 3;
            let outcome = |entry: &usize| match entry {
                7 if first_time => Err(error::left_out()),
                13 => Err(error::left_out()),
                21 => Err(Setback { error: error::expired(), again: false }),
                _ => Ok(()),
            };
            let outcomes: Vec<Outcome> = ten.iter().map(outcome).collect();
            requests.push(ten);
            async move { outcomes }
        };
        let results = in_tens(25, send).await;
        let failed: Vec<usize> = (0..25).filter(|entry| results[*entry].is_err()).collect();
        assert_eq!(failed, [13, 21]);
        let requests = requests.into_inner().unwrap();
        assert!(requests.iter().all(|ten| ten.len() <= MOST_ENTRIES));
        assert_eq!(requests[3..], [vec![7, 13]]);
    }

    #[test]
    fn an_entry_that_the_answer_leaves_out_is_not_done() {
        let failed = [BatchResultErrorEntry::builder().id("1").code("X").sender_fault(true).build().unwrap()];
        let outcomes = outcomes(3, ["0", "9", "x"].into_iter(), &failed, error::entry_not_settled);
        assert!(outcomes[0].is_ok());
        assert!(outcomes[1].as_ref().is_err_and(|setback| !setback.again));
        assert!(outcomes[2].as_ref().is_err_and(|setback| setback.again));
    }
}
