//! What the service is, and whether it works. No auth.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;
use tokio::{sync::Mutex, time::Instant};

use super::{Facade, envelope::Data};
use crate::{domain::schedule::Zone, store::Store};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A probe wants an answer now, also when the database does not give one.
const PATIENCE: Duration = Duration::from_millis(500);

/// An answer is good for all who ask within this time: anybody may ask, as often as they like.
const FRESH: Duration = Duration::from_millis(100);

/// Whether the database answers. Asked over a connection that serves no requests: a facade that is busy is not one without a database.
#[derive(Clone)]
pub struct Health {
    store: Store,
    /// When the last answer came, and what it was. Whoever asks holds it, and the others wait for the same answer.
    last: Arc<Mutex<Option<(Instant, bool)>>>,
}

impl Health {
    pub fn new(store: Store) -> Self {
        Self { store, last: Arc::default() }
    }

    async fn database_answers(&self) -> bool {
        let mut last = self.last.lock().await;
        if let Some((at, answered)) = *last
            && at.elapsed() < FRESH
        {
            return answered;
        }
        let answered = matches!(tokio::time::timeout(PATIENCE, self.store.now()).await, Ok(Ok(_)));
        *last = Some((Instant::now(), answered));
        answered
    }
}

pub async fn identity() -> impl IntoResponse {
    Data(json!({ "service": "chronosd", "version": VERSION, "health": "/healthz" }))
}

pub async fn health(State(facade): State<Facade>) -> Response {
    let tzdb = Zone::tzdb_version();
    if facade.health.database_answers().await {
        return Data(json!({ "status": "ok", "version": VERSION, "db": true, "tzdb": tzdb })).into_response();
    }
    let message = "the database does not answer; alarms are safe in it, and fire when it is back";
    let error = json!({ "code": "internal", "message": message, "retryable": true });
    let data = json!({ "status": "degraded", "version": VERSION, "db": false, "tzdb": tzdb });
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ok": false, "data": data, "error": error }))).into_response()
}
