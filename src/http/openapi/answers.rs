//! What all operations have in common, written into the document by rule, so that no operation can forget it: who may call it,
//! the envelope around every answer, the headers, and the failures that its method and path bring with them.

use serde_json::{Map, Value, json};

use super::examples;

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
                "description": "The agent's own token, from POST /v1/agent/auth/verify. It says whose alarms are meant."
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
            *responses = json!({ "description": failure(status).0 });
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
        let (_, examples) = failure(status.parse().expect("a status is a number"));
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
    if by_id {
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
fn failure(status: u16) -> (&'static str, Value) {
    let one = |code: &str, message: &str, retryable: bool| {
        let error = json!({ "code": code, "message": message, "retryable": retryable });
        json!({ code: { "value": { "ok": false, "error": error } } })
    };
    match status {
        400 => {
            let mut example = one("invalid_request", "max_failures: is 101; give a whole number from 0 to 100", false);
            example["invalid_request"]["value"]["error"]["field"] = json!("max_failures");
            ("The body, a parameter or a header is not what it should be; `field` says which, `message` how.", example)
        }
        401 => (
            "The transport token or the agent token is missing, wrong or expired, or the agent is suspended.",
            one("unauthorized", "something that proves who you are is missing, wrong or expired: …", false),
        ),
        404 => (
            "There is no such alarm of the agent's. The same for an unknown id, a malformed one and somebody else's.",
            one("not_found", "there is no such alarm of yours", false),
        ),
        408 => (
            "The body did not arrive in time.",
            one("invalid_request", "the body did not arrive within 30 seconds; send it faster, or less of it", true),
        ),
        409 => (
            "The alarm is not in a state for it.",
            one("conflict", "the alarm is managed by the resource Alarm home/tea; edit or delete that", false),
        ),
        413 => ("The body is larger than 256 KiB.", one("too_large", "the body is larger than 262144 bytes", false)),
        415 => (
            "The body's Content-Type is there and is not JSON.",
            one("invalid_request", "the body's Content-Type is not JSON; send application/json", false),
        ),
        429 => ("The agent asks too often, or for more than its quota allows.", too_many(one)),
        500 => (
            "Something went wrong on our side, such as a database that does not answer. Nothing is half done.",
            one("internal", "something went wrong on our side; nothing was lost, try again", true),
        ),
        503 => (
            "It took too long. The request may have been carried out: repeat it with an idempotency key.",
            one("internal", "this took too long; try again", true),
        ),
        other => unreachable!("no operation answers {other}"),
    }
}

fn too_many(one: impl Fn(&str, &str, bool) -> Value) -> Value {
    let mut examples = one("rate_limited", "more requests than 100 a second; wait as Retry-After says", true);
    let mut quota = one("quota_exceeded", "the agent has 20 active alarms, which is all it may have", false);
    quota["quota_exceeded"]["value"]["error"]["details"] =
        json!({ "quota": "max_active_alarms", "limit": 20, "use": 20 });
    examples["quota_exceeded"] = quota["quota_exceeded"].take();
    examples
}

pub fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

fn entries(object: &mut Value) -> impl Iterator<Item = &mut Value> {
    object.as_object_mut().into_iter().flat_map(Map::values_mut)
}
