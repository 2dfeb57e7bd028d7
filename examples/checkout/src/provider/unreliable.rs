//! A server that breaks the connection instead of answering, where it is told to.

use std::sync::{Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::{IntoResponse as _, Response};
use fastrand::Rng;
use hapax::BoxError;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tower::ServiceExt as _;

/// Bad luck, for a share of all times.
pub(super) struct Chance {
    share: f64,
    random: Mutex<Rng>,
}

impl Chance {
    pub(super) fn new(share: f64, seed: u64) -> Self {
        Self { share, random: Mutex::new(Rng::with_seed(seed)) }
    }

    pub(super) fn is_bad(&self) -> bool {
        self.random.lock().unwrap_or_else(PoisonError::into_inner).f64() < self.share
    }
}

/// Marks an answer that never leaves.
#[derive(Clone, Copy)]
struct Lost;

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the answer is lost")]
struct Broken;

/// An answer that the client will not get.
pub(super) fn lost() -> Response {
    axum::Extension(Lost).into_response()
}

/// Serves until it cannot listen any more.
pub(super) async fn serve(listener: TcpListener, routes: Router) -> Result<(), BoxError> {
    loop {
        let (stream, _) = listener.accept().await?;
        let routes = routes.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(routes.clone(), request));
            // It fails when an answer is lost, and when a client hangs up.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

async fn answer(routes: Router, request: Request<Incoming>) -> Result<Response, Broken> {
    let Ok(answer) = routes.oneshot(request.map(Body::new)).await; // a router has no errors
    if answer.extensions().get::<Lost>().is_some() { Err(Broken) } else { Ok(answer) }
}
