//! The admin listener of `run`: `/live`, `/ready`, `/metrics`.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use hapax::{Code, Health};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::admin::Admin;
use crate::trouble::Trouble;

/// Loops that have not turned for so long hang.
const LIVE_WITHIN: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Desk {
    consumers: Vec<(String, Health)>,
    metrics: PrometheusHandle,
}

/// Installs the metrics recorder. Once, before the first consumer starts.
pub(crate) fn recorder() -> Result<PrometheusHandle, Trouble> {
    let handle = PrometheusBuilder::new().install_recorder().map_err(|error| {
        Trouble::usage(
            Code::UsageWrong,
            format!("metrics cannot be recorded: {error}"),
            "This is a defect; please report it.",
        )
    })?;
    hapax::metrics::describe();
    Ok(handle)
}

/// Serves until `done`. Answers with the address that is really listened on.
pub(crate) async fn serve(
    admin: &Admin,
    metrics: PrometheusHandle,
    consumers: Vec<(String, Health)>,
    done: CancellationToken,
) -> Result<(), Trouble> {
    let Some(listen) = &admin.listen else { return Ok(()) };
    let listener = TcpListener::bind(listen.value).await.map_err(|error| {
        let message = format!("the admin listener cannot listen on {}: {error}", listen.value);
        Trouble::usage(Code::ConfigWrongValue, message, "Choose another address for `admin.listen`.")
    })?;
    let upkeep = metrics.clone();
    let router = Router::new()
        .route("/live", get(live))
        .route("/ready", get(ready))
        .route("/metrics", get(render))
        .with_state(Desk { consumers, metrics });
    let stop = done.clone();
    tokio::spawn(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the admin listener ended");
        }
    });
    tokio::spawn(async move {
        while tokio::time::timeout(Duration::from_secs(5), done.cancelled()).await.is_err() {
            upkeep.run_upkeep();
        }
    });
    Ok(())
}

/// 200 while every consumer's loops turn.
async fn live(State(desk): State<Desk>) -> (StatusCode, String) {
    let hung: Vec<_> = desk.consumers.iter().filter(|(_, health)| !health.is_live(LIVE_WITHIN)).collect();
    if hung.is_empty() {
        return (StatusCode::OK, "live\n".to_owned());
    }
    let names: Vec<_> = hung.iter().map(|(name, _)| format!("{name}: its loops do not turn\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, names.concat())
}

/// 200 while every consumer takes messages at full speed.
async fn ready(State(desk): State<Desk>) -> (StatusCode, String) {
    let lines = |(name, health): &(String, Health)| {
        health.impediments().into_iter().map(|text| format!("{name}: {text}\n")).collect::<Vec<_>>()
    };
    let impediments: Vec<_> = desk.consumers.iter().flat_map(lines).collect();
    if impediments.is_empty() {
        return (StatusCode::OK, "ready\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, impediments.concat())
}

async fn render(State(desk): State<Desk>) -> String {
    desk.metrics.render()
}
