//! What the service is, and whether it works. No auth.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::{Facade, envelope::Data};
use crate::domain::schedule::Zone;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A probe wants an answer now, also when the database does not give one.
const PATIENCE: Duration = Duration::from_millis(800);

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
    let answers = matches!(tokio::time::timeout(PATIENCE, facade.store.now()).await, Ok(Ok(_)));
    let status = if answers { "ok" } else { "degraded" };
    let data = Health { status, version: VERSION, db: answers, tzdb: Zone::tzdb_version() };
    if answers {
        return Data(data).into_response();
    }
    let error = json!({ "code": "internal", "message": "the database does not answer; alarms are safe in it", "retryable": true });
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ok": false, "data": data, "error": error }))).into_response()
}
