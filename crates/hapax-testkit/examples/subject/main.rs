//! A consumer that tests kill: `subject STORE SOURCE [split] [forever] [eager]`.
//!
//! STORE is a store's URL; SOURCE is `file:PATH`, `queue:NAME` (in the store itself) or `BROKER-URL#NAME`.
//! Each message that takes effect leaves one row in the table `ledger`. With `split` the inbox row is
//! written in a transaction of its own: the mistake that the crash suite must find. With `forever` it runs
//! until SIGTERM, with a service's leases; otherwise it ends when nothing more comes, and takes soon what
//! another instance has left. With `eager` it calls the outside before each effect: it adds a line with the message's
//! id and the call's key to the file that `HAPAX_SUBJECT_CALLS` names.

mod ledger;
mod source;

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hapax::{
    BoxSource, CallRecords, Calls, Claim, ClaimRequest, Code, Consumer, ConsumerStore, Failure, Format,
    Handler, Identity, Message, MongoStore, MySqlStore, Part, PgStore, Retry, SqliteStore, Store, Strategy,
    TypeRule,
};
use hapax_testkit::delegate_roles;
use ledger::Ledger;
use serde::Deserialize;
use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// How long a message or call is a dead process's, under `eager`.
const LEASE: Duration = Duration::from_secs(1);

/// What a message asks the handler to do.
#[derive(Deserialize)]
struct Job {
    #[serde(rename = "do")]
    what: String,
}

/// Does what the message says, and notes it.
struct Worker;

impl Worker {
    async fn run<S: Ledger>(tx: &mut S::Tx, job: &Message<Job>) -> hapax::Result {
        S::note(tx, job.id().as_str()).await?;
        match job.what.as_str() {
            "fail once" if job.attempt() == 1 => Err("fails once".into()),
            "reject" => Err(Failure::reject("rejected")),
            "kill" => {
                kill();
                Ok(())
            }
            "overflow the stack" => Err(format!("{}", overflow(1)).into()),
            "take a while" => {
                // The time is what is tested: a handler that is still running when something ends.
                tokio::time::sleep(Duration::from_millis(300)).await;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// SIGKILL to itself, as the kernel's out-of-memory killer would.
fn kill() {
    let _ = std::process::Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
}

/// Recurses until the stack is spent.
#[expect(unconditional_recursion, reason = "that is its purpose")]
fn overflow(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 512]);
    overflow(frame[1] + 1) + frame[0]
}

impl<S: Ledger> Handler<S, Job> for Worker {
    async fn handle(&self, tx: &mut S::Tx, job: Message<Job>) -> hapax::Result {
        Self::run::<S>(tx, &job).await
    }
}

/// The mistake: the claim commits before the handler's transaction begins.
#[derive(Clone)]
struct SplitInbox<S>(S);

impl<S: ConsumerStore> Store for SplitInbox<S> {
    type Tx = S::Tx;

    async fn begin_claim(&self, request: &ClaimRequest<'_>) -> Result<(S::Tx, Vec<Claim>), hapax::Error> {
        let (tx, claims) = self.0.begin_claim(request).await?;
        self.0.finish(tx).await?;
        let (tx, _) = self.0.begin_claim(&ClaimRequest::none(request.consumer)).await?;
        Ok((tx, claims))
    }

    async fn finish(&self, tx: S::Tx) -> Result<(), hapax::Error> {
        self.0.finish(tx).await
    }

    async fn roll_back(&self, tx: S::Tx) {
        self.0.roll_back(tx).await;
    }

    async fn abort(&self, tx: S::Tx) {
        self.0.abort(tx).await;
    }

    fn kind_of(&self, error: &(dyn Error + 'static)) -> Option<(hapax::ErrorKind, Code)> {
        self.0.kind_of(error)
    }

    async fn ping(&self) -> Result<(), hapax::Error> {
        self.0.ping().await
    }

    async fn check(&self) -> Result<(), hapax::Error> {
        self.0.check().await
    }

    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn instance(&self) -> u64 {
        self.0.instance()
    }
}

delegate_roles!(SplitInbox<S>, 0);

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [store, source, form @ ..] = args.as_slice() else {
        eprintln!("subject STORE SOURCE [split] [forever] [eager]");
        return ExitCode::from(2);
    };
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let filter = Targets::new().with_default(Level::WARN).with_target("hapax", Level::INFO);
    tracing_subscriber::registry().with(log.with_filter(filter)).init();
    let says = |word: &str| form.iter().any(|said| said == word);
    let form = Form { split: says("split"), forever: says("forever"), eager: says("eager") };
    let ran = match store.split_once(':') {
        Some(("sqlite", _)) => run(SqliteStore::connect(store).await, store, source, form).await,
        Some(("mysql", _)) => run(MySqlStore::connect(store).await, store, source, form).await,
        Some(("mongodb", _)) => run(MongoStore::connect(store).await, store, source, form).await,
        _ => run(PgStore::connect(store).await, store, source, form).await,
    };
    match ran {
        Ok(summary) => {
            println!("{summary:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// How it consumes.
#[derive(Clone, Copy)]
struct Form {
    split: bool,
    forever: bool,
    eager: bool,
}

async fn run<S: Ledger + CallRecords>(
    store: Result<S, hapax::Error>,
    url: &str,
    source: &str,
    form: Form,
) -> Result<hapax::Summary, Box<dyn Error>> {
    let store = store?;
    store.prepare(url).await.map_err(|error| error.to_string())?;
    let patience = (!form.forever).then(|| Form::patience(source));
    let source = source::open(&store, source, form).await?;
    let calls = Calls::new("subject", store.clone())?.lease(LEASE)?;
    if form.split {
        run_to_end(consumer(SplitInbox(store), source, patience)?).await
    } else if form.eager {
        let outside = Outside::open()?;
        let step =
            async move |job: Message<Job>| {
                let of_job = calls.of(&job);
                of_job
                    .run("call", job.id().as_str(), async |key| {
                        Ok(outside.call(job.id().as_str(), key.as_str())?)
                    })
                    .await
            };
        let eager = Strategy::Eager { lease: LEASE };
        run_to_end(consumer(store, source, patience)?.strategy(eager).prepare("Job", step)).await
    } else {
        run_to_end(consumer(store, source, patience)?).await
    }
}

/// What is outside: a file that remembers every call.
#[derive(Clone)]
struct Outside(Arc<File>);

impl Outside {
    fn open() -> Result<Self, Box<dyn Error>> {
        let path = std::env::var("HAPAX_SUBJECT_CALLS")?;
        Ok(Self(Arc::new(OpenOptions::new().create(true).append(true).open(path)?)))
    }

    fn call(&self, id: &str, key: &str) -> std::io::Result<()> {
        (&*self.0).write_all(format!("{id} {key}\n").as_bytes())
    }
}

fn consumer<S: Ledger>(
    store: S,
    source: BoxSource,
    patience: Option<Duration>,
) -> Result<Consumer<S, BoxSource>, Box<dyn Error>> {
    let format = Format::default()
        .identity("json:/id".parse::<Identity>()?)
        .kind(TypeRule::Always("Job".to_owned()))
        .key(Part::Json("/key".parse()?));
    let mut consumer = Consumer::new("subject", store, source)?
        .format(format)
        .retry(
            Retry::exponential().attempts(3).first(Duration::from_millis(20)).max(Duration::from_millis(100)),
        )
        .batch(5)
        .concurrency(2)
        .on_handler::<Job, _>("Job", Worker);
    if let Some(patience) = patience {
        consumer = consumer.until_idle(patience);
    }
    Ok(consumer)
}

async fn run_to_end<S: Ledger>(consumer: Consumer<S, BoxSource>) -> Result<hapax::Summary, Box<dyn Error>> {
    Ok(consumer.run_until(terminated()).await?)
}

/// Asked for the first time when the consumer is set up, which it says then.
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    eprintln!("running");
    match signal(SignalKind::terminate()) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}
