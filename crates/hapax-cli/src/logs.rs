//! The program's own log, on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::config::log::LogFormat;

/// Starts logging; `HAPAX_LOG` filters, as in `HAPAX_LOG=hapax=debug`. Default: `info`.
pub(crate) fn start(format: LogFormat) {
    // A lost connection that comes back is no error; lapin would call it one, several times over.
    let filter =
        EnvFilter::try_from_env("HAPAX_LOG").unwrap_or_else(|_| EnvFilter::new("info,lapin=off,sqlx=warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Only an earlier subscriber could make this fail, and then that one logs.
    let _ = match format {
        LogFormat::Text => log.with_target(false).with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => log.json().try_init(),
    };
}
