//! The program's own log, on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::config::log::LogFormat;

/// The variable that filters, as in `HAPAX_LOG=hapax=debug`.
const VARIABLE: &str = "HAPAX_LOG";
/// A lost connection that comes back is no error; lapin would call it one, several times over.
const USUAL: &str = "info,lapin=off,sqlx=warn,async_nats=warn";

/// Starts logging, at `info` unless `HAPAX_LOG` says otherwise.
pub(crate) fn start(format: LogFormat) {
    let wanted = std::env::var(VARIABLE).unwrap_or_else(|_| USUAL.to_owned());
    let filter = wanted.parse::<Targets>();
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = match format {
        LogFormat::Text => log.with_target(false).with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => log.json().boxed(),
    };
    let usual = || USUAL.parse().unwrap_or_default();
    let filtered = filter.as_ref().map_or_else(|_| usual(), Clone::clone);
    // Only an earlier subscriber could make this fail, and then that one logs.
    let _ = tracing_subscriber::registry().with(log.with_filter(filtered)).try_init();
    if let Err(error) = filter {
        tracing::warn!(
            "{VARIABLE}={wanted} is no filter ({error}), so it is not used; write it like {VARIABLE}={USUAL}"
        );
    }
}
