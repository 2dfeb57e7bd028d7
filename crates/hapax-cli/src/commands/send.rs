//! `hapax send`: lines of a file into a queue.

use std::path::Path;
use std::process::ExitCode;

use hapax::sql::Dialect;
use hapax::{Broker, BrokerPublisher, Code, Envelope, Error, ErrorKind, Outgoing, Part, Pointer, Publisher};
use serde_json::json;

use crate::args::Send;
use crate::broker;
use crate::open::{self, AnyStore, Missing, with_sql_store, with_store};
use crate::out::say;
use crate::progress;
use crate::trouble::{FINDINGS, Trouble};

/// Messages handed over at a time.
const CHUNK: usize = 200;

/// Where the lines go.
enum Target {
    Broker(BrokerPublisher),
    Embedded(AnyStore),
}

/// Sends every line of a file.
pub(crate) async fn run(args: Send) -> Result<ExitCode, Trouble> {
    let bodies = read_lines(&args.file).await?;
    let messages = messages(&args, bodies)?;
    let target = target(&args).await?;
    let bar = progress::bar(messages.len() as u64, "sending");
    let (mut sent, mut refused) = (0_u64, Vec::<Error>::new());
    for chunk in messages.chunks(CHUNK) {
        match target.send(&args.queue, chunk).await {
            Ok(results) => {
                for result in results {
                    match result {
                        Ok(()) => sent += 1,
                        Err(error) => refused.push(error),
                    }
                }
            }
            Err(error) => refused.push(error),
        }
        bar.inc(chunk.len() as u64);
        if !refused.is_empty() {
            break; // what stopped one will stop the rest
        }
    }
    bar.finish_and_clear();
    target.close().await;
    let unsent = messages.len() as u64 - sent;
    if args.json {
        say!("{}", json!({ "sent": sent, "unsent": unsent }));
    } else {
        say!("{sent} sent to {}", args.queue);
    }
    match refused.into_iter().next() {
        None => Ok(ExitCode::SUCCESS),
        Some(error) if sent > 0 => {
            eprintln!("{unsent} not sent: {error}");
            Ok(ExitCode::from(FINDINGS))
        }
        Some(error) => Err(error.into()),
    }
}

async fn read_lines(file: &Path) -> Result<Vec<Vec<u8>>, Trouble> {
    let read = if file == Path::new("-") {
        let mut all = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut tokio::io::stdin(), &mut all).await.map(|_| all)
    } else {
        tokio::fs::read(file).await
    };
    let all = read.map_err(|error| {
        let context = format!("cannot read {}", file.display());
        Error::new(ErrorKind::Setup, Code::SourceUnreadable, context).because(error)
    })?;
    let lines = all.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    Ok(lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect())
}

fn messages(args: &Send, bodies: Vec<Vec<u8>>) -> Result<Vec<Envelope>, Trouble> {
    let id = args.id.as_deref().map(pointer).transpose()?;
    let kind = args.kind.as_deref().map(pointer).transpose()?;
    let mut messages: Vec<Envelope> = bodies
        .into_iter()
        .map(|body| {
            let mut envelope = Envelope::new(body);
            envelope.properties.message_id = id.as_ref().and_then(|part| find(part, &envelope));
            envelope.properties.kind = kind.as_ref().and_then(|part| find(part, &envelope));
            envelope
        })
        .collect();
    if args.twice {
        messages = messages.iter().flat_map(|message| [message.clone(), message.clone()]).collect();
    }
    if args.shuffle {
        fastrand::shuffle(&mut messages);
    }
    Ok(messages)
}

/// Lines that have no such field are sent all the same, without the property: what comes of them is the
/// consumer's to say.
fn find(part: &Part, envelope: &Envelope) -> Option<String> {
    part.find(envelope).ok().flatten().map(std::borrow::Cow::into_owned)
}

fn pointer(text: &str) -> Result<Part, Trouble> {
    text.parse::<Pointer>().map(Part::Json).map_err(|error| {
        Trouble::usage(Code::UsageWrong, format!("`{text}`: {error}"), "Give a JSON pointer such as /id.")
    })
}

async fn target(args: &Send) -> Result<Target, Trouble> {
    let url = args.store.clone().or_else(|| std::env::var("HAPAX_STORE").ok());
    let target = match (&args.broker, &args.config, &args.to, &url) {
        (Some(url), None, _, _) => Target::Broker(Broker::open(url).await?.publisher()),
        (_, Some(path), Some(name), _) => {
            let config = open::config(path)?;
            let Some(settings) = config.brokers.get(name) else {
                return Err(Trouble::usage(
                    Code::UsageWrong,
                    format!("the configuration has no broker `{name}`"),
                    "Name one that stands under [brokers].",
                ));
            };
            Target::Broker(broker::of(settings).await?.publisher())
        }
        (_, Some(path), None, _) => {
            let store = open::configured(&open::config(path)?, Missing::Create).await?;
            with_store!(&store, store => hapax::Store::check(store).await)?;
            Target::Embedded(store)
        }
        (None, None, _, Some(url)) => {
            let store = open::at_url(url, &args.schema, Missing::Create).await?;
            with_store!(&store, store => hapax::Store::check(store).await)?;
            Target::Embedded(store)
        }
        _ => {
            let cure =
                "Give --broker URL, --store URL, or --config FILE (with --to NAME for one of its brokers).";
            return Err(Trouble::usage(Code::UsageWrong, "no target is named", cure));
        }
    };
    if args.declare {
        target.declare(&args.queue).await?;
    }
    Ok(target)
}

impl Target {
    /// Makes the queue if it is not there; the embedded queue needs none.
    async fn declare(&self, queue: &str) -> Result<(), Error> {
        match self {
            Self::Broker(publisher) => publisher.declare(queue).await,
            Self::Embedded(_) => Ok(()),
        }
    }

    async fn send(&self, queue: &str, messages: &[Envelope]) -> Result<Vec<Result<(), Error>>, Error> {
        match self {
            Self::Broker(publisher) => {
                let outgoing = messages.iter().cloned().map(|envelope| Outgoing::to_queue(queue, envelope));
                Ok(publisher.publish(outgoing.collect()).await)
            }
            Self::Embedded(store) => {
                with_sql_store!(store, store => embed(store, queue, messages).await)?;
                Ok(messages.iter().map(|_| Ok(())).collect())
            }
        }
    }

    async fn close(&self) {
        match self {
            Self::Broker(publisher) => publisher.close().await,
            Self::Embedded(_) => {}
        }
    }
}

async fn embed<D: Dialect>(
    store: &hapax::sql::SqlStore<D>,
    queue: &str,
    messages: &[Envelope],
) -> Result<(), Error> {
    store.send(queue, messages).await
}
