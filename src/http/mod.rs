//! The facade: the agents' door. Every route on one page.
//!
//! Two layers of auth: the transport bearer says that the caller is one of our daemons, the principal token says for which
//! agent it speaks. A handler that needs an owner takes a [`auth::Caller`]; the owner goes into the WHERE clause.

mod alarms;
mod auth;
mod envelope;
mod health;
pub mod openapi;
mod problem;
mod query;
pub mod read;
pub mod schedules;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::{
    catch_panic::CatchPanicLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
};

use crate::{clock::Clock, config, store::Store};
pub use problem::Problem;

/// What handlers work with.
#[derive(Clone)]
pub struct Facade {
    store: Store,
    clock: Arc<dyn Clock>,
    auth: Arc<auth::Auth>,
    enrolment: config::Enrolment,
    /// Retries of an alarm that does not say otherwise.
    max_failures: u32,
}

impl Facade {
    pub fn new(store: Store, clock: Arc<dyn Clock>, api: &config::Api, max_failures: u32) -> Self {
        Self { store, clock, auth: Arc::new(auth::Auth::new(api)), enrolment: api.enrolment, max_failures }
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
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .with_state(facade)
}

pub async fn serve(listener: TcpListener, facade: Facade, stop: CancellationToken) -> std::io::Result<()> {
    axum::serve(listener, router(facade)).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// A handler that panics is our mistake and its caller's problem only.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    tracing::error!("a request handler panicked");
    Problem::internal().into_response()
}
