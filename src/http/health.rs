//! What the service is, and whether it works. No auth.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{Facade, envelope::Data};
use crate::domain::schedule::Zone;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// A probe wants an answer now, also when the database does not give one.
const PATIENCE: Duration = Duration::from_millis(800);

pub async fn identity() -> impl IntoResponse {
    Data(json!({ "service": "chronosd", "version": VERSION, "health": "/healthz" }))
}

pub async fn health(State(facade): State<Facade>) -> Response {
    let tzdb = Zone::tzdb_version();
    match tokio::time::timeout(PATIENCE, facade.store.now()).await {
        Ok(Ok(_)) => Data(json!({ "status": "ok", "version": VERSION, "db": true, "tzdb": tzdb })).into_response(),
        Ok(Err(_)) | Err(_) => {
            let error = json!({ "code": "internal", "message": "the database does not answer; alarms are safe in it", "retryable": true });
            let data = json!({ "status": "degraded", "version": VERSION, "db": false, "tzdb": tzdb });
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "ok": false, "data": data, "error": error })))
                .into_response()
        }
    }
}
