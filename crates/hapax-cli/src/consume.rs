//! Makes a consumer of what the configuration says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hapax::sql::SqlStore;
use hapax::{
    AmbiguousPolicy, Batch, Body, BoxSource, ClaimRequest, Code, Consumer, ConsumerName, Destination, Error,
    ErrorKind, Format, Identity, Keep, Lines, Message, Order, Part, Pointer, Retry, SentAtRule, Source as _,
    Store as _, Strategy, TypeRule, UnknownType,
};

use crate::broker;
use crate::config::consumer::Consumer as Settings;
use crate::config::field::{self, Field, Id, Property, SentAt, TypeOf};
use crate::config::handler::{Handler, Http, Sql};
use crate::config::policy::{self, Ambiguous};
use crate::config::problem::{Place, Placed, Problem};
use crate::config::source::{Lines as LinesFrom, Source};
use crate::config::{Config, parameter::Parameter};
use crate::http::{Called, HttpCall};
use crate::open::placed;
use crate::sql::{Publishing, SqlHandler, SqlTarget, Unfit};
use crate::trouble::Trouble;

/// How long the database may take over a statement that it is only asked about.
const PROOF: Duration = Duration::from_secs(10);

/// A consumer as it comes out of a configuration.
pub(crate) type Configured<D> = Consumer<SqlStore<D>, BoxSource>;

/// What a consumer is made of beside its source.
pub(crate) struct Parts {
    format: Format,
    handlers: Vec<(String, Work)>,
}

/// What is done with the messages of a type.
enum Work {
    Sql(SqlHandler),
    Call(Arc<HttpCall>),
}

/// Asks the database about every statement of a consumer.
pub(crate) async fn parts<D: SqlTarget>(
    config: &Config,
    settings: &Settings,
    store: &SqlStore<D>,
) -> Result<Parts, Trouble> {
    let format = format(config, settings)?;
    let mut handlers = Vec::with_capacity(settings.on.len());
    for (kind, handler) in &settings.on {
        let work = match &handler.http {
            Some(http) => Work::Call(call(config, settings, http)?),
            None => Work::Sql(prove(config, handler, store).await?),
        };
        handlers.push((kind.clone(), work));
    }
    Ok(Parts { format, handlers })
}

/// Looks whether a consumer's calls can be made as they are configured; makes none.
pub(crate) fn check_calls(config: &Config, settings: &Settings) -> Result<(), Trouble> {
    let mut calls = settings.on.values().filter_map(|handler| handler.http.as_ref());
    calls.try_for_each(|http| call(config, settings, http).map(drop))
}

/// Asks whether a consumer's source can be consumed from; takes no message.
pub(crate) async fn check_source<D: SqlTarget>(
    config: &Config,
    settings: &Settings,
    store: &SqlStore<D>,
) -> Result<(), Trouble> {
    let checked = source(config, settings, store, false).await?.check().await;
    checked.map_err(|error| at_source(config, settings, error))
}

/// Opens a consumer's source, by which a broker begins to send it messages. With `declare` the broker is to have
/// what is read, if it has not.
pub(crate) async fn open_source<D: SqlTarget>(
    config: &Config,
    settings: &Settings,
    store: &SqlStore<D>,
    declare: bool,
) -> Result<BoxSource, Trouble> {
    let mut source = source(config, settings, store, declare).await?;
    let policy = &settings.policy;
    let batch = Batch { max: to_usize(policy.batch.max), wait: policy.batch.wait };
    let workers = to_usize(policy.concurrency.value);
    let in_flight = match policy.strategy.value {
        policy::Strategy::Eager => Batch::in_flight_eager(workers),
        _ => batch.in_flight(workers),
    };
    let opened = source.prepare(in_flight).await;
    opened.map_err(|error| at_source(config, settings, error))?;
    Ok(source)
}

/// Puts a consumer together.
pub(crate) fn build<D: SqlTarget>(
    config: &Config,
    settings: &Settings,
    store: &SqlStore<D>,
    source: BoxSource,
    parts: Parts,
) -> Result<Configured<D>, Trouble> {
    let policy = &settings.policy;
    let consumer = Consumer::new(&settings.name.value, store.clone(), source)
        .map_err(|error| placed(config, &settings.name, error))?
        .format(parts.format)
        .retry(retry(&policy.retry))
        .timeout(policy.timeout)
        .strategy(strategy(policy))
        .unknown_type(unknown_type(policy.unknown_type))
        .order(order(policy.order.value))
        .keep(keep(&policy.retention))
        .batch(to_usize(policy.batch.max))
        .batch_wait(policy.batch.wait)
        .concurrency(to_usize(policy.concurrency.value))
        .drain(config.admin.drain);
    let consumer = match dead_letters_to(settings) {
        Some(destination) => consumer.dead_letters_to(destination),
        None => consumer,
    };
    let handlers = parts.handlers.into_iter();
    Ok(handlers.fold(consumer, |consumer, (kind, work)| match work {
        Work::Sql(handler) => consumer.on_handler::<Body, _>(&kind, handler),
        Work::Call(call) => {
            let step = async move |message: Message<Body>| call.make(message).await;
            consumer.prepare(&kind, step).on_handler::<Body, _>(&kind, Called)
        }
    }))
}

fn call(config: &Config, settings: &Settings, http: &Placed<Http>) -> Result<Arc<HttpCall>, Trouble> {
    let name = ConsumerName::new(&settings.name.value)
        .map_err(|error| Error::new(ErrorKind::Setup, Code::ConfigWrongValue, error.to_string()));
    let call = name.and_then(|name| HttpCall::new(&name, http));
    call.map(Arc::new).map_err(|error| placed(config, http, error))
}

/// The configuration's checks let no eager consumer pass that has no lease.
fn strategy(policy: &policy::Policy) -> Strategy {
    match (policy.strategy.value, &policy.lease) {
        (policy::Strategy::Eager, Some(lease)) => Strategy::Eager { lease: **lease },
        _ => Strategy::Transactional,
    }
}

/// A queue of the broker that the consumer's own messages come from, or an embedded one.
fn dead_letters_to(settings: &Settings) -> Option<Destination> {
    let to = &settings.dead_letters.as_ref()?.to;
    let broker = settings.source.broker().map_or("", |broker| broker.value.as_str());
    Some(Destination::queue(&to.value).on(broker))
}

/// An error of a source, at its place in the file.
pub(crate) fn at_source(config: &Config, settings: &Settings, error: Error) -> Trouble {
    match (&settings.source, settings.source.broker()) {
        (Source::Topics { topics, .. }, _) if error.code() == Code::QueueMissing => {
            placed(config, topics, error)
        }
        (source, Some(broker)) => match (source.queue(), config.brokers.get(&broker.value)) {
            (Some(queue), _) if error.code() == Code::QueueMissing => placed(config, queue, error),
            (_, Some(broker)) => placed(config, &broker.at, error),
            (_, None) => placed(config, broker, error),
        },
        (Source::File(lines), None) => placed(config, lines, error),
        (source, None) => match source.queue() {
            Some(queue) => placed(config, queue, error),
            None => error.into(),
        },
    }
}

async fn source<D: SqlTarget>(
    config: &Config,
    settings: &Settings,
    store: &SqlStore<D>,
    declare: bool,
) -> Result<BoxSource, Trouble> {
    if let Some(source) = broker::source(config, settings, declare).await? {
        return Ok(source);
    }
    Ok(match &settings.source {
        Source::File(Placed { value: LinesFrom::File(path), .. }) => BoxSource::new(Lines::file(path)),
        Source::Embedded { queue } => BoxSource::new(store.queue(&queue.value)),
        _ => BoxSource::new(Lines::stdin()), // a source on a broker was opened above
    })
}

/// Asks the database about every statement of a handler.
async fn prove<D: SqlTarget>(
    config: &Config,
    handler: &Handler,
    store: &SqlStore<D>,
) -> Result<SqlHandler, Trouble> {
    let parameters: Vec<Parameter> =
        handler.params.values().map(|parameter| parameter.value.clone()).collect();
    let scope = ConsumerName::new("hapax.check").map_err(|error| {
        Trouble::usage(Code::ConfigWrongValue, error.to_string(), "This is a defect; please report it.")
    })?;
    // A table that somebody has locked would hold up the start for as long.
    let request = ClaimRequest { timeout: Some(PROOF), ..ClaimRequest::none(&scope) };
    let (mut tx, _) = store.begin_claim(&request).await?;
    let mut steps = Vec::with_capacity(handler.sql.len());
    for sql in &handler.sql {
        match D::prove(tx.conn(), &sql.run.value, &parameters).await {
            Ok(statement) => steps.push(crate::sql::Step {
                statement,
                expect_rows: sql.expect_rows,
                on_mismatch: sql.on_mismatch,
            }),
            Err(unfit) => {
                store.roll_back(tx).await;
                return Err(unfit_statement(config, sql, &unfit));
            }
        }
    }
    store.roll_back(tx).await;
    let publishes = handler.publish.iter().map(|publish| Publishing::new(publish, &parameters)).collect();
    let parameters = parameters.into_iter().map(|parameter| {
        let pointer =
            pointer(config, handler.params.get(&parameter.name).map(|found| found.place), &parameter.json)?;
        Ok((parameter, pointer))
    });
    Ok(SqlHandler::new(parameters.collect::<Result<_, Trouble>>()?, steps, publishes))
}

fn unfit_statement(config: &Config, sql: &Sql, unfit: &Unfit) -> Trouble {
    let (place, cure) = match unfit {
        Unfit::Refused(_) => (
            sql.run.place,
            "Mend the statement, or create what it names: `[store] setup` or your own migrations.",
        ),
        Unfit::Type { name, .. } => {
            let used = sql.uses.iter().find(|used| used.value == *name);
            (
                used.map_or(sql.run.place, |used| used.place),
                "Declare the parameter with the type that the column has.",
            )
        }
    };
    let problem = Problem::new(Code::StatementRefused, place, unfit.to_string()).help(cure);
    match config.origin.report(vec![problem]) {
        Some(report) => report.into(),
        None => Trouble::usage(Code::StatementRefused, unfit.to_string(), cure),
    }
}

fn format(config: &Config, settings: &Settings) -> Result<Format, Trouble> {
    let policy = &settings.policy;
    let mut format = Format::default()
        .identity(identity(config, settings)?)
        .kind(type_rule(config, settings)?)
        .max_payload(usize::try_from(policy.max_payload).unwrap_or(usize::MAX));
    if !settings.payload.is_whole() {
        format = format.payload(pointer(config, None, &settings.payload)?);
    }
    if let Some(key) = &settings.key {
        format = format.key(part(config, key.place, &key.value)?);
    }
    match settings.sent_at.as_ref().map(|rule| (rule.place, &rule.value)) {
        None => {}
        Some((_, SentAt::CloudEvents)) => format = format.sent_at(SentAtRule::CloudEvents),
        Some((_, SentAt::Field(Field::Property(Property::Timestamp)))) => {
            format = format.sent_at(SentAtRule::Timestamp);
        }
        Some((place, SentAt::Field(field))) => {
            format = format.sent_at(SentAtRule::Part(part(config, place, field)?));
        }
    }
    Ok(format)
}

fn identity(config: &Config, settings: &Settings) -> Result<Identity, Trouble> {
    let Id::Fields(fields) = &settings.id.value else {
        return Ok(match settings.id.value {
            Id::CloudEvents => Identity::cloudevents(),
            _ => Identity::standard(),
        });
    };
    let refuse = |error: hapax::NotAnIdentity| {
        placed(config, &settings.id, Error::new(ErrorKind::Setup, Code::NotAnIdentity, error.to_string()))
    };
    if let [field] = fields.as_slice() {
        return Identity::part(part(config, settings.id.place, field)?).map_err(refuse);
    }
    let parts =
        fields.iter().map(|field| part(config, settings.id.place, field).map(|part| part.to_string()));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    Identity::fields(parts.iter().map(String::as_str)).map_err(refuse)
}

fn type_rule(config: &Config, settings: &Settings) -> Result<TypeRule, Trouble> {
    Ok(match &settings.type_of.value {
        TypeOf::Standard => TypeRule::Standard,
        TypeOf::Always(kind) => TypeRule::Always(kind.clone()),
        TypeOf::CloudEvents => TypeRule::CloudEvents,
        TypeOf::Field(field) => TypeRule::Part(part(config, settings.type_of.place, field)?),
    })
}

fn part(config: &Config, place: Place, field: &Field) -> Result<Part, Trouble> {
    Ok(match field {
        Field::Header(name) => Part::Header(name.clone()),
        Field::Json(path) => Part::Json(pointer(config, Some(place), path)?),
        Field::Property(Property::MessageId) => Part::MessageIdProperty,
        Field::Property(Property::Type) => Part::TypeProperty,
        Field::Property(Property::Key) => Part::KeyProperty,
        Field::Property(Property::Timestamp) => {
            let problem =
                Problem::new(Code::ConfigWrongValue, place, "`property:timestamp` can only be `sent_at`");
            return Err(config.origin.report(vec![problem]).map_or_else(
                || Trouble::usage(Code::ConfigWrongValue, "`property:timestamp` can only be `sent_at`", ""),
                Trouble::from,
            ));
        }
    })
}

/// The configuration's pointers were checked when it was read.
fn pointer(config: &Config, place: Option<Place>, pointer: &field::Pointer) -> Result<Pointer, Trouble> {
    pointer.as_str().parse().map_err(|error: hapax::NotAPointer| {
        let place = crate::config::problem::Placed::new((), place.unwrap_or_default());
        placed(config, &place, Error::new(ErrorKind::Setup, Code::ConfigWrongValue, error.to_string()))
    })
}

fn retry(settings: &policy::Retry) -> Retry {
    Retry::exponential()
        .attempts(settings.attempts)
        .first(settings.first)
        .max(settings.max)
        .jitter(settings.jitter)
}

fn keep(settings: &policy::Retention) -> Keep {
    Keep::for_at_least(settings.keep)
        .slack(settings.slack)
        .every(settings.purge_every)
        .batch(settings.purge_batch)
        .ambiguous(match settings.ambiguous {
            Ambiguous::DeadLetter => AmbiguousPolicy::DeadLetter,
            Ambiguous::Process => AmbiguousPolicy::Process,
        })
}

fn unknown_type(policy: policy::UnknownType) -> UnknownType {
    match policy {
        policy::UnknownType::DeadLetter => UnknownType::DeadLetter,
        policy::UnknownType::Ignore => UnknownType::Ignore,
    }
}

fn order(order: policy::Order) -> Order {
    match order {
        policy::Order::None => Order::None,
        policy::Order::Key => Order::Key,
        policy::Order::Lane => Order::Lane,
    }
}

fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The retention of every consumer, for commands that purge by hand.
pub(crate) fn retentions(config: &Config) -> BTreeMap<String, Keep> {
    config.consumers.iter().map(|(name, settings)| (name.clone(), keep(&settings.policy.retention))).collect()
}
