//! How a call goes over the wire. Pure.

use chrono::{DateTime, SecondsFormat, Utc};
use reqwest::Method;
use serde_json::{Map, Value, json, value::RawValue};

use super::owners::Owner;
use crate::log::{Asked, Definition, Schedule, Trespass};

pub struct Request {
    pub method: Method,
    pub path: String,
    pub body: Option<String>,
}

/// What is asked of the facade.
pub fn of(owner: &Owner, asked: &Asked) -> Request {
    let alarm = |id: &uuid::Uuid, more: &str| format!("/v1/alarms/{id}{more}");
    let (method, path, body) = match asked {
        Asked::Verify { nonce } => {
            (Method::POST, "/v1/agent/auth/verify".to_owned(), Some(owner.proof(nonce).to_string()))
        }
        Asked::Create { key, alarm } => (Method::POST, "/v1/alarms".to_owned(), Some(creation(alarm, key.as_deref()))),
        Asked::Put { key, alarm } => (Method::PUT, format!("/v1/alarms/by-key/{key}"), Some(creation(alarm, None))),
        Asked::Patch { id, alarm: wanted } => (Method::PATCH, alarm(id, ""), Some(whole_patch(wanted))),
        Asked::Cancel { id } => (Method::DELETE, alarm(id, ""), None),
        Asked::Pause { id } => (Method::POST, alarm(id, "/pause"), None),
        Asked::Resume { id } => (Method::POST, alarm(id, "/resume"), None),
        Asked::Rearm { id, fire_at } => {
            (Method::POST, alarm(id, "/rearm"), Some(json!({ "fire_at": rfc3339(*fire_at) }).to_string()))
        }
        Asked::Trespass { on, how } => trespass(on, *how),
        Asked::Apply { .. } | Asked::Delete { .. } => unreachable!("the API server is asked for these"),
        Asked::Register { call } => (Method::PUT, format!("/v1/service-calls/{call}"), None),
        Asked::Timer { call, due_at, payload } => {
            (Method::PUT, format!("/v1/service-calls/{call}/timer"), Some(timer(call, *due_at, payload)))
        }
        Asked::Deregister { call } => (Method::DELETE, format!("/v1/service-calls/{call}"), None),
        Asked::Event { session, id, kind, payload } => {
            let body = with_raw(json!({ "id": id, "type": kind }), "payload", payload);
            (Method::POST, format!("/v1/sessions/{session}/events"), Some(body))
        }
        Asked::Checkpoint { session, checkpoint_id, event_seq, effects } => {
            let body = json!({ "checkpoint_id": checkpoint_id, "event_seq": event_seq, "effects": effects });
            (Method::POST, format!("/v1/sessions/{session}/checkpoints"), Some(body.to_string()))
        }
        Asked::Ack { session, effect_id, stream: _ } => {
            (Method::POST, format!("/v1/sessions/{session}/effects/{effect_id}/ack"), None)
        }
    };
    Request { method, path, body }
}

fn trespass(on: &str, how: Trespass) -> (Method, String, Option<String>) {
    let alarm = |more: &str| format!("/v1/alarms/{on}{more}");
    match how {
        Trespass::Look => (Method::GET, alarm(""), None),
        Trespass::Attempts => (Method::GET, alarm("/attempts"), None),
        Trespass::Edit => (Method::PATCH, alarm(""), Some(json!({ "wake_message": "somebody else's" }).to_string())),
        Trespass::Cancel => (Method::DELETE, alarm(""), None),
        Trespass::Pause => (Method::POST, alarm("/pause"), None),
        Trespass::Fire => (Method::POST, alarm("/fire"), None),
        Trespass::Speak => {
            let body = json!({ "type": "user_message", "payload": { "text": "somebody else's" } });
            (Method::POST, format!("/v1/sessions/{on}/events"), Some(body.to_string()))
        }
        Trespass::LookAtSession => (Method::GET, format!("/v1/sessions/{on}"), None),
    }
}

/// The fields of a definition that are not its payload; what is not given is left out.
fn fields(alarm: &Definition) -> Value {
    let mut body = json!({ "label": alarm.label, "wake_message": alarm.message });
    match alarm.schedule {
        Schedule::At(instant) => body["fire_at"] = rfc3339(instant).into(),
        Schedule::Every { seconds, starts_at } => {
            body["cron_expr"] = format!("@every {seconds}s").into();
            if let Some(instant) = starts_at {
                body["starts_at"] = rfc3339(instant).into();
            }
        }
        Schedule::EveryMinutes(minutes) => body["cron_expr"] = format!("*/{minutes} * * * *").into(),
    }
    let given = [
        ("misfire", alarm.misfire.clone().map(Value::from)),
        ("max_lateness_seconds", alarm.max_lateness_seconds.map(Value::from)),
        ("max_failures", alarm.max_failures.map(Value::from)),
        ("spread_seconds", alarm.spread_seconds.map(Value::from)),
    ];
    for (name, value) in given {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    body
}

fn creation(alarm: &Definition, key: Option<&str>) -> String {
    let mut body = fields(alarm);
    body["kind"] = if matches!(alarm.schedule, Schedule::At(_)) { "once".into() } else { "cron".into() };
    if let Some(key) = key {
        body["idempotency_key"] = key.into();
    }
    with_raw(body, "payload", &alarm.payload)
}

/// Whatever it was before, it is this afterwards.
fn whole_patch(alarm: &Definition) -> String {
    let mut body = fields(alarm);
    let mut optional = vec!["misfire", "max_lateness_seconds", "max_failures"];
    if !matches!(alarm.schedule, Schedule::At(_)) {
        optional.extend(["starts_at", "spread_seconds"]);
    }
    for name in optional {
        if body.get(name).is_none() {
            body[name] = Value::Null;
        }
    }
    with_raw(body, "payload", &alarm.payload)
}

/// Says what the agent is told, and nothing of when.
pub fn words_patch(alarm: &Definition) -> String {
    with_raw(json!({ "wake_message": alarm.message }), "payload", &alarm.payload)
}

/// Every second call has a correlation id, and has it again each time.
fn timer(call: &str, due_at: DateTime<Utc>, payload: &str) -> String {
    let mut body = json!({ "due_at": rfc3339(due_at) });
    if call.ends_with(['0', '2', '4', '6', '8']) {
        body["correlation_id"] = format!("correlation-of-{call}").into();
    }
    with_raw(body, "payload", payload)
}

/// The Alarm resource.
pub fn resource(owner: &Owner, name: &str, suspend: bool, alarm: &Definition) -> Value {
    let mut spec = Map::new();
    let Value::Object(fields) = fields(alarm) else { unreachable!("fields are an object") };
    for (name, value) in fields {
        spec.insert(camel_case(&name), value);
    }
    spec.insert("owner".to_owned(), owner.did.clone().into());
    spec.insert("payloadJson".to_owned(), alarm.payload.clone().into());
    spec.insert("suspend".to_owned(), suspend.into());
    json!({ "apiVersion": "chronos.dev/v1alpha1", "kind": "Alarm", "metadata": { "name": name }, "spec": spec })
}

fn camel_case(name: &str) -> String {
    let mut words = name.split('_');
    let mut joined = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        joined.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        joined.push_str(letters.as_str());
    }
    joined
}

/// An object with one more field, which keeps its spelling.
fn with_raw(object: Value, name: &str, text: &str) -> String {
    let raw: Box<RawValue> = RawValue::from_string(text.to_owned()).expect("a payload is JSON");
    let object = object.to_string();
    let rest = object.strip_suffix('}').expect("an object ends so");
    format!("{rest},\"{name}\":{raw}}}")
}

pub fn rfc3339(instant: DateTime<Utc>) -> String {
    instant.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}
