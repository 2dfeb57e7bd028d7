//! Error codes: one per cause, each with a page that says what happened, why, and what to do.

use std::fmt;
use std::str::FromStr;

macro_rules! codes {
    ($($name:ident = $code:literal, $summary:literal;)*) => {
        /// The code of an error, printed as `HX0007`; its page is under `docs/errors/`.
        ///
        /// Codes are stable across releases: a retired code is never given a second meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Code {
            $(
                #[doc = $summary]
                #[doc = ""]
                #[doc = concat!("Code `", $code, "`, page `docs/errors/", $code, ".md`.")]
                $name,
            )*
        }

        impl Code {
            /// Every code, in ascending order.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The printed form, such as `"HX0007"`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $code),* }
            }

            /// What happened, in one line.
            pub const fn summary(self) -> &'static str {
                match self { $(Code::$name => $summary),* }
            }

            /// The whole page, in Markdown: what happened, why, what to do.
            pub const fn page(self) -> &'static str {
                match self { $(Code::$name => include_str!(concat!("../errors/", $code, ".md"))),* }
            }
        }
    };
}

codes! {
    ConfigUnreadable = "HX0001", "The configuration file cannot be read or is not valid TOML";
    ConfigUnknownKey = "HX0002", "The configuration has a key that Hapax does not know";
    ConfigMissingValue = "HX0003", "A variable or file that the configuration names is missing";
    ConfigWrongValue = "HX0004", "A value in the configuration has the wrong type or lies outside its range";
    StatementParameter = "HX0005", "A statement and its declared parameters do not match";
    StatementRefused = "HX0006", "The database does not accept a configured statement";
    NotAvailable = "HX0007", "The configuration asks for something this build cannot do";
    ConfigVersion = "HX0008", "The configuration's version is not supported";
    NotAnIdentity = "HX0009", "The configured message id is not an identity";
    StoreUnavailable = "HX0010", "The store cannot be reached";
    StoreRefused = "HX0011", "The store refused the credentials or a permission";
    SchemaMissing = "HX0012", "The store's schema is missing or too old";
    SchemaTooNew = "HX0013", "The store's schema is newer than this release";
    StoreReadOnly = "HX0014", "The store takes no writes: it is read-only or full";
    BrokerUnavailable = "HX0015", "The broker cannot be reached";
    BrokerRefused = "HX0016", "The broker refused the credentials or a permission";
    QueueMissing = "HX0017", "The queue does not exist on the broker";
    SourceUnreadable = "HX0018", "The source cannot be read";
    NotPublished = "HX0019", "A message was not accepted by the broker";
    TooFewConnections = "HX0020", "The store has fewer connections than the consumer has workers";
    StoreBusy = "HX0021", "The store is locked by another transaction";
    StoreConflict = "HX0022", "The database ended a transaction to resolve a conflict";
    OutcomeUnknown = "HX0023", "It is unknown whether a commit took effect";
    StoreFailed = "HX0024", "The store answered a statement of Hapax with an error";
    PublicationInvalid = "HX0025", "A message cannot be published as it is given";
    PublisherMissing = "HX0026", "The relay has no broker of that name";
    IdMissing = "HX0030", "The message has no id";
    IdMalformed = "HX0031", "The message id cannot be used";
    IdsDisagree = "HX0032", "The message carries two different ids";
    TypeMissing = "HX0033", "The message has no type";
    TypeUnknown = "HX0034", "No handler is registered for the message's type";
    PayloadUndecodable = "HX0035", "The payload cannot be decoded";
    PayloadTooLarge = "HX0036", "The payload is larger than allowed";
    PayloadDiffers = "HX0037", "A message with the same id but another payload was seen before";
    Ambiguous = "HX0038", "The message may have been handled before its record was purged";
    ParameterInvalid = "HX0039", "A parameter is missing from the payload or has the wrong type";
    Rejected = "HX0040", "The handler rejected the message";
    AttemptsSpent = "HX0041", "The message failed as often as the retry policy allows";
    CrashedTooOften = "HX0042", "The message was being handled each time the process ended uncleanly";
    CallDiffers = "HX0043", "Another request was recorded under the label of a call";
    CallUnknown = "HX0044", "It is unknown whether a call to the outside took effect, and it may not be repeated";
    CallRefused = "HX0045", "The service that was called refused the request";
    CallFailed = "HX0046", "The service that was called gave no usable answer";
    TransactionBroken = "HX0050", "The transaction was no longer Hapax's at commit";
    HandlerPanicked = "HX0051", "The handler panicked";
    HandlerTimedOut = "HX0052", "The handler did not finish in time";
    HandlerFailed = "HX0053", "The handler failed";
    RowsMismatch = "HX0054", "A statement touched another number of rows than expected";
    NotFound = "HX0060", "There is no such message, dead letter or consumer";
    RedriveLost = "HX0061", "The dead letter was already redriven or discarded";
    ConfirmationNeeded = "HX0062", "The command changes something and was not confirmed";
    RedriveNeedsId = "HX0063", "A dead letter without an id can be redriven only under a new one";
    NameTaken = "HX0064", "The new consumer name already has records";
    UsageWrong = "HX0065", "The command's arguments do not fit together";
    TotalsWrong = "HX0070", "The totals in the table are not what the messages add up to";
    RequestKeyMissing = "HX0080", "The request has no Idempotency-Key";
    RequestKeyMalformed = "HX0081", "The Idempotency-Key is not one quoted string of 1 to 255 characters";
    RequestKeyReused = "HX0082", "The Idempotency-Key was used for another request";
    RequestRunning = "HX0083", "The first request with this Idempotency-Key is still running";
    RequestTenantUnknown = "HX0084", "The request does not say whose it is";
    RequestTooLarge = "HX0085", "The request's body is larger than allowed";
    RequestLengthUnknown = "HX0086", "The request does not say how long its body is";
    RequestUnreadable = "HX0087", "The request's body could not be read to its end";
    AnswerNotKept = "HX0088", "The request took effect, but its answer is not on record";
    RunUnknown = "HX0089", "An earlier run of this request ended without saying how";
    SignatureWrong = "HX0090", "No secret fits the webhook's signature";
    SignatureExpired = "HX0091", "The webhook was signed too long ago, or in the future";
    WebhookMalformed = "HX0092", "A header of the webhook is missing or malformed";
    EventIdMissing = "HX0093", "The webhook's event has no usable id";
    TransactionMisplaced = "HX0094", "The request's transaction is not where it belongs";
    AnswerTooLarge = "HX0095", "The answer is too large to be kept, and everything was rolled back";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Code {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text).ok_or(UnknownCode)
    }
}

/// The text is not one of the codes in [`Code::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown error code")]
pub struct UnknownCode;
