//! Port 9097: whether the process lives, whether it can do its work, and its metrics. `/livez` never asks the database:
//! restarting us does not mend Postgres. Neither does `/metrics`: they are most wanted when it is away.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::{
    net::TcpListener,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;

use super::metrics;
use crate::{domain::rfc3339, store::Store};

/// A database that takes longer than this to say whether dispatch is held is not ready for alarms.
const PATIENCE: Duration = Duration::from_secs(1);
/// Histograms keep every value until somebody looks. So that nobody's not looking fills the memory, we look as often as this. And so often
/// it is told whether the database is there: `/metrics` asks nobody, and what it shows is no older.
const UPKEEP: Duration = Duration::from_secs(5);
/// The text format that every Prometheus reads.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What readiness depends on.
#[derive(Clone)]
pub struct Readiness {
    pub store: Store,
    /// Set by the controller once it has listed its resources; true from the start without that role.
    pub controller: Arc<AtomicBool>,
}

/// The connection pools of this process, looked at when somebody scrapes.
#[derive(Clone, Default)]
pub struct Pools(Arc<Mutex<Vec<(&'static str, Store)>>>);

impl Pools {
    pub fn watch(&self, role: &'static str, store: &Store) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((role, store.clone()));
    }

    /// Whether the database has answered anybody lately.
    fn hear(&self, within: Duration) -> bool {
        let stores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stores.iter().any(|(_, store)| store.answered_within(within))
    }

    fn sample(&self) {
        for (role, store) in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let (idle, in_use) = store.connections();
            metrics::pool(role, idle, in_use);
        }
    }
}

pub async fn serve(
    listener: TcpListener,
    readiness: Readiness,
    pools: Pools,
    recorded: PrometheusHandle,
    stop: CancellationToken,
) -> std::io::Result<()> {
    // We have connected, or would not be here: no alert while a process starts.
    metrics::database_reachable(true);
    let upkeep = upkeep(recorded.clone(), pools.clone(), readiness.store.clone());
    let router = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready).with_state(readiness))
        .route("/metrics", get(scrape).with_state((pools, recorded)));
    let serving = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
    tokio::select! {
        ended = serving => ended,
        () = upkeep => unreachable!("upkeep has no end"),
    }
}

async fn ready(State(readiness): State<Readiness>) -> (StatusCode, String) {
    let unavailable = |why: &str| (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n"));
    let Ok(Ok(hold)) = tokio::time::timeout(PATIENCE, readiness.store.dispatch_hold()).await else {
        return unavailable("the database does not answer");
    };
    if !readiness.controller.load(Ordering::Relaxed) {
        return unavailable("the Alarm and Agent resources cannot be watched yet");
    }
    // Held is ready: whoever holds dispatch does not want the pods replaced.
    let told =
        hold.map(|hold| format!("dispatch is held by {} since {}\n", hold.by.escape_debug(), rfc3339(hold.since)));
    (StatusCode::OK, format!("ok\n{}", told.unwrap_or_default()))
}

async fn scrape(State((pools, recorded)): State<(Pools, PrometheusHandle)>) -> impl IntoResponse {
    pools.sample();
    ([(CONTENT_TYPE, TEXT_FORMAT)], recorded.render())
}

async fn upkeep(recorded: PrometheusHandle, pools: Pools, store: Store) {
    let mut looks = interval(UPKEEP);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        recorded.run_upkeep();
        metrics::database_reachable(is_reachable(&pools, &store).await);
    }
}

/// Asked only if nobody else has asked: a dispatcher does so every second.
async fn is_reachable(pools: &Pools, store: &Store) -> bool {
    pools.hear(UPKEEP) || tokio::time::timeout(PATIENCE, store.now()).await.is_ok_and(|answer| answer.is_ok())
}
