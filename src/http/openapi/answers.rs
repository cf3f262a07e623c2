//! What all operations have in common, written into the document by rule, so that no operation can forget it: who may call it,
//! the envelope around every answer, the headers, and the failures that its method and path bring with them.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::examples;
use crate::{
    domain::{invalid::Invalid, quota::Exceeded},
    http::{
        envelope::{BODY_CAP, BODY_DEADLINE},
        problem::Problem,
        sessions,
    },
};

/// What stands below this has answers of its own.
const SESSIONS: &str = "/v1/sessions/";

const JSON: &str = "application/json";

/// Every code that an error can have.
const CODES: &[&str] = &[
    "invalid_request",
    "unauthorized",
    "not_found",
    "conflict",
    "too_large",
    "rate_limited",
    "quota_exceeded",
    "internal",
];

/// The schemas and headers that the rules below refer to.
pub fn components() -> Value {
    json!({
        "schemas": {
            "Error": {
                "type": "object",
                "required": ["code", "message", "retryable"],
                "properties": {
                    "code": { "type": "string", "enum": CODES, "description": "Stable: programs may branch on it." },
                    "message": { "type": "string", "description": "For people: what was wrong and what would be right." },
                    "retryable": { "type": "boolean", "description": "Whether the same request may work later." },
                    "field": { "type": "string", "description": "The field, parameter or header that it is about." },
                    "details": { "type": "object", "description": "What a program needs to go on, such as a limit and its use." }
                }
            },
            "Failure": {
                "type": "object",
                "required": ["ok", "error"],
                "properties": { "ok": { "type": "boolean", "enum": [false] }, "error": reference("Error") }
            }
        },
        "headers": {
            "X-Request-Id": {
                "required": true,
                "description": "The request's name in our logs: the caller's own X-Request-Id if it sent one, else a new one.",
                "schema": { "type": "string" }
            },
            "Retry-After": {
                "required": true,
                "description": "Whole seconds after which it is worth trying again.",
                "schema": { "type": "integer", "minimum": 1 }
            }
        },
        "securitySchemes": {
            "transport": {
                "type": "http", "scheme": "bearer",
                "description": "The bearer that all callers share (CHRONOS_TOKEN). On everything under /v1."
            },
            "agent": {
                "type": "apiKey", "in": "header", "name": "X-Chronos-Agent",
                "description": "The agent's own token, from POST /v1/agent/auth/verify. It says whose alarms, timers and sessions are meant."
            }
        }
    })
}

/// Completes one operation.
pub fn complete(path: &str, method: &str, operation: &mut Value) {
    let id = operation["operationId"].as_str().expect("every operation has an id").to_owned();
    let (security, common) = rules(path, method, operation);
    operation["security"] = security;
    if let Some(body) = operation.get_mut("requestBody") {
        // Only a re-armed alarm may have nothing more to say.
        body["required"] = json!(id != "rearmAlarm");
        for content in entries(&mut body["content"]) {
            content["examples"] = examples::requests(&id);
        }
    }
    for status in common {
        let responses = &mut operation["responses"][status.to_string()];
        if responses.is_null() {
            *responses = json!({ "description": failure(path, &id, status).0 });
        }
    }
    let responses = operation["responses"].as_object_mut().expect("every operation has answers");
    for (status, response) in responses {
        response["headers"]["X-Request-Id"] = json!({ "$ref": "#/components/headers/X-Request-Id" });
        if status == "200" {
            let data = response["content"][JSON]["schema"].take();
            response["content"][JSON] =
                json!({ "schema": success(&data), "example": { "ok": true, "data": examples::answer(&id) } });
            continue;
        }
        if status == "429" {
            response["headers"]["Retry-After"] = json!({ "$ref": "#/components/headers/Retry-After" });
        }
        let (_, examples) = failure(path, &id, status.parse().expect("a status is a number"));
        response["content"][JSON] = json!({ "schema": reference("Failure"), "examples": examples });
    }
    if id == "health" {
        let degraded = &mut operation["responses"]["503"]["content"][JSON];
        let data = json!({ "type": "object", "required": ["data"], "properties": { "data": reference("Health") } });
        degraded["schema"] = json!({ "allOf": [reference("Failure"), data] });
        degraded["examples"]["internal"]["value"]["data"] = examples::degraded();
    }
}

/// Who may call it, and with which failures it can answer because of what it is.
fn rules(path: &str, method: &str, operation: &Value) -> (Value, Vec<u16>) {
    if !path.starts_with("/v1/") {
        return (json!([]), vec![]);
    }
    let mut statuses = vec![401, 500, 503];
    let of_agent = !path.starts_with("/v1/agent/auth/");
    if of_agent {
        statuses.push(429);
    }
    // Who expects no body must read one all the same, to see that there is none.
    if matches!(method, "post" | "put" | "patch") {
        statuses.extend([400, 408, 413, 415]);
    }
    let by_id = operation["parameters"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "id"));
    if by_id || path.starts_with(SESSIONS) {
        statuses.push(404);
    }
    let both = json!([{ "transport": [], "agent": [] }]);
    (if of_agent { both } else { json!([{ "transport": [] }]) }, statuses)
}

fn success(data: &Value) -> Value {
    json!({
        "type": "object",
        "required": ["ok", "data"],
        "properties": { "ok": { "type": "boolean", "enum": [true] }, "data": data }
    })
}

/// What a status means wherever it comes from, and how it looks.
fn failure(path: &str, operation: &str, status: u16) -> (&'static str, Value) {
    let one = |problem: Problem| {
        let (code, body) = (problem.code(), problem.body());
        json!({ code: { "value": body } })
    };
    match status {
        400 if path.starts_with(SESSIONS) => (
            "The body or a parameter is not what it should be; `field` says which, as a path such as `effects[2].payload.fire_at`, `message` how.",
            one(Problem::invalid_field("type", "type: is \"thought\"; give user_message or tool_result")),
        ),
        404 if path.starts_with(SESSIONS) => (
            "There is no such session of the agent's, or no such effect or timer in it. The same for an unknown one, a malformed key or id and \
             somebody else's session.",
            one(Problem::no_such_session()),
        ),
        409 if path.ends_with("/events") => (
            "The id stands for another event.",
            one(Problem::conflict("id stands for another event of this session; give another id")),
        ),
        409 if path.ends_with("/checkpoints") => {
            ("The event is not next.", one(sessions::checkpoints::out_of_turn(3, 3, 5)))
        }
        409 if path.starts_with(SESSIONS) => {
            ("It is too soon for it.", one(sessions::effects::in_cooldown("2026-11-16T09:00:15Z")))
        }
        400 => (
            "The body, a parameter or a header is not what it should be; `field` says which, `message` how.",
            one(vec![Invalid::new("kind", "is \"sometimes\"", "give once or cron")].into()),
        ),
        401 => (
            "The transport token or the agent token is missing, wrong or expired, or the agent is suspended.",
            one(Problem::unauthorized()),
        ),
        404 => (
            "There is no such alarm of the agent's. The same for an unknown id, a malformed one and somebody else's.",
            one(match operation {
                "putTimer" => Problem::no_such_service_call(),
                "getTimer" => Problem::no_such_timer(),
                _ => Problem::no_such_alarm(),
            }),
        ),
        408 => ("The body did not arrive in time.", one(Problem::too_slow(BODY_DEADLINE))),
        409 => (
            "The alarm is not in a state for it.",
            one(Problem::conflict(
                "the alarm is managed by the resource Alarm home/tea; edit or delete that (kubectl -n home edit alarm tea)",
            )),
        ),
        413 => ("The body is larger than 256 KiB.", one(Problem::too_large(BODY_CAP))),
        415 => ("The body's Content-Type is there and is not JSON.", one(Problem::not_json())),
        429 => ("The agent asks too often, or for more than its quota allows.", too_many(one)),
        500 => (
            "Something went wrong on our side, such as a database that does not answer. Nothing is half done.",
            one(Problem::internal()),
        ),
        503 => (
            "It took too long. The request may have been carried out: repeat it with an idempotency key.",
            one(Problem::unavailable()),
        ),
        other => unreachable!("no operation answers {other}"),
    }
}

fn too_many(one: impl Fn(Problem) -> Value) -> Value {
    let mut examples = one(Problem::rate_limited(Duration::from_secs(1), 100, 200));
    let mut quota = one(Exceeded::ActiveAlarms { limit: 20, used: 20 }.into());
    examples["quota_exceeded"] = quota["quota_exceeded"].take();
    examples
}

pub fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn entries(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    object.as_object_mut().into_iter().flat_map(Map::values_mut)
}
