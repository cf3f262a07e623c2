//! The facade described for programs and people: OpenAPI 3.1, served at `/openapi.json`, printed by `chronosd openapi`, shown at
//! `/docs`.
//!
//! | what | where |
//! |---|---|
//! | an operation's name, words and own answers | above its handler (`#[utoipa::path]`) |
//! | what bodies and answers hold | on the very structs that are read and written (`ToSchema`) |
//! | what a field may hold | [`fields`] |
//! | what a body's fields do not say one by one | [`bodies`] |
//! | what stands in paths, queries and headers | [`parameters`] |
//! | auth, envelope, headers and failures, by rule | [`answers`] |
//! | worked examples | [`examples`] |
//! | the page | [`page`] |
//!
//! `docs/openapi.json` is this document, committed; `make verify` compares. Tests hold it against the routes and, by
//! schemathesis, against what the facade does.

mod answers;
mod bodies;
mod examples;
pub mod fields;
pub mod page;
pub mod parameters;

use std::sync::LazyLock;

use axum::{http::header::CONTENT_TYPE, response::IntoResponse};
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::{alarms, auth, health, schedules, service_calls, sessions};

const ABOUT: &str = "\
Chronos wakes agents on time. An agent signs in with its key, stores alarms, and at the due instant a wake goes to the agents' router.

**Auth.** Everything under `/v1` needs the transport bearer (`Authorization: Bearer …`); everything else there but signing in needs the agent's own \
token besides (`X-Chronos-Agent: …`), which `POST /v1/agent/auth/challenge` and `…/verify` give for a day. An agent sees its own \
alarms, timers and sessions and no others.

**Envelope.** Every answer is `{\"ok\": true, \"data\": …}` or `{\"ok\": false, \"error\": {code, message, retryable, field?, details?}}`, \
also for an unknown path (404 `not_found`) and for a method that a path does not take (405 `invalid_request`, with `Allow`). Answers \
may gain fields; a request with an unknown field is refused, with the field's name.

**Requests** are JSON of at most 256 KiB. A missing Content-Type counts as JSON. `null` counts as left out, except in PATCH. \
`X-Request-Id` of a request comes back with its answer.

**Instants** are RFC 3339: any offset going in, UTC with `Z` and at most six digits of a second coming out, of service calls' \
timers always three.

**Stream.** `GET /v1/sessions/{key}/stream`, with both tokens, is a WebSocket: a session's sends come over it one at a time, in \
order, as `{effect_id, dedupe_key, seq, content, created_at}`, and each is to be acknowledged with `{\"ack\": \"<effect_id>\"}`. What is \
not, within 30 s, closes it (4408) and comes again over the next one: know it by its `effect_id`. A newer connection closes the older \
(4409), as does the token's end (4401). Any other frame is answered `{\"error\": …}`.

This document is at `/openapi.json`, the page at `/docs`; neither needs auth nor has the envelope.";

#[derive(OpenApi)]
#[openapi(
    paths(
        health::identity,
        health::health,
        auth::sign_in::challenge,
        auth::sign_in::verify,
        alarms::create::create,
        alarms::read::list,
        alarms::bulk::bulk,
        alarms::create::put,
        alarms::read::get,
        alarms::edit::patch,
        alarms::edit::cancel,
        alarms::read::attempts,
        alarms::edit::pause,
        alarms::edit::resume,
        alarms::edit::fire,
        alarms::edit::rearm,
        schedules::preview,
        service_calls::register,
        service_calls::delete,
        service_calls::schedule,
        service_calls::get,
        service_calls::trace,
        sessions::get,
        sessions::events::append,
        sessions::events::list,
        sessions::checkpoints::store,
        sessions::effects::list,
        sessions::effects::acknowledge,
        sessions::timers::list,
        sessions::timers::get,
        sessions::timers::cancel,
    ),
    tags(
        (name = "sign in", description = "An agent proves that it holds the key its DID names."),
        (name = "alarms", description = "What an agent does with its alarms."),
        (name = "schedules", description = "When would it fire?"),
        (name = "service calls", description = "Calls of other services, and the one timer that each may have."),
        (name = "sessions", description = "Conversations in which an agent follows up by itself. Where they are switched off (`CHRONOS_AUTONOMY_ENABLED=false`) there are no such paths."),
        (name = "service", description = "What this is, and whether it works."),
    ),
)]
struct Described;

/// The document, pretty, its keys in alphabetical order.
static DOCUMENT: LazyLock<String> = LazyLock::new(|| {
    let mut text = serde_json::to_string_pretty(&document()).expect("a JSON value has a text");
    text.push('\n');
    text
});

/// The document as it is served and committed.
pub fn text() -> &'static str {
    &DOCUMENT
}

/// `GET /openapi.json`
pub async fn served() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/json")], text())
}

fn document() -> Value {
    let mut document = serde_json::to_value(Described::openapi()).expect("the document is JSON");
    document["info"] = json!({
        "title": "Chronos", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT,
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" }
    });
    // Relative to where the document is, whatever a proxy puts in front.
    document["servers"] = json!([{ "url": "./" }]);
    for (section, entries) in answers::components().as_object().expect("components are an object") {
        for (name, entry) in entries.as_object().expect("a section is an object") {
            document["components"][section][name] = entry.clone();
        }
    }
    let schemas = &mut document["components"]["schemas"];
    schemas["AlarmBody"]["oneOf"] = bodies::one_schedule();
    schemas["SessionEventBody"]["oneOf"] = bodies::event_by_type();
    schemas["EffectBody"]["oneOf"] = bodies::effect_by_type();
    for (path, methods) in document["paths"].as_object_mut().expect("there are paths") {
        for (method, operation) in methods.as_object_mut().expect("a path has methods") {
            answers::complete(path, method, operation);
        }
    }
    document
}
