//! Reading and writing documents: integers are 64 bits, times whole microseconds by the server's clock.

use std::time::Duration;

use hapax_core::{ConsumerName, MessageId, micros};
use mongodb::bson::spec::BinarySubtype;
use mongodb::bson::{Binary, Bson, Document, doc};

use crate::error::{Result, spoilt};

/// Far enough from the largest integer that adding to it stays one: the server would go on with floating point.
const LONGEST: i64 = i64::MAX / 4;

/// The server's clock, in an aggregation.
pub(crate) fn now() -> Bson {
    doc! { "$multiply": [{ "$toLong": "$$NOW" }, 1_000_i64] }.into()
}

/// So much later than now.
pub(crate) fn after(wait: Duration) -> Bson {
    doc! { "$add": [now(), span(wait)] }.into()
}

/// So much earlier than now.
pub(crate) fn before(age: Duration) -> Bson {
    doc! { "$subtract": [now(), span(age)] }.into()
}

/// A duration in microseconds.
pub(crate) fn span(duration: Duration) -> i64 {
    micros(duration).min(LONGEST)
}

/// A value that is taken as it is, even where a text starts with `$`.
pub(crate) fn literal(value: impl Into<Bson>) -> Bson {
    doc! { "$literal": value.into() }.into()
}

/// Bytes.
pub(crate) fn binary(bytes: &[u8]) -> Bson {
    Binary { subtype: BinarySubtype::Generic, bytes: bytes.to_vec() }.into()
}

/// An integer that is always there.
pub(crate) fn int(document: &Document, field: &str) -> Result<i64> {
    maybe_int(document, field).ok_or_else(|| lacks(field))
}

/// An integer, or null.
pub(crate) fn maybe_int(document: &Document, field: &str) -> Option<i64> {
    match document.get(field) {
        Some(Bson::Int64(value)) => Some(*value),
        Some(Bson::Int32(value)) => Some((*value).into()),
        _ => None,
    }
}

/// A text that is always there.
pub(crate) fn text<'d>(document: &'d Document, field: &str) -> Result<&'d str> {
    document.get_str(field).map_err(|_| lacks(field))
}

/// A text, or null.
pub(crate) fn maybe_text(document: &Document, field: &str) -> Option<String> {
    document.get_str(field).ok().map(str::to_owned)
}

/// Bytes that are always there.
pub(crate) fn bytes(document: &Document, field: &str) -> Result<Vec<u8>> {
    document.get_binary_generic(field).cloned().map_err(|_| lacks(field))
}

/// Bytes, or null.
pub(crate) fn maybe_bytes(document: &Document, field: &str) -> Option<Vec<u8>> {
    document.get_binary_generic(field).ok().cloned()
}

/// Documents in an array.
pub(crate) fn documents<'d>(
    document: &'d Document,
    field: &str,
) -> impl Iterator<Item = &'d Document> + use<'d> {
    document.get_array(field).into_iter().flatten().filter_map(Bson::as_document)
}

/// A count that was stored from a `u32`.
pub(crate) fn small(count: i64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// An id that was stored, and therefore is one.
pub(crate) fn message_id(text: &str) -> Result<MessageId> {
    MessageId::new(text).map_err(|error| spoilt(error.to_string()))
}

/// A name that was stored, and therefore is one.
pub(crate) fn consumer_name(text: &str) -> Result<ConsumerName> {
    ConsumerName::new(text).map_err(|error| spoilt(error.to_string()))
}

fn lacks(field: &str) -> hapax_core::Error {
    spoilt(format!("a document of Hapax lacks `{field}`"))
}
