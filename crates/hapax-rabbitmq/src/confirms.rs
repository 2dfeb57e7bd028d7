//! What became of the messages of one channel, from the broker's confirms and returns.

use hapax_core::{Error, Outgoing};
use lapin::Confirmation;
use lapin::message::BasicReturnMessage;

use crate::error;

/// How the wait for one message's confirm ended.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Acked. lapin attaches the oldest return that it has, which may be another message's: acks come
    /// in any order and several at once.
    Acked(Option<Returned>),
    /// Nacked; a return is attached likewise.
    Nacked(Option<Returned>),
    /// Its confirm never came.
    Failed(Error),
    /// It was never sent.
    Unsendable(Error),
    /// The broker closed the channel, over this message or another one.
    ChannelClosed(lapin::Error),
}

impl Answer {
    /// Whether nothing more will come of the message.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Acked(_) | Self::Nacked(_) | Self::Unsendable(_))
    }
}

/// What became of one message.
#[derive(Debug)]
pub(crate) enum Outcome {
    Settled(Result<(), Error>),
    /// Nothing is known but that the channel was closed over it or another one.
    ChannelClosed(lapin::Error),
}

/// A message that the broker could route nowhere. It is acked as well, afterwards.
#[derive(Debug)]
pub(crate) struct Returned {
    exchange: String,
    routing_key: String,
    message_id: Option<String>,
    body: Vec<u8>,
    reply: String,
}

impl Returned {
    fn is(&self, message: &Outgoing) -> bool {
        self.routing_key == message.routing_key
            && self.exchange == message.destination
            && self.message_id == message.envelope.properties.message_id
            && self.body == message.envelope.body
    }
}

impl From<BasicReturnMessage> for Returned {
    fn from(returned: BasicReturnMessage) -> Self {
        Self {
            exchange: returned.delivery.exchange.as_str().to_owned(),
            routing_key: returned.delivery.routing_key.as_str().to_owned(),
            message_id: returned.delivery.properties.message_id().as_ref().map(|id| id.as_str().to_owned()),
            body: returned.delivery.data,
            reply: format!("{} {}", returned.reply_code, returned.reply_text),
        }
    }
}

impl From<Confirmation> for Answer {
    fn from(confirmation: Confirmation) -> Self {
        match confirmation {
            Confirmation::Ack(returned) => Self::Acked(returned.map(Into::into)),
            Confirmation::Nack(returned) => Self::Nacked(returned.map(Into::into)),
            Confirmation::NotRequested => Self::Failed(error::nacked()),
        }
    }
}

/// What became of each message, given an answer for each in the same order.
pub(crate) fn outcomes(messages: &[Outgoing], answers: Vec<Answer>) -> Vec<Outcome> {
    let in_doubt = in_doubt(&answers);
    let mut returned = Vec::new();
    let mut outcomes = Vec::with_capacity(answers.len());
    for answer in answers {
        outcomes.push(match answer {
            Answer::Acked(Some(message)) => {
                returned.push(message);
                in_doubt()
            }
            Answer::Acked(None) => Outcome::Settled(Ok(())),
            Answer::Nacked(message) => {
                returned.extend(message);
                Outcome::Settled(Err(error::nacked()))
            }
            Answer::Failed(cause) | Answer::Unsendable(cause) => Outcome::Settled(Err(cause)),
            Answer::ChannelClosed(cause) => Outcome::ChannelClosed(cause),
        });
    }
    attribute(&returned, messages, &mut outcomes);
    outcomes
}

/// What an ack that carried a return says of its own message, unless a return is found for that, too.
///
/// It is published if all acks have come, since then all returns have. As long as acks are missing, so
/// may be its own return, which a later ack would have carried.
fn in_doubt(answers: &[Answer]) -> impl Fn() -> Outcome + use<> {
    let closed = answers.iter().find_map(|answer| match answer {
        Answer::ChannelClosed(cause) => Some(cause.clone()),
        _ => None,
    });
    let all_answered = answers.iter().all(Answer::is_final);
    move || match &closed {
        Some(cause) => Outcome::ChannelClosed(cause.clone()),
        None if all_answered => Outcome::Settled(Ok(())),
        None => Outcome::Settled(Err(error::return_unknown())),
    }
}

/// Finds for each return the message it is of, by content. Two that are alike are interchangeable.
fn attribute(returned: &[Returned], messages: &[Outgoing], outcomes: &mut [Outcome]) {
    let mut taken = vec![false; messages.len()];
    for returned in returned {
        let place = (0..messages.len()).find(|&place| !taken[place] && returned.is(&messages[place]));
        let Some(place) = place else {
            tracing::warn!(routing_key = %returned.routing_key, "the broker returned a message that was not sent");
            continue;
        };
        taken[place] = true;
        let Returned { exchange, routing_key, reply, .. } = returned;
        outcomes[place] = Outcome::Settled(Err(error::unroutable(exchange, routing_key, reply)));
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::{Envelope, ErrorKind};

    use super::*;

    fn message(id: &str) -> Outgoing {
        Outgoing::to_queue(format!("to-{id}"), Envelope::new(id.to_owned()).with_id(id))
    }

    fn returned(id: &str) -> Returned {
        let (exchange, routing_key, body) = (String::new(), format!("to-{id}"), id.as_bytes().to_vec());
        Returned { exchange, routing_key, message_id: Some(id.into()), body, reply: "312 NO_ROUTE".into() }
    }

    fn kinds(outcomes: &[Outcome]) -> Vec<Option<ErrorKind>> {
        let kind = |outcome: &Outcome| match outcome {
            Outcome::Settled(Ok(())) => None,
            Outcome::Settled(Err(error)) => Some(error.kind()),
            Outcome::ChannelClosed(_) => Some(ErrorKind::Broken),
        };
        outcomes.iter().map(kind).collect()
    }

    #[test]
    fn a_return_belongs_to_its_message_and_not_to_the_ack_that_carried_it() {
        let messages = [message("a"), message("b"), message("c")];
        let answers =
            vec![Answer::Acked(Some(returned("c"))), Answer::Acked(Some(returned("b"))), Answer::Acked(None)];
        let outcomes = outcomes(&messages, answers);
        assert_eq!(kinds(&outcomes), [None, Some(ErrorKind::NotFound), Some(ErrorKind::NotFound)]);
    }

    #[test]
    fn two_messages_alike_share_the_returns_one_each() {
        let messages = [message("a"), message("a"), message("a")];
        let answers =
            vec![Answer::Acked(None), Answer::Acked(Some(returned("a"))), Answer::Acked(Some(returned("a")))];
        let failed = kinds(&outcomes(&messages, answers)).into_iter().flatten().count();
        assert_eq!(failed, 2);
    }

    #[test]
    fn an_ack_that_carried_another_return_proves_nothing_while_acks_are_missing() {
        let messages = [message("a"), message("b"), message("c")];
        let lost = Answer::Failed(error::confirm_timed_out(std::time::Duration::ZERO));
        let outcomes =
            outcomes(&messages, vec![lost, Answer::Acked(Some(returned("a"))), Answer::Acked(None)]);
        assert_eq!(kinds(&outcomes), [Some(ErrorKind::NotFound), Some(ErrorKind::Unavailable), None]);
    }
}
