//! What a body's fields do not say one by one: which of them go together.

use serde_json::{Value, json};

use crate::domain::invalid::KEY_CAP;

/// A schedule is given once, in the way of its kind.
pub fn one_schedule() -> Value {
    let only_of_series = json!({ "starts_at": { "type": "null" }, "ends_at": { "type": "null" }, "spread_seconds": { "enum": [null, 0] } });
    let alternative = |title: &str, kind: &str, given: &str, own: Value, foreign: &[&str]| {
        let mut properties = json!({ "kind": { "enum": [kind] }, given: own });
        for name in foreign {
            properties[name] = json!({ "type": "null" });
        }
        if kind == "once" {
            properties["cron_expr"] = json!({ "enum": [null, ""] });
            properties
                .as_object_mut()
                .expect("made above")
                .extend(only_of_series.as_object().expect("made above").clone());
        }
        json!({ "title": title, "required": ["kind", given], "properties": properties })
    };
    json!([
        alternative("Once, at an instant", "once", "fire_at", json!({ "type": "string" }), &["delay_seconds"]),
        alternative("Once, after a while", "once", "delay_seconds", json!({ "type": "integer" }), &["fire_at"]),
        alternative(
            "Again and again",
            "cron",
            "cron_expr",
            json!({ "type": "string", "minLength": 1 }),
            &["fire_at", "delay_seconds"]
        ),
    ])
}

/// An event's payload has the shape of its type, and may hold more.
pub fn event_by_type() -> Value {
    let text = || json!({ "type": "string" });
    let alternative = |title: &str, event_type: &str, required: &[&str], properties: Value| {
        let payload = json!({ "type": "object", "required": required, "properties": properties });
        let properties = json!({ "type": { "enum": [event_type] }, "payload": payload });
        json!({ "title": title, "required": ["type", "payload"], "properties": properties })
    };
    json!([
        alternative("The user said something", "user_message", &["text"], json!({ "text": text() })),
        alternative(
            "A tool found something",
            "tool_result",
            &["tool_id", "payload"],
            json!({ "tool_id": text(), "payload": {} })
        ),
    ])
}

/// An effect's payload has the shape of its type, and nothing else: what nobody reads would be lost.
pub fn effect_by_type() -> Value {
    let alternative = |title: &str, effect_type: &str, required: &[&str], properties: Value| {
        let payload =
            json!({ "type": "object", "required": required, "properties": properties, "additionalProperties": false });
        let properties = json!({ "type": { "enum": [effect_type] }, "payload": payload });
        json!({ "title": title, "required": ["type", "payload"], "properties": properties })
    };
    json!([
        alternative("Tell the client", "send_message", &["content"], json!({ "content": { "type": "string" } })),
        alternative(
            "Remind the agent",
            "schedule_timer",
            &["timer_id", "fire_at"],
            json!({
                "timer_id": { "type": "string", "minLength": 1, "maxLength": KEY_CAP },
                "fire_at": { "type": "string", "format": "date-time" },
                "payload": {}
            })
        ),
    ])
}
