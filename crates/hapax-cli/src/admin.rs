//! The admin listener of `run` and `relay`: `/live`, `/ready`, `/metrics`.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use hapax::{Code, Health, RelayHealth};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::admin::Admin;
use crate::trouble::Trouble;

/// Loops that have not turned for so long hang.
const LIVE_WITHIN: Duration = Duration::from_secs(30);
/// A broker with a memory alarm confirms nothing; its publisher gives up after 30 s, and others are tried.
const RELAY_LIVE_WITHIN: Duration = Duration::from_mins(2);

/// Whom to ask.
#[derive(Clone)]
pub(crate) struct Desk {
    consumers: Vec<(String, Health)>,
    relay: Option<RelayHealth>,
}

impl Desk {
    pub(crate) fn new(consumers: Vec<(String, Health)>, relay: Option<RelayHealth>) -> Self {
        Self { consumers, relay }
    }
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
    desk: Desk,
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
        .with_state(desk)
        .route("/metrics", get(render).with_state(metrics));
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

/// 200 while every consumer's loops turn, and the relay's.
async fn live(State(desk): State<Desk>) -> (StatusCode, String) {
    let hung = desk.consumers.iter().filter(|(_, health)| !health.is_live(LIVE_WITHIN));
    let relay = desk.relay.as_ref().filter(|relay| !relay.is_live(RELAY_LIVE_WITHIN)).map(|_| "the relay");
    let names: Vec<_> = hung
        .map(|(name, _)| name.as_str())
        .chain(relay)
        .map(|name| format!("{name}: its loops do not turn\n"))
        .collect();
    if names.is_empty() {
        return (StatusCode::OK, "live\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, names.concat())
}

/// 200 while every consumer takes messages at full speed and the relay can publish.
async fn ready(State(desk): State<Desk>) -> (StatusCode, String) {
    let lines = |(name, health): &(String, Health)| {
        health.impediments().into_iter().map(|text| format!("{name}: {text}\n")).collect::<Vec<_>>()
    };
    let relay = desk.relay.iter().flat_map(RelayHealth::impediments).map(|text| format!("relay: {text}\n"));
    let impediments: Vec<_> = desk.consumers.iter().flat_map(lines).chain(relay).collect();
    if impediments.is_empty() {
        return (StatusCode::OK, "ready\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, impediments.concat())
}

async fn render(State(metrics): State<PrometheusHandle>) -> String {
    metrics.render()
}
