//! `hapax relay`: publishes what is in the outbox, and nothing else.

use std::process::ExitCode;
use std::time::Duration;

use hapax::sql::{Dialect, SqlStore};
use hapax::{Outbox as _, OutboxFilter, OutboxState, RelaySummary, Store as _};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, Desk};
use crate::args::Relay;
use crate::config::Config;
use crate::open::{self, Missing, with_sql_store};
use crate::out::say;
use crate::relay::relay_of;
use crate::trouble::{FINDINGS, Trouble};
use crate::{logs, shutdown};

/// Relays until a signal comes, or until nothing is due.
pub(crate) async fn run(args: Relay) -> Result<ExitCode, Trouble> {
    let config = open::config(&args.config)?;
    logs::start(config.log.format);
    let store = open::configured(&config, Missing::Refuse).await?;
    with_sql_store!(store, store => relay(&config, &store, &args).await)
}

async fn relay<D: Dialect>(config: &Config, store: &SqlStore<D>, args: &Relay) -> Result<ExitCode, Trouble> {
    store.check().await?;
    let mut relay = relay_of(config, store).await?;
    if let Some(silence) = args.until_idle {
        relay = relay.until_idle(silence);
    }
    let done = CancellationToken::new();
    let desk = Desk::new(Vec::new(), Some(relay.health()));
    admin::serve(&config.admin, admin::recorder()?, desk, done.clone()).await?;
    let summary = relay.run_until(shutdown::on_signal().cancelled_owned()).await;
    done.cancel();
    let left = left(store).await?;
    print_summary(&summary?, left, args.json);
    let was_to_empty_it = args.until_idle.is_some();
    Ok(if was_to_empty_it && left > 0 { ExitCode::from(FINDINGS) } else { ExitCode::SUCCESS })
}

/// How many rows are unsent or parked.
pub(crate) async fn left<D: Dialect>(store: &SqlStore<D>) -> Result<u64, Trouble> {
    let mut left = 0;
    for state in [OutboxState::Unsent, OutboxState::Parked] {
        left += store.count_outbox(&OutboxFilter { state: Some(state), ..OutboxFilter::default() }).await?;
    }
    Ok(left)
}

fn print_summary(summary: &RelaySummary, left: u64, as_json: bool) {
    let RelaySummary { published, refused, parked, .. } = summary;
    if as_json {
        let counts = json!({ "published": published, "refused": refused, "parked": parked, "left": left });
        say!("{counts}");
        return;
    }
    say!("{published} published, {refused} refused, {parked} parked");
    if left > 0 {
        say!("{left} are in the outbox; `hapax outbox list` tells why");
    }
}

/// How long a run that ends lets its relay look for what is due.
pub(crate) const LAST_LOOK: Duration = Duration::from_millis(100);
