//! When the program is asked to end.

use tokio_util::sync::CancellationToken;

/// A token that is cancelled by SIGTERM or SIGINT. A second signal ends the process at once, which is
/// safe at any moment.
pub(crate) fn on_signal() -> CancellationToken {
    let token = CancellationToken::new();
    let asked = token.clone();
    tokio::spawn(async move {
        next_signal().await;
        asked.cancel();
        next_signal().await;
        std::process::exit(130);
    });
    token
}

#[cfg(unix)]
async fn next_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

#[cfg(not(unix))]
async fn next_signal() {
    let _ = tokio::signal::ctrl_c().await;
}
