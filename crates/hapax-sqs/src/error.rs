//! What SQS's refusals mean: the SDK's errors as [`hapax_core::Error`].

use std::error::Error as StdError;
use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::BatchResultErrorEntry;
use hapax_core::{BoxError, Code, Error, ErrorKind};

/// What a request met, as far as it decides what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// There is no such queue.
    Missing,
    /// The credentials, or what they may do.
    Refused,
    /// SQS is away, slow or throttling.
    Away,
    /// The request itself.
    Fault,
}

/// A request that failed.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(crate) meaning: Meaning,
    cause: BoxError,
}

impl Trouble {
    /// Whether SQS knows the credentials and refuses what was asked for.
    pub(crate) fn is_a_permission(&self) -> bool {
        self.meaning == Meaning::Refused && self.cause.to_string().starts_with("AccessDenied")
    }
}

/// Credentials and permissions. Only some of them come with the status 403.
const REFUSALS: [&str; 14] = [
    "AccessDenied",
    "AccessDeniedException",
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "KmsAccessDenied",
    "MissingAuthenticationToken",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
];
/// Their messages repeat parts of the request, keys among them.
const TELLTALE: [&str; 3] = ["IncompleteSignature", "InvalidSignatureException", "SignatureDoesNotMatch"];

impl<E> From<SdkError<E>> for Trouble
where
    E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
{
    fn from(error: SdkError<E>) -> Self {
        let meaning = match &error {
            SdkError::ServiceError(answer) => {
                let (code, status) =
                    (answer.err().code().unwrap_or("no code"), answer.raw().status().as_u16());
                let cause = sentence(code, answer.err().message()).into();
                return Self { meaning: meaning(code, status), cause };
            }
            _ if lacks_credentials(&error) => Meaning::Refused,
            SdkError::ConstructionFailure(_) => Meaning::Fault,
            _ => Meaning::Away,
        };
        Self { meaning, cause: error.into() }
    }
}

fn meaning(code: &str, status: u16) -> Meaning {
    if code.ends_with("NonExistentQueue") || code == "QueueDoesNotExist" {
        Meaning::Missing
    } else if REFUSALS.contains(&code) || matches!(status, 401 | 403) {
        Meaning::Refused
    } else if code.contains("Throttl") || status == 429 || status >= 500 {
        Meaning::Away
    } else {
        Meaning::Fault
    }
}

fn sentence(code: &str, message: Option<&str>) -> String {
    match message.and_then(|message| message.lines().next()) {
        Some(message) if !TELLTALE.contains(&code) => format!("{code}: {message}"),
        _ => code.to_owned(),
    }
}

/// Whether the provider of credentials says that there are none to be had, and not that it cannot tell now.
fn lacks_credentials(error: &(dyn StdError + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(reason) = error.downcast_ref::<CredentialsError>() {
            return matches!(
                reason,
                CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_)
            );
        }
        cause = error.source();
    }
    false
}

/// A value that was configured cannot be used.
pub(crate) fn misconfigured(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::Setup, Code::ConfigWrongValue, context.into())
}

/// A region that nobody named.
pub(crate) fn no_region() -> Error {
    let context = "no AWS region is set: name one in the configuration, or in the variable AWS_REGION";
    Error::new(ErrorKind::Setup, Code::ConfigMissingValue, context)
}

/// Credentials that nobody provides.
pub(crate) fn no_credentials() -> Error {
    let context = "there are no AWS credentials: configure a key, or let AWS's usual chain provide one";
    Error::new(ErrorKind::Setup, Code::BrokerRefused, context)
}

/// SQS did not answer in time.
pub(crate) fn no_answer(limit: Duration) -> Error {
    let context = format!("SQS did not answer within {limit:?}");
    Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context)
}

/// The queue cannot be looked at or received from.
pub(crate) fn queue(queue: &str, Trouble { meaning, cause }: Trouble) -> Error {
    let (kind, code, context) = match meaning {
        Meaning::Missing => (
            ErrorKind::Setup,
            Code::QueueMissing,
            format!("there is no queue \"{queue}\" for this account and region"),
        ),
        Meaning::Refused => {
            (ErrorKind::Setup, Code::BrokerRefused, format!("SQS refuses access to queue \"{queue}\""))
        }
        Meaning::Fault => (
            ErrorKind::Setup,
            Code::BrokerRefused,
            format!("SQS does not accept a request about queue \"{queue}\""),
        ),
        Meaning::Away => (
            ErrorKind::Unavailable,
            Code::BrokerUnavailable,
            format!("cannot reach queue \"{queue}\" of SQS"),
        ),
    };
    Error::new(kind, code, context).because(cause)
}

/// The broker as such cannot be asked.
pub(crate) fn broker(Trouble { meaning, cause }: Trouble) -> Error {
    match meaning {
        Meaning::Away => {
            Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, "cannot reach SQS").because(cause)
        }
        _ => Error::new(ErrorKind::Setup, Code::BrokerRefused, "SQS refused the request").because(cause),
    }
}

/// One entry of a batch that was not done, and whether to try it once more.
#[derive(Debug)]
pub(crate) struct Setback {
    pub(crate) error: Error,
    pub(crate) again: bool,
}

/// A delivery was not deleted, extended or handed back: the whole request failed.
pub(crate) fn settling(trouble: &Trouble) -> Setback {
    let again = trouble.meaning == Meaning::Away;
    let context = "a delivery could not be settled or extended";
    let error = match trouble.meaning {
        Meaning::Away => Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context),
        Meaning::Missing => Error::new(ErrorKind::NotFound, Code::QueueMissing, context),
        _ => Error::new(ErrorKind::Setup, Code::BrokerRefused, context),
    };
    Setback { error: error.because(trouble.cause.to_string()), again }
}

/// The same for one entry.
pub(crate) fn entry_not_settled(entry: &BatchResultErrorEntry) -> Setback {
    let said = sentence(entry.code(), entry.message());
    if entry.sender_fault() {
        let context =
            "the receipt of a delivery is no longer valid: its visibility has passed, or it is settled";
        return Setback {
            error: Error::new(ErrorKind::NotFound, Code::NotFound, context).because(said),
            again: false,
        };
    }
    let context = "a delivery could not be settled or extended";
    let error = Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context).because(said);
    Setback { error, again: true }
}

/// SQS's answer leaves an entry out.
pub(crate) fn left_out() -> Setback {
    let context = "SQS's answer says nothing of an entry of the request";
    Setback { error: Error::new(ErrorKind::Unavailable, Code::BrokerUnavailable, context), again: true }
}

/// The delivery is somebody else's by now, or will be.
pub(crate) fn expired() -> Error {
    Error::new(
        ErrorKind::NotFound,
        Code::NotFound,
        "the visibility of a delivery has passed: the message comes again",
    )
}

/// SQS keeps nothing from others for longer.
pub(crate) fn too_long_in_hand() -> Error {
    let context =
        "a delivery has been in hand for 12 hours, which is all that SQS allows: the message comes again";
    Error::new(ErrorKind::NotFound, Code::NotFound, context)
}

/// The message itself cannot be sent, whenever and wherever it is tried.
pub(crate) fn unsendable(reason: impl Into<String>) -> Error {
    let context = format!("the message cannot be sent to SQS: {}", reason.into());
    Error::new(ErrorKind::Statement, Code::NotPublished, context)
}

/// No message of the request was taken.
pub(crate) fn not_published(queue: &str, trouble: &Trouble) -> Setback {
    let Trouble { meaning, cause } = trouble;
    let (kind, code, context) = match meaning {
        Meaning::Missing => {
            (ErrorKind::NotFound, Code::NotPublished, format!("there is no queue \"{queue}\""))
        }
        Meaning::Refused => {
            (ErrorKind::Setup, Code::BrokerRefused, format!("SQS refuses messages for queue \"{queue}\""))
        }
        Meaning::Fault => (
            ErrorKind::Statement,
            Code::NotPublished,
            format!("SQS refused the message for queue \"{queue}\""),
        ),
        Meaning::Away => (
            ErrorKind::Unavailable,
            Code::NotPublished,
            format!("SQS did not say that queue \"{queue}\" took the message"),
        ),
    };
    let error = Error::new(kind, code, context).because(cause.to_string());
    Setback { error, again: *meaning == Meaning::Away }
}

/// One message of the request was not taken.
pub(crate) fn entry_not_published(queue: &str, entry: &BatchResultErrorEntry) -> Setback {
    let meaning = match meaning(entry.code(), 400) {
        Meaning::Fault if !entry.sender_fault() => Meaning::Away,
        meaning => meaning,
    };
    not_published(queue, &Trouble { meaning, cause: sentence(entry.code(), entry.message()).into() })
}

/// It would have overtaken an earlier message of its group.
pub(crate) fn behind(group: &str) -> Error {
    let context =
        format!("not sent: an earlier message of group \"{group}\" was not taken, and order is kept");
    Error::new(ErrorKind::Unavailable, Code::NotPublished, context)
}

/// The same error once more, for each entry of a batch that shares its fate.
pub(crate) fn again(error: &Error) -> Error {
    let copy = Error::new(error.kind(), error.code(), error.context().to_owned());
    match StdError::source(error) {
        Some(source) => copy.because(source.to_string()),
        None => copy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_statuses_have_a_meaning() {
        for (code, status, expected) in [
            ("AWS.SimpleQueueService.NonExistentQueue", 400, Meaning::Missing),
            ("QueueDoesNotExist", 400, Meaning::Missing),
            ("InvalidClientTokenId", 403, Meaning::Refused),
            ("UnrecognizedClientException", 400, Meaning::Refused),
            ("SomethingNew", 403, Meaning::Refused),
            ("ThrottlingException", 400, Meaning::Away),
            ("RequestThrottled", 400, Meaning::Away),
            ("InternalFailure", 500, Meaning::Away),
            ("InvalidParameterValue", 400, Meaning::Fault),
        ] {
            assert_eq!(meaning(code, status), expected, "{code}");
        }
    }

    #[test]
    fn a_message_about_a_signature_is_not_repeated() {
        assert_eq!(sentence("SignatureDoesNotMatch", Some("… AKIA … canonical …")), "SignatureDoesNotMatch");
        assert_eq!(sentence("AccessDenied", Some("not you\nand more")), "AccessDenied: not you");
    }

    #[test]
    fn an_entry_that_sqs_failed_by_its_own_fault_is_tried_again() {
        let entry = |sender_fault| {
            BatchResultErrorEntry::builder()
                .id("0")
                .code("InternalError")
                .sender_fault(sender_fault)
                .build()
                .unwrap()
        };
        assert!(entry_not_settled(&entry(false)).again && !entry_not_settled(&entry(true)).again);
        assert_eq!(entry_not_published("q", &entry(false)).error.kind(), ErrorKind::Unavailable);
        assert_eq!(entry_not_published("q", &entry(true)).error.kind(), ErrorKind::Statement);
    }
}
