//! The facade: the agents' door. Every route on one page.
//!
//! Two layers of auth: the transport bearer says that the caller is one of our daemons, the principal token says for which
//! agent it speaks. A handler that needs an owner takes a [`auth::Caller`]; the owner goes into the WHERE clause.

pub mod alarms;
mod auth;
mod envelope;
mod health;
pub mod openapi;
mod problem;
mod query;
pub mod rate;
pub mod read;
mod request_id;
pub mod schedules;
pub mod server;
pub mod service_calls;
pub mod sessions;
mod turns;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;

use crate::{clock::Clock, config, store::Store};
pub use problem::Problem;
pub use sessions::stream::Streams;

/// What handlers work with.
#[derive(Clone)]
pub struct Facade {
    store: Store,
    health: health::Watch,
    clock: Arc<dyn Clock>,
    auth: Arc<auth::Auth>,
    enrolment: config::Enrolment,
    rate: Arc<rate::Rate>,
    turns: turns::Turns,
    /// Retries of an alarm that does not say otherwise.
    max_failures: u32,
    autonomy: config::Autonomy,
    streams: Arc<Streams>,
}

impl Facade {
    /// `watcher` has a connection of its own, with which it is seen whether the database answers.
    pub fn new(
        store: Store,
        watcher: Store,
        clock: Arc<dyn Clock>,
        api: &config::Api,
        max_failures: u32,
        autonomy: config::Autonomy,
        streams: Arc<Streams>,
    ) -> Self {
        Self {
            health: health::Watch::new(watcher),
            clock,
            auth: Arc::new(auth::Auth::new(api)),
            enrolment: api.enrolment,
            rate: Arc::new(rate::Rate::new(api.owner_rate)),
            turns: turns::Turns::new(store.most_connections()),
            max_failures,
            autonomy,
            streams,
            store,
        }
    }
}

pub fn router(facade: Facade) -> Router {
    let behind_transport = Router::new()
        .route("/v1/agent/auth/challenge", post(auth::challenge))
        .route("/v1/agent/auth/verify", post(auth::verify))
        .route("/v1/alarms", post(alarms::create::create).get(alarms::read::list))
        .route("/v1/alarms/bulk", post(alarms::bulk::bulk))
        .route("/v1/alarms/by-key/{idempotency_key}", put(alarms::create::put))
        .route("/v1/alarms/{id}", get(alarms::read::get).patch(alarms::edit::patch).delete(alarms::edit::cancel))
        .route("/v1/alarms/{id}/attempts", get(alarms::read::attempts))
        .route("/v1/alarms/{id}/pause", post(alarms::edit::pause))
        .route("/v1/alarms/{id}/resume", post(alarms::edit::resume))
        .route("/v1/alarms/{id}/fire", post(alarms::edit::fire))
        .route("/v1/alarms/{id}/rearm", post(alarms::edit::rearm))
        .route("/v1/schedules/preview", post(schedules::preview))
        .route("/v1/service-calls/{service_call_id}", put(service_calls::register).delete(service_calls::delete))
        .route("/v1/service-calls/{service_call_id}/timer", put(service_calls::schedule).get(service_calls::get))
        .route("/v1/timers", get(service_calls::trace))
        // Switched off, they are paths like any other that is not there.
        .merge(if facade.autonomy.enabled { of_sessions() } else { Router::new() })
        .route_layer(middleware::from_fn(query::refuse_on_writes))
        .route_layer(middleware::from_fn_with_state(facade.clone(), auth::transport));
    Router::new()
        .route("/", get(health::identity))
        .route("/healthz", get(health::health))
        .route("/openapi.json", get(openapi::served))
        .route("/docs", get(openapi::page::entrance))
        .route("/docs/", get(openapi::page::index))
        .route("/docs/{file}", get(openapi::page::asset))
        .merge(behind_transport)
        .fallback(|| async { Problem::no_such_path() })
        .method_not_allowed_fallback(|| async { Problem::wrong_method() })
        .layer(DefaultBodyLimit::max(envelope::BODY_CAP))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn(in_time))
        .layer(middleware::from_fn(request_id::carry))
        .with_state(facade)
}

fn of_sessions() -> Router<Facade> {
    Router::new()
        .route("/v1/sessions/{key}", get(sessions::get))
        .route("/v1/sessions/{key}/events", post(sessions::events::append).get(sessions::events::list))
        .route("/v1/sessions/{key}/checkpoints", post(sessions::checkpoints::store))
        .route("/v1/sessions/{key}/effects", get(sessions::effects::list))
        .route("/v1/sessions/{key}/effects/{id}/ack", post(sessions::effects::acknowledge))
        .route("/v1/sessions/{key}/stream", get(sessions::stream::open))
        .route("/v1/sessions/{key}/timers", get(sessions::timers::list))
        .route("/v1/sessions/{key}/timers/{timer_id}", get(sessions::timers::get).delete(sessions::timers::cancel))
}

/// A body may take 30 s to come; every question to the database ends in 10 s, and no request needs more than a few.
const DEADLINE: Duration = Duration::from_secs(40);

/// Until told to stop, and every request that is under way then has its answer.
pub async fn serve(listener: TcpListener, facade: Facade, door: server::Door, stop: CancellationToken) {
    server::serve(listener, router(facade), door, stop).await;
}

/// A handler that hangs is answered for.
async fn in_time(request: Request, next: Next) -> Response {
    tokio::time::timeout(DEADLINE, next.run(request)).await.unwrap_or_else(|_elapsed| {
        tracing::error!("a request was given up: no answer within {} s", DEADLINE.as_secs());
        Problem::unavailable().into_response()
    })
}

/// A handler that panics is our mistake and its caller's problem only.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    tracing::error!("a request handler panicked");
    Problem::internal().into_response()
}

#[cfg(test)]
mod tests {
    use axum::{
        body::{Body, to_bytes},
        http::StatusCode,
    };
    use serde_json::Value;
    use tower::ServiceExt;

    use super::*;

    /// What a handler that does not answer gets its caller.
    async fn answer(handler: axum::routing::MethodRouter) -> (StatusCode, String, Value) {
        let app = Router::new()
            .route("/", handler)
            .layer(CatchPanicLayer::custom(panicked))
            .layer(middleware::from_fn(in_time))
            .layer(middleware::from_fn(request_id::carry));
        let request = Request::get("/").header("x-request-id", "mine").body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        let (status, id) = (response.status(), response.headers()["x-request-id"].to_str().unwrap().to_owned());
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, id, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_that_hangs_is_answered_for() {
        let (status, id, body) = answer(get(std::future::pending::<()>)).await;
        assert_eq!((status, id.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "mine"));
        assert_eq!((&body["ok"], &body["error"]["code"]), (&Value::from(false), &Value::from("internal")));
        assert_eq!(body["error"]["retryable"], true);
    }

    #[tokio::test]
    async fn a_handler_that_panics_is_answered_for() {
        let (status, id, body) = answer(get(|| async { panic!("for the test") as () })).await;
        assert_eq!((status, id.as_str()), (StatusCode::INTERNAL_SERVER_ERROR, "mine"));
        assert_eq!((&body["ok"], &body["error"]["code"]), (&Value::from(false), &Value::from("internal")));
    }
}
