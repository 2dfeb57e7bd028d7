//! The server's answers, taken apart. What does not have the expected form is nothing.

use redis::Value;

/// An entry of a stream: its id, how often it was delivered, and its fields in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) deliveries: u64,
    pub(crate) fields: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What was taken over from others.
#[derive(Debug, Default)]
pub(crate) struct Reclaimed {
    /// Where to go on; `0-0` at the end.
    pub(crate) next: String,
    pub(crate) entries: Vec<Entry>,
    /// Entries of the group that the stream does not have any more.
    pub(crate) deleted: u64,
}

/// The answer to XREADGROUP on one stream: entries that were never delivered before.
pub(crate) fn read(answer: Value) -> Vec<Entry> {
    let streams = match answer {
        Value::Map(streams) => streams.into_iter().map(|(_, entries)| entries).collect(),
        other => {
            array(other).into_iter().filter_map(|stream| array(stream).into_iter().nth(1)).collect::<Vec<_>>()
        }
    };
    streams.into_iter().flat_map(array).filter_map(new_entry).collect()
}

fn new_entry(entry: Value) -> Option<Entry> {
    let mut parts = array(entry).into_iter();
    Some(Entry { id: text(parts.next()?)?, deliveries: 1, fields: fields(parts.next()?) })
}

/// The answer of our script to the same end as XAUTOCLAIM.
pub(crate) fn reclaimed(answer: Value) -> Option<Reclaimed> {
    let mut parts = array(answer).into_iter();
    let (next, entries, deleted) = (text(parts.next()?)?, parts.next()?, number(&parts.next()?)?);
    Some(Reclaimed { next, entries: array(entries).into_iter().filter_map(counted_entry).collect(), deleted })
}

fn counted_entry(entry: Value) -> Option<Entry> {
    let mut parts = array(entry).into_iter();
    let (id, deliveries) = (text(parts.next()?)?, number(&parts.next()?)?);
    Some(Entry { id, deliveries, fields: fields(parts.next()?) })
}

fn fields(list: Value) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut list = array(list).into_iter();
    let mut fields = Vec::new();
    while let (Some(name), Some(value)) = (list.next().and_then(bytes), list.next().and_then(bytes)) {
        fields.push((name, value));
    }
    fields
}

/// An answer of names and values, as XINFO gives it in either version of the protocol.
pub(crate) struct Described(Vec<(Value, Value)>);

impl Described {
    pub(crate) fn of(answer: Value) -> Self {
        if let Value::Map(pairs) = answer {
            return Self(pairs);
        }
        let mut list = array(answer).into_iter();
        let mut pairs = Vec::new();
        while let (Some(name), Some(value)) = (list.next(), list.next()) {
            pairs.push((name, value));
        }
        Self(pairs)
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.get(name).cloned().and_then(text)
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.get(name).and_then(number)
    }

    /// The id of an entry, such as XINFO's `first-entry`.
    pub(crate) fn entry_id(&self, name: &str) -> Option<String> {
        array(self.get(name)?.clone()).into_iter().next().and_then(text)
    }

    fn get(&self, name: &str) -> Option<&Value> {
        let is = |key: &Value| {
            matches!(key, Value::BulkString(key) if key == name.as_bytes())
                || matches!(key, Value::SimpleString(key) if key == name)
        };
        self.0.iter().find(|(key, _)| is(key)).map(|(_, value)| value)
    }
}

pub(crate) fn array(value: Value) -> Vec<Value> {
    match value {
        Value::Array(values) | Value::Set(values) => values,
        _ => Vec::new(),
    }
}

pub(crate) fn text(value: Value) -> Option<String> {
    bytes(value).and_then(|bytes| String::from_utf8(bytes).ok())
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.into_bytes()),
        _ => None,
    }
}

pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// An entry's id as two numbers: milliseconds and a counter.
pub(crate) fn place(id: &str) -> Option<(u64, u64)> {
    let (time, counter) = id.split_once('-')?;
    Some((time.parse().ok()?, counter.parse().ok()?))
}
