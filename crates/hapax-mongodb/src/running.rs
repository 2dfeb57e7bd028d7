//! Messages in progress under a lease.
//!
//! Each step is a transaction of its own, since outside of one a write waits for whoever holds the document.

use std::collections::HashSet;
use std::time::Duration;

use futures::TryStreamExt as _;
use hapax_core::{Claim, ConsumerName, Fence, Grip, InboxState, Key, MessageId, Running, Timestamp, micros};
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};
use mongodb::options::ReturnDocument;

use crate::document::{after, binary, int, maybe_bytes, maybe_int, now};
use crate::error::{Answer, Result, answered, failed, is_rival, spoilt};
use crate::inbox::{Attempts, of_message};
use crate::look::{Found, Look};
use crate::session::Held;
use crate::store::MongoStore;
use crate::tables::scoped_all;

/// A message sent more recently cannot have been purged.
const PURGEABLE: Duration = Duration::from_secs(30);
/// What a row has only while it is running. Its fence stays, so that the next one is higher.
pub(crate) const LEASED: [&str; 3] = ["lease_until", "holder", "taken_over"];

/// How a message ends to be in progress.
#[derive(Clone, Copy, Debug)]
enum Ending<'r> {
    Done(Option<&'r [u8]>),
    Dropped,
}

impl Running for MongoStore {
    /// Two round trips; one more for a message whose order is kept or that comes from the waiting room, and one for a
    /// new one that was sent more than 30 s ago.
    async fn begin_running(
        &self,
        consumer: &ConsumerName,
        key: &Key,
        lease: Duration,
        slack: Duration,
    ) -> Result<Grip> {
        let key = Key { fence: None, ..key.clone() };
        let mut held = self.sessions().side().await?;
        let begun = self.begin_on(&mut held, consumer, &key, lease, slack).await;
        match held.end(begun).await {
            Ok(grip) => grip,
            Err(error) if is_rival(&error) => {
                self.end_orphans().await;
                Ok(Grip::Busy)
            }
            Err(error) => Err(failed("cannot begin a message")(error)),
        }
    }

    /// Two round trips; three if not all are ours. Those that a transaction holds are not, and then it is two or three
    /// for each.
    async fn renew_running(
        &self,
        consumer: &ConsumerName,
        running: &[(MessageId, Fence)],
        lease: Duration,
    ) -> Result<Vec<bool>> {
        let cannot = failed("cannot renew a lease");
        match self.renew_together(consumer, running, lease).await? {
            Err(error) if is_rival(&error) => {}
            renewed => return renewed.map_err(cannot),
        }
        let mut ours = Vec::with_capacity(running.len());
        for one in running.chunks(1) {
            match self.renew_together(consumer, one, lease).await? {
                Err(error) if is_rival(&error) => ours.push(false),
                renewed => ours.extend(renewed.map_err(&cannot)?),
            }
        }
        Ok(ours)
    }

    /// Two round trips.
    async fn end_running(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
        result: Option<&[u8]>,
    ) -> Result<bool> {
        self.end_as(consumer, id, fence, Ending::Done(result)).await
    }

    /// Three round trips.
    async fn drop_running(&self, consumer: &ConsumerName, id: &MessageId, fence: Fence) -> Result<bool> {
        self.end_as(consumer, id, fence, Ending::Dropped).await
    }
}

impl MongoStore {
    async fn begin_on(
        &self,
        held: &mut Held,
        consumer: &ConsumerName,
        key: &Key,
        lease: Duration,
        slack: Duration,
    ) -> Answer<Result<Grip>> {
        let mut found = Found::Free;
        if key.order.is_some() || key.place.is_some() {
            let look = match Look::at(self.tables(), held, consumer, std::slice::from_ref(key)).await? {
                Ok(look) => look,
                Err(error) => return Ok(Err(error)),
            };
            found = look.found(key);
            if !matches!(found, Found::Kept(_)) && look.taken(key, found, slack) == Claim::Held {
                return Ok(Ok(Grip::Held));
            }
        }
        let holder = ObjectId::new();
        let limit = held.limit();
        let begin = begin(key, lease, holder, found == Found::Waiting);
        let (session, fate) = held.parts();
        let row = self.tables().inbox.find_one_and_update(of_message(consumer, &key.id), begin);
        let row = row.upsert(true).return_document(ReturnDocument::After).projection(asked());
        let row = fate.watch(answered(limit, row.session(session))).await?.unwrap_or_default();
        if row.get_object_id("holder") != Ok(holder) {
            return Ok(elsewhere(key, &row));
        }
        let taken_over = row.get_bool("taken_over") == Ok(true);
        let is_new = !taken_over && found != Found::Waiting;
        let ambiguous = is_new && self.may_be_purged(held, consumer, key, &row, slack).await?;
        let other_payload = maybe_int(&row, "digest") != Some(key.digest.as_i64());
        let ours = |fence| Grip::Ours { fence: Fence(fence), taken_over, ambiguous, other_payload };
        Ok(int(&row, "fence").map(ours))
    }

    /// Whether a record of a message that is new may have been purged. One round trip, if it is old enough.
    async fn may_be_purged(
        &self,
        held: &mut Held,
        consumer: &ConsumerName,
        key: &Key,
        row: &Document,
        slack: Duration,
    ) -> Answer<bool> {
        let purgeable = maybe_int(row, "now").unwrap_or(i64::MAX).saturating_sub(micros(PURGEABLE));
        let Some(sent_at) = key.sent_at.filter(|sent_at| sent_at.as_micros() < purgeable) else {
            return Ok(false);
        };
        let limit = held.limit();
        let (session, fate) = held.parts();
        let horizon = self.tables().horizon.find_one(doc! { "_id": consumer.as_str() }).session(session);
        let horizon = fate.watch(answered(limit, horizon)).await?.and_then(|row| maybe_int(&row, "sent_at"));
        Ok(horizon.is_some_and(|horizon| sent_at <= Timestamp::from_micros(horizon).plus(slack)))
    }

    async fn renew_together(
        &self,
        consumer: &ConsumerName,
        running: &[(MessageId, Fence)],
        lease: Duration,
    ) -> Result<Answer<Vec<bool>>> {
        if running.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let mut held = self.sessions().side().await?;
        let renewed = self.renew_on(&mut held, consumer, running, lease).await;
        Ok(held.end(renewed).await)
    }

    async fn renew_on(
        &self,
        held: &mut Held,
        consumer: &ConsumerName,
        running: &[(MessageId, Fence)],
        lease: Duration,
    ) -> Answer<Vec<bool>> {
        let renew = |(id, fence): &(MessageId, Fence)| {
            let renew = doc! { "$set": { "lease_until": after(lease) } };
            doc! { "q": ours(consumer, id, *fence), "u": [renew] }
        };
        let inbox = &self.tables().inbox;
        let renewed = held.update_each(inbox, running.iter().map(renew).collect()).await?;
        if usize::try_from(renewed) == Ok(running.len()) {
            return Ok(vec![true; running.len()]);
        }
        let limit = held.limit();
        let these = scoped_all(consumer, running.iter().map(|(id, _)| id));
        let these = doc! { "_id": { "$in": these }, "state": InboxState::Running.as_i64() };
        let (session, fate) = held.parts();
        let rows = async {
            let found = inbox.find(these).projection(doc! { "fence": 1 });
            let mut cursor = found.session(&mut *session).await?;
            cursor.stream(session).try_collect::<Vec<Document>>().await
        };
        let rows = fate.watch(answered(limit, rows)).await?;
        let fenced: HashSet<(&str, i64)> = rows.iter().filter_map(fenced).collect();
        Ok(running.iter().map(|(id, fence)| fenced.contains(&(id.as_str(), fence.0))).collect())
    }

    /// Ends a message's being in progress, and says whether it was ours to end. Waits a while for a transaction that
    /// holds it.
    async fn end_as(
        &self,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
        ending: Ending<'_>,
    ) -> Result<bool> {
        let mut attempts = Attempts::default();
        loop {
            let mut held = self.sessions().side().await?;
            let ended = match ending {
                Ending::Done(result) => self.done_on(&mut held, ours(consumer, id, fence), result).await,
                Ending::Dropped => self.drop_on(&mut held, consumer, id, fence).await,
            };
            match held.end(ended).await {
                Ok(ended) => return Ok(ended),
                Err(error) if is_rival(&error) && attempts.again().await => {}
                Err(error) => return Err(failed("cannot end a message")(error)),
            }
        }
    }

    async fn done_on(&self, held: &mut Held, ours: Document, result: Option<&[u8]>) -> Answer<bool> {
        let limit = held.limit();
        let mut done = doc! { "state": InboxState::Done.as_i64(), "processed_at": now() };
        if let Some(result) = result {
            done.insert("result", binary(result));
        }
        let done = vec![doc! { "$set": done }, doc! { "$unset": LEASED.to_vec() }];
        let (session, fate) = held.parts();
        let ended = self.tables().inbox.update_one(ours, done).session(session);
        Ok(fate.watch(answered(limit, ended)).await?.matched_count == 1)
    }

    async fn drop_on(
        &self,
        held: &mut Held,
        consumer: &ConsumerName,
        id: &MessageId,
        fence: Fence,
    ) -> Answer<bool> {
        let limit = held.limit();
        let (inbox, ours) = (&self.tables().inbox, ours(consumer, id, fence));
        let here = doc! { "consumer": consumer.as_str(), "message": id.as_str() };
        let (session, fate) = held.parts();
        let waits = self.tables().waiting.find_one(here).projection(doc! { "_id": 1 }).session(&mut *session);
        if fate.watch(answered(limit, waits)).await?.is_none() {
            let gone = inbox.delete_one(ours).session(session);
            return Ok(fate.watch(answered(limit, gone)).await?.deleted_count == 1);
        }
        let wait = doc! { "$set": { "state": InboxState::Waiting.as_i64() } };
        let waits = inbox.update_one(ours, vec![wait, doc! { "$unset": LEASED.to_vec() }]).session(session);
        Ok(fate.watch(answered(limit, waits)).await?.matched_count == 1)
    }
}

/// Turns a row to running under this holder: one that is new, one whose lease has ended, or one that waits, where it
/// may. Any other stays as it is.
fn begin(key: &Key, lease: Duration, holder: ObjectId, may_wait: bool) -> Vec<Document> {
    let is = |state: InboxState| doc! { "$eq": ["$state", state.as_i64()] };
    let is_new = doc! { "$eq": [{ "$type": "$state" }, "missing"] };
    let has_ended = doc! { "$and": [is(InboxState::Running), { "$lte": ["$lease_until", now()] }] };
    let waits = doc! { "$and": [may_wait, is(InboxState::Waiting)] };
    let begun = |field: &str, value: Bson| doc! { "$cond": ["$is_free", value, format!("${field}")] };
    let fence = doc! { "$max": [cluster_time(), { "$add": [{ "$ifNull": ["$fence", 0_i64] }, 1_i64] }] };
    let digest = doc! { "$cond": ["$has_ended", "$digest", key.digest.as_i64()] };
    let begun = doc! {
        "state": begun("state", InboxState::Running.as_i64().into()),
        "digest": begun("digest", digest.into()),
        "sent_at": begun("sent_at", key.sent_at.map(Timestamp::as_micros).into()),
        "processed_at": begun("processed_at", now()),
        "fence": begun("fence", fence.into()),
        "lease_until": begun("lease_until", after(lease)),
        "holder": begun("holder", holder.into()),
        "taken_over": begun("taken_over", "$has_ended".into()),
    };
    vec![
        doc! { "$set": { "has_ended": has_ended.clone(), "is_free": { "$or": [is_new, has_ended, waits] } } },
        doc! { "$set": begun },
        doc! { "$unset": ["has_ended", "is_free"] },
    ]
}

/// The cluster's time as a number. It moves on with every write, so that no fence is given twice, even if the row was
/// removed in between.
fn cluster_time() -> Bson {
    let seconds = doc! { "$toLong": { "$tsSecond": "$$CLUSTER_TIME" } };
    doc! { "$add": [{ "$multiply": [seconds, 1_i64 << 24] }, { "$tsIncrement": "$$CLUSTER_TIME" }] }.into()
}

/// What is asked of a row that was to be begun.
fn asked() -> Document {
    let mut asked = doc! { "state": 1, "digest": 1, "fence": 1, "result": 1, "now": now() };
    asked.extend(LEASED.map(|field| (field.to_owned(), Bson::Int32(1))));
    asked
}

/// What stands in the way of a message that could not be begun.
fn elsewhere(key: &Key, row: &Document) -> Result<Grip> {
    let state = int(row, "state")?;
    let other_payload = int(row, "digest")? != key.digest.as_i64();
    Ok(match InboxState::from_i64(state) {
        Some(InboxState::Running) => {
            let left = int(row, "lease_until")?.saturating_sub(int(row, "now")?);
            let ends_in = Duration::from_micros(u64::try_from(left).unwrap_or(0));
            Grip::Running { other_payload, ends_in }
        }
        Some(InboxState::Done) => {
            Grip::Done { other_payload, result: maybe_bytes(row, "result").map(Into::into) }
        }
        Some(InboxState::Waiting) => Grip::Waiting { other_payload },
        Some(InboxState::Dead) => Grip::Dead { other_payload },
        _ => return Err(spoilt(format!("an inbox row has state {state}"))),
    })
}

/// The row of a message that is running under this fence.
fn ours(consumer: &ConsumerName, id: &MessageId, fence: Fence) -> Document {
    let mut ours = of_message(consumer, id);
    ours.extend(doc! { "state": InboxState::Running.as_i64(), "fence": fence.0 });
    ours
}

/// Which message a row is of, and its fence.
fn fenced(row: &Document) -> Option<(&str, i64)> {
    let id = row.get_document("_id").and_then(|id| id.get_str("message"));
    id.ok().zip(maybe_int(row, "fence"))
}
