//! The attempt to take messages.
//!
//! A document that a rival has written and not committed answers a write at once, with an error that ends the whole
//! transaction and does not say which document it was. So a batch that meets a rival finds out whom it met by trial
//! transactions on halves of it, and begins again without those.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use futures::TryStreamExt as _;
use hapax_core::{Claim, ClaimRequest, ConsumerName, Error, Key, Timestamp};
use mongodb::bson::{Document, doc};

use crate::error::{Answer, Result, answered, failed, is_rival, is_stale};
use crate::look::{Found, Kept, Look, kept, on_record};
use crate::running::LEASED;
use crate::session::Held;
use crate::store::MongoStore;
use crate::tables::{scoped, scoped_all};

/// How often a batch begins anew, each time without those it met. After that it takes what it never met anybody at.
const ROUNDS: usize = 5;
/// How many trial transactions a round may make. Who is not found out by then is busy with all that are suspected.
const TRIALS: usize = 64;

/// What a try to take the keys came to.
enum Taking {
    /// The keys are taken, as far as they can be.
    Taken(Look, Vec<Found>),
    /// A rival has one of these, given by their indexes.
    Rivals(Vec<usize>),
}

impl MongoStore {
    /// A transaction in which the keys are taken.
    pub(crate) async fn claim(&self, request: &ClaimRequest<'_>) -> Result<(Held, Vec<Claim>)> {
        let mut held = self.sessions().main().await?;
        if request.keys.is_empty() {
            return Ok((held, Vec::new()));
        }
        let claims = match self.take_in_rounds(&mut held, request).await {
            Ok(claims) => self.confirmed(request, claims).await,
            Err(error) => Err(error),
        };
        match claims {
            Ok(claims) => {
                if claims.contains(&Claim::Busy) {
                    self.end_orphans().await;
                }
                Ok((held, claims))
            }
            Err(error) => {
                held.roll_back().await;
                Err(error)
            }
        }
    }

    async fn take_in_rounds(&self, held: &mut Held, request: &ClaimRequest<'_>) -> Result<Vec<Claim>> {
        let cannot = failed("cannot claim messages");
        let mut busy = HashSet::new();
        let mut met = HashSet::new();
        let mut stale = false;
        for round in 0.. {
            match self.take(held, request.consumer, request.keys, &busy).await {
                Ok(taking) => match taking? {
                    Taking::Taken(look, found) => return Ok(claims(request, &look, &found, &busy)),
                    Taking::Rivals(suspects) => {
                        held.restart().await.map_err(&cannot)?;
                        busy.extend(self.rivals(held, request, &suspects).await.map_err(&cannot)?);
                        met.extend(suspects);
                    }
                },
                // Nothing was begun on the server yet, or it is undone: once more on a fresh connection.
                Err(error) if is_stale(&error) && !stale => {
                    stale = true;
                    held.restart().await.map_err(&cannot)?;
                }
                Err(error) => return Err(cannot(error)),
            }
            if round >= ROUNDS {
                busy.extend(&met);
            }
        }
        unreachable!("the last round takes nothing that anybody was met at, and so ends")
    }

    /// Looks and takes what can be taken, but for those that are known to be busy. Two round trips; one more for each
    /// further kind if new, waiting and running messages are among them.
    async fn take(
        &self,
        held: &mut Held,
        consumer: &ConsumerName,
        keys: &[Key],
        busy: &HashSet<usize>,
    ) -> Answer<Result<Taking>> {
        let look = match Look::at(self.tables(), held, consumer, keys).await? {
            Ok(look) => look,
            Err(error) => return Ok(Err(error)),
        };
        let found: Vec<Found> = keys.iter().map(|key| look.found(key)).collect();
        let wanted = wanted(keys, &found, busy);
        match self.write(held, consumer, keys, &found, &wanted, look.now).await {
            Ok(()) => Ok(Ok(Taking::Taken(look, found))),
            Err(error) if is_rival(&error) => Ok(Ok(Taking::Rivals(wanted))),
            Err(error) => Err(error),
        }
    }

    /// Writes the rows of the wanted keys, given by their indexes.
    pub(crate) async fn write(
        &self,
        held: &mut Held,
        consumer: &ConsumerName,
        keys: &[Key],
        found: &[Found],
        wanted: &[usize],
        now: i64,
    ) -> Answer<()> {
        let limit = held.limit();
        let of = |kind: Found| {
            wanted.iter().filter(move |index| found[**index] == kind).map(|index| &keys[*index])
        };
        let new: Vec<Document> = of(Found::Free).map(|key| row(consumer, key, now)).collect();
        if !new.is_empty() {
            let (session, fate) = held.parts();
            fate.watch(answered(limit, self.tables().inbox.insert_many(new).session(session))).await?;
        }
        let waiting = scoped_all(consumer, of(Found::Waiting).map(|key| &key.id));
        if !waiting.is_empty() {
            let take = doc! { "$set": { "state": 0_i64, "processed_at": now } };
            let (session, fate) = held.parts();
            let taken =
                self.tables().inbox.update_many(doc! { "_id": { "$in": waiting } }, take).session(session);
            fate.watch(answered(limit, taken)).await?;
        }
        let running: Vec<Document> = of(Found::Running).map(|key| over(consumer, key, now)).collect();
        if !running.is_empty() {
            held.update_each(&self.tables().inbox, running).await?;
        }
        Ok(())
    }

    /// Which of the suspects a rival has, of whom it has at least one. Leaves a transaction with nothing in it.
    async fn rivals(
        &self,
        held: &mut Held,
        request: &ClaimRequest<'_>,
        suspects: &[usize],
    ) -> Answer<Vec<usize>> {
        let mut busy = Vec::new();
        let mut trials = 0;
        let mut ranges: Vec<_> = std::iter::once(0..suspects.len()).collect();
        while let Some(range) = ranges.pop() {
            if range.len() <= 1 || trials >= TRIALS {
                busy.extend(&suspects[range]);
                continue;
            }
            for half in halves(&range) {
                trials += 1;
                if self.meets_rival(held, request, &suspects[half.clone()]).await? {
                    ranges.push(half);
                }
            }
        }
        Ok(busy)
    }

    /// Whether a rival has one of these, by trying.
    async fn meets_rival(
        &self,
        held: &mut Held,
        request: &ClaimRequest<'_>,
        tried: &[usize],
    ) -> Answer<bool> {
        let keys: Vec<Key> = tried.iter().map(|index| request.keys[*index].clone()).collect();
        let taking = self.take(held, request.consumer, &keys, &HashSet::new()).await?;
        held.restart().await?;
        Ok(matches!(taking, Ok(Taking::Rivals(_))))
    }

    /// Whether a claim of this key would succeed, by trying. Leaves a transaction with nothing in it.
    pub(crate) async fn would_take(
        &self,
        held: &mut Held,
        consumer: &ConsumerName,
        key: &Key,
    ) -> Answer<Result<bool>> {
        let taking = self.take(held, consumer, std::slice::from_ref(key), &HashSet::new()).await?;
        held.restart().await?;
        Ok(taking.map(|taking| match taking {
            Taking::Taken(look, found) => !matches!(found[..], [Found::Kept(_)]) && !look.is_held(key),
            Taking::Rivals(_) => false,
        }))
    }

    /// Answers that let a copy be acked are read once more from a majority: the snapshot holds what the primary has
    /// committed, and a new primary may not have it. What is not there yet is busy. One round trip if there are any.
    async fn confirmed(&self, request: &ClaimRequest<'_>, claims: Vec<Claim>) -> Result<Vec<Claim>> {
        let on_record = |claim: &Claim| !claim.is_ours() && *claim != Claim::Busy;
        let kept: Vec<_> = request.keys.iter().zip(&claims).filter(|(_, claim)| on_record(claim)).collect();
        if kept.is_empty() {
            return Ok(claims);
        }
        let rows = self.rows(request.consumer, kept.iter().map(|(key, _)| *key)).await?;
        let confirm = |(key, claim): (&Key, Claim)| match rows.get(key.id.as_str()) {
            _ if !on_record(&claim) => claim,
            Some(row) if crate::look::on_record(key, *row) == claim => claim,
            _ => Claim::Busy,
        };
        Ok(request.keys.iter().zip(claims).map(confirm).collect())
    }

    async fn rows<'k>(
        &self,
        consumer: &ConsumerName,
        keys: impl Iterator<Item = &'k Key>,
    ) -> Result<HashMap<String, Kept>> {
        let cannot = failed("cannot see whether a message is on record");
        let these = doc! { "_id": { "$in": scoped_all(consumer, keys.map(|key| &key.id)) } };
        let rows = async {
            let found = self.tables().inbox.find(these).projection(doc! { "state": 1, "digest": 1 });
            found.await?.try_collect::<Vec<Document>>().await
        };
        let rows = answered(self.sessions().limit(), rows).await.map_err(cannot)?;
        rows.iter().map(kept).collect::<Result<_, Error>>()
    }
}

/// The indexes of the keys to take, sorted by id: of several batches that overlap, one gets all of its own.
fn wanted(keys: &[Key], found: &[Found], busy: &HashSet<usize>) -> Vec<usize> {
    let free = |index: &usize| !matches!(found[*index], Found::Kept(_)) && !busy.contains(index);
    let mut wanted: Vec<usize> = (0..keys.len()).filter(free).collect();
    wanted.sort_unstable_by(|a, b| keys[*a].id.cmp(&keys[*b].id));
    wanted
}

fn claims(request: &ClaimRequest<'_>, look: &Look, found: &[Found], busy: &HashSet<usize>) -> Vec<Claim> {
    let answer = |(index, (key, found)): (usize, (&Key, &Found))| match found {
        Found::Kept(row) => on_record(key, *row),
        _ if busy.contains(&index) => Claim::Busy,
        _ => look.taken(key, *found, request.slack),
    };
    request.keys.iter().zip(found).enumerate().map(answer).collect()
}

fn row(consumer: &ConsumerName, key: &Key, now: i64) -> Document {
    doc! {
        "_id": scoped(consumer, &key.id),
        "state": 0_i64,
        "digest": key.digest.as_i64(),
        "sent_at": key.sent_at.map(Timestamp::as_micros),
        "processed_at": now,
    }
}

/// The update that takes a running row over.
fn over(consumer: &ConsumerName, key: &Key, now: i64) -> Document {
    let taken = doc! { "state": 0_i64, "digest": key.digest.as_i64(), "processed_at": now };
    doc! { "q": { "_id": scoped(consumer, &key.id) }, "u": [{ "$set": taken }, { "$unset": LEASED.to_vec() }] }
}

fn halves(range: &Range<usize>) -> [Range<usize>; 2] {
    let middle = range.start + range.len() / 2;
    [range.start..middle, middle..range.end]
}
