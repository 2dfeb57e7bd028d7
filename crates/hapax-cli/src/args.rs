//! The command line. Its comments are the program's help, as a terminal shows it.
#![allow(clippy::doc_markdown)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand};

/// Idempotent consumers: each message takes effect once.
#[derive(Debug, Parser)]
#[command(
    name = "hapax",
    version,
    about,
    max_term_width = 100,
    after_help = "Exit codes: 0 ok, 1 findings, 2 usage or configuration, 3 unreachable."
)]
pub(crate) struct Args {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What the program does.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the consumers of a configuration file
    Run(Run),
    /// Create or update Hapax's tables
    Migrate(Migrate),
    /// Put lines of a file into a queue
    Send(Send),
    /// Look at, purge and rename a consumer's records
    #[command(subcommand)]
    Inbox(Inbox),
    /// List, show, redrive and discard dead letters
    #[command(subcommand)]
    Dead(Dead),
    /// Publish what is in the outbox, and nothing else
    Relay(Relay),
    /// List, show, unpark and discard messages that are to be published
    #[command(subcommand)]
    Outbox(Outbox),
    /// Measure protected against unprotected consumers, side by side
    Bench(Bench),
}

/// `hapax run`.
#[derive(Debug, ClapArgs)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Run {
    /// The configuration file
    #[arg(required_unless_present = "print_defaults")]
    pub(crate) config: Option<PathBuf>,
    /// Check the configuration, the servers and every statement, then end
    #[arg(long)]
    pub(crate) check: bool,
    /// Print the complete configuration with every default
    #[arg(long)]
    pub(crate) print_defaults: bool,
    /// End when source and waiting room have been empty this long, such as 2s
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) until_idle: Option<Duration>,
    /// Make queues, streams and groups that are read and are not there, with the broker's defaults
    #[arg(long)]
    pub(crate) declare: bool,
    /// Print the summary, or what --check found, as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Where the store is.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct StoreArgs {
    /// A configuration file, whose [store] is used
    #[arg(short, long, value_name = "FILE", conflicts_with = "store")]
    pub(crate) config: Option<PathBuf>,
    /// The store's URL, such as sqlite:hapax.db or postgres://host/database; else HAPAX_STORE
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// PostgreSQL's schema, or the tables' prefix, with --store
    #[arg(long, default_value = "hapax", conflicts_with = "config")]
    pub(crate) schema: String,
}

/// `hapax migrate`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Migrate {
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print the SQL instead of running it
    #[arg(long)]
    pub(crate) print: bool,
    /// Say what would be done, without doing it
    #[arg(long, conflicts_with = "print")]
    pub(crate) check: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax send`.
#[derive(Debug, ClapArgs)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Send {
    /// The file: each line is a body, byte for byte; `-` is standard input
    pub(crate) file: PathBuf,
    /// The queue
    #[arg(short, long)]
    pub(crate) queue: String,
    /// The broker's URL, such as amqp://localhost
    #[arg(long, value_name = "URL", conflicts_with_all = ["config", "store"])]
    pub(crate) broker: Option<String>,
    /// A configuration file: its [store], or with --to one of its [brokers]
    #[arg(short, long, value_name = "FILE", conflicts_with = "store")]
    pub(crate) config: Option<PathBuf>,
    /// A broker of the configuration file
    #[arg(long, value_name = "NAME", requires = "config")]
    pub(crate) to: Option<String>,
    /// The URL of the store that holds the embedded queue; else HAPAX_STORE
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// PostgreSQL's schema, or the tables' prefix, with --store
    #[arg(long, default_value = "hapax")]
    pub(crate) schema: String,
    /// Also set the message-id property, from this JSON pointer
    #[arg(long, value_name = "POINTER")]
    pub(crate) id: Option<String>,
    /// Also set the type property, from this JSON pointer
    #[arg(long = "type", value_name = "POINTER")]
    pub(crate) kind: Option<String>,
    /// Declare the queue on the broker if it is not there
    #[arg(long)]
    pub(crate) declare: bool,
    /// Send every line twice
    #[arg(long)]
    pub(crate) twice: bool,
    /// Send the lines in random order
    #[arg(long)]
    pub(crate) shuffle: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax inbox`.
#[derive(Debug, Subcommand)]
pub(crate) enum Inbox {
    /// Show the inbox row of a message
    Get(OneMessage),
    /// Tell everything that is known of a message
    Why(OneMessage),
    /// Remove the rows that are older than the retention, now
    Purge(Purge),
    /// Move a consumer's records to a new name
    Rename(Rename),
}

/// One message of a consumer.
#[derive(Debug, ClapArgs)]
pub(crate) struct OneMessage {
    /// The message id
    pub(crate) id: String,
    /// The consumer; with --config every consumer of the file if not given
    #[arg(long)]
    pub(crate) consumer: Option<String>,
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax inbox purge`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Purge {
    /// The consumer
    #[arg(long)]
    pub(crate) consumer: String,
    /// Keep rows this long; with --config the consumer's own retention if not given
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) keep: Option<Duration>,
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Do it without asking
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax inbox rename`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Rename {
    /// The consumer's present name
    pub(crate) from: String,
    /// Its new name, which must have no records
    pub(crate) to: String,
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Do it without asking
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax dead`.
#[derive(Debug, Subcommand)]
pub(crate) enum Dead {
    /// List dead letters
    List(DeadList),
    /// Show a dead letter whole
    Show(DeadShow),
    /// Move dead letters to the waiting room, to be handled again
    Redrive(Redrive),
    /// Remove dead letters for good
    Discard(Discard),
}

/// Which dead letters.
#[derive(Clone, Debug, ClapArgs)]
pub(crate) struct Which {
    /// Their numbers
    pub(crate) numbers: Vec<i64>,
    /// All of this consumer
    #[arg(long, conflicts_with = "numbers")]
    pub(crate) consumer: Option<String>,
    /// All with this reason, such as HX0041
    #[arg(long, value_name = "CODE", conflicts_with = "numbers")]
    pub(crate) reason: Option<String>,
}

/// `hapax dead list`.
#[derive(Debug, ClapArgs)]
pub(crate) struct DeadList {
    /// Of this consumer only
    #[arg(long)]
    pub(crate) consumer: Option<String>,
    /// With this reason only, such as HX0041
    #[arg(long, value_name = "CODE")]
    pub(crate) reason: Option<String>,
    /// With this message id only
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    pub(crate) limit: u32,
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print each as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax dead show`.
#[derive(Debug, ClapArgs)]
pub(crate) struct DeadShow {
    /// Its number
    pub(crate) number: i64,
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax dead redrive`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Redrive {
    /// Which
    #[command(flatten)]
    pub(crate) which: Which,
    /// The id for one that has none
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// Redrive so many first, and the rest only if all of them are handled
    #[arg(long, value_name = "N")]
    pub(crate) canary: Option<usize>,
    /// At most so many a second
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u32>,
    /// Wait until all are handled or dead again
    #[arg(long)]
    pub(crate) wait: bool,
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Do it without asking
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax dead discard`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Discard {
    /// Which
    #[command(flatten)]
    pub(crate) which: Which,
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Do it without asking
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax relay`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Relay {
    /// The configuration file; of it [store], [brokers] and [relay] are used
    pub(crate) config: PathBuf,
    /// End when nothing was due this long, such as 2s (25s later if a broker is away); exit code 1 if rows are left
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) until_idle: Option<Duration>,
    /// Print the summary as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax outbox`.
#[derive(Debug, Subcommand)]
pub(crate) enum Outbox {
    /// List messages that are to be published, with the reason why they were not
    List(OutboxList),
    /// Show one of them whole
    Show(OutboxShow),
    /// Make messages due now, parked ones above all
    Unpark(OutboxChange),
    /// Remove messages for good, unpublished
    Discard(OutboxChange),
}

/// `hapax outbox list`.
#[derive(Debug, ClapArgs)]
pub(crate) struct OutboxList {
    /// In this state only: unsent, parked or sent
    #[arg(long)]
    pub(crate) state: Option<String>,
    /// Only those that failed at least once
    #[arg(long)]
    pub(crate) failing: bool,
    /// Of this consumer, or producer, only
    #[arg(long)]
    pub(crate) consumer: Option<String>,
    /// Of this key only
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// With this message id only
    #[arg(long)]
    pub(crate) id: Option<String>,
    /// At most so many
    #[arg(long, default_value_t = 100)]
    pub(crate) limit: u32,
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print each as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax outbox show`.
#[derive(Debug, ClapArgs)]
pub(crate) struct OutboxShow {
    /// Its number
    pub(crate) number: i64,
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Print it as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax outbox unpark` and `discard`.
#[derive(Debug, ClapArgs)]
pub(crate) struct OutboxChange {
    /// Their numbers
    pub(crate) numbers: Vec<i64>,
    /// All that are parked
    #[arg(long, conflicts_with = "numbers")]
    pub(crate) parked: bool,
    /// Where the store is
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    /// Do it without asking
    #[arg(long)]
    pub(crate) yes: bool,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hapax bench`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Bench {
    /// The store's URL; tables of its own are made there and dropped afterwards
    #[arg(long, value_name = "URL", env = "HAPAX_STORE", hide_env_values = true)]
    pub(crate) store: String,
    /// A broker's URL: measures the relay beside the publisher it uses, and nothing else
    #[arg(long, value_name = "URL", conflicts_with = "only")]
    pub(crate) broker: Option<String>,
    /// Measures consumers of the broker, end to end, instead of the relay: beside one written on its client library
    #[arg(long, requires = "broker")]
    pub(crate) consume: bool,
    /// Measures HTTP requests with a key beside a handler without, and nothing else
    #[arg(long, conflicts_with = "broker")]
    pub(crate) http: bool,
    /// Messages of each row and round
    #[arg(long, default_value_t = 20_000)]
    pub(crate) messages: u32,
    /// Workers
    #[arg(long, default_value_t = 8)]
    pub(crate) workers: u32,
    /// Rounds, in alternation; the median counts
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: u32,
    /// Only these rows (and their baseline)
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Print the result as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}
