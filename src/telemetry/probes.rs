//! Port 9097: whether the process lives and whether it can do its work. `/livez` never asks the database: restarting us
//! does not mend Postgres.

use std::{
    sync::Arc,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::store::Store;

/// A database that takes longer than this to say the time is not ready for alarms.
const PATIENCE: Duration = Duration::from_secs(1);

/// What readiness depends on.
#[derive(Clone)]
pub struct Readiness {
    pub store: Store,
    /// Set by the controller once it has listed its resources; true from the start without that role.
    pub controller: Arc<AtomicBool>,
}

pub async fn serve(listener: TcpListener, readiness: Readiness, stop: CancellationToken) -> std::io::Result<()> {
    let router =
        Router::new().route("/livez", get(|| async { "ok\n" })).route("/readyz", get(ready)).with_state(readiness);
    axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn ready(State(readiness): State<Readiness>) -> (StatusCode, &'static str) {
    let database = tokio::time::timeout(PATIENCE, readiness.store.now()).await;
    if !matches!(database, Ok(Ok(_))) {
        return (StatusCode::SERVICE_UNAVAILABLE, "the database does not answer\n");
    }
    if !readiness.controller.load(Ordering::Relaxed) {
        return (StatusCode::SERVICE_UNAVAILABLE, "the Alarm and Agent resources cannot be watched yet\n");
    }
    (StatusCode::OK, "ok\n")
}
