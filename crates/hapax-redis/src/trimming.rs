//! Whether a stream lost entries before the group had read them.

use redis::Value;

use crate::reply::{Described, array, place};

/// How many entries between the group's place and the stream's first entry are gone, as far as the server counts
/// (from 7.0 on).
pub(crate) fn trimmed(stream: Value, groups: Value, group: &str) -> Option<u64> {
    let stream = Described::of(stream);
    let group = array(groups)
        .into_iter()
        .map(Described::of)
        .find(|described| described.text("name").as_deref() == Some(group))?;
    let read_up_to = place(&group.text("last-delivered-id")?)?;
    let first = stream.entry_id("first-entry").and_then(|id| place(&id));
    if first.is_some_and(|first| read_up_to >= first) {
        return Some(0); // what is gone was read
    }
    let last = place(&stream.text("last-generated-id")?)?;
    if read_up_to >= last {
        return Some(0);
    }
    // Everything that is there is unread, so what the group lags behind beyond that is gone.
    Some(group.number("lag")?.saturating_sub(stream.number("length")?))
}
