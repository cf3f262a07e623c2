//! What the service is, and whether it works. No auth.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::json;
use tokio::{sync::Mutex, time::Instant};
use utoipa::ToSchema;

use super::{Facade, envelope::Data};
use crate::{domain::schedule::Zone, store::Store};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A probe wants an answer now, also when the database does not give one.
const PATIENCE: Duration = Duration::from_millis(500);

/// An answer is good for all who ask within this time: anybody may ask, as often as they like.
const FRESH: Duration = Duration::from_millis(100);

/// Whether the database answers. Asked over a connection that serves no requests: a facade that is busy is not one without a database.
#[derive(Clone)]
pub struct Watch {
    store: Store,
    /// When the last answer came, and what it was. Whoever asks holds it, and the others wait for the same answer.
    last: Arc<Mutex<Option<(Instant, bool)>>>,
}

impl Watch {
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

#[derive(Serialize, ToSchema)]
pub struct Identity {
    service: &'static str,
    version: &'static str,
    /// Where to ask whether it works.
    health: &'static str,
}

#[derive(Serialize, ToSchema)]
pub struct Health {
    /// `ok` or `degraded`.
    status: &'static str,
    version: &'static str,
    /// Whether the database answers.
    db: bool,
    /// The version of the zone rules.
    tzdb: &'static str,
}

/// What this service is
#[utoipa::path(
    get, path = "/", tag = "service", operation_id = "identity",
    description = "Name and version, without auth.",
    responses((status = 200, description = "The service.", body = Identity)),
)]
pub async fn identity() -> Data<Identity> {
    Data(Identity { service: "chronosd", version: VERSION, health: "/healthz" })
}

/// Whether it works
///
/// Without auth, for probes and people. It asks the database, for less than a second.
#[utoipa::path(
    get, path = "/healthz", tag = "service", operation_id = "health",
    responses(
        (status = 200, description = "It works.", body = Health),
        (status = 503, description = "The database does not answer. Alarms are safe in it; `data` is there beside `error`."),
    ),
)]
pub async fn health(State(facade): State<Facade>) -> Response {
    let answers = facade.health.database_answers().await;
    let status = if answers { "ok" } else { "degraded" };
    let data = Health { status, version: VERSION, db: answers, tzdb: Zone::tzdb_version() };
    if answers {
        return Data(data).into_response();
    }
    let message = "the database does not answer; alarms are safe in it, and fire when it is back";
    let error = json!({ "code": "internal", "message": message, "retryable": true });
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ok": false, "data": data, "error": error }))).into_response()
}
