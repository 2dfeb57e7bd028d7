//! What the subject to which a delivery is acked says about it.

use hapax_core::Timestamp;

/// `$JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<place>.<published>.<pending>`, in which newer servers
/// put a domain (`_` for none) and an account's hash before the stream, and more at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckSubject<'s> {
    pub(crate) domain: &'s str,
    pub(crate) stream: &'s str,
    /// How often the message was delivered, this time included.
    pub(crate) delivered: u64,
    /// The message's number in the stream.
    pub(crate) sequence: u64,
    /// When the stream took the message.
    pub(crate) published: Timestamp,
}

impl<'s> AckSubject<'s> {
    /// None if it is no such subject.
    pub(crate) fn parse(subject: &'s str) -> Option<Self> {
        let tokens: Vec<&str> = subject.strip_prefix("$JS.ACK.")?.split('.').collect();
        let (domain, rest) = match tokens.as_slice() {
            rest @ [_, _, _, _, _, _, _] => ("", rest),
            [domain, _account, rest @ ..] if rest.len() >= 7 => (*domain, rest),
            _ => return None,
        };
        let [stream, _consumer, delivered, sequence, _place, published, ..] = rest else { return None };
        let nanoseconds: i64 = published.parse().ok()?;
        Some(Self {
            domain: if domain == "_" { "" } else { domain },
            stream,
            delivered: delivered.parse().ok()?,
            sequence: sequence.parse().ok()?,
            published: Timestamp::from_micros(nanoseconds / 1_000),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_understood_and_nothing_else() {
        let expected = AckSubject {
            domain: "",
            stream: "ORDERS",
            delivered: 2,
            sequence: 42,
            published: Timestamp::from_micros(1_700_000_000_000_000),
        };
        let old = "$JS.ACK.ORDERS.orders.2.42.7.1700000000000000000.0";
        assert_eq!(AckSubject::parse(old), Some(expected));
        let new = "$JS.ACK._.hash.ORDERS.orders.2.42.7.1700000000000000000.0.token";
        assert_eq!(AckSubject::parse(new), Some(expected));
        let domain = "$JS.ACK.hub.hash.ORDERS.orders.2.42.7.1700000000000000000.0";
        assert_eq!(AckSubject::parse(domain), Some(AckSubject { domain: "hub", ..expected }));
        for other in ["_INBOX.a.b", "$JS.ACK.", "$JS.ACK.a.b.c.d.e.f.g"] {
            assert_eq!(AckSubject::parse(other), None, "{other}");
        }
    }
}
