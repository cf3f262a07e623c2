//! Every mistake is told with its field and what would be right, and nothing is stored.

use reqwest::Method;
use serde_json::{Value, json};

use super::{ID, SESSION, door, of_session, said};

/// A body, the field that is named, and a part of what is said.
type Case = (String, &'static str, &'static str);

fn case(body: impl ToString, field: &'static str, said: &'static str) -> Case {
    (body.to_string(), field, said)
}

fn nested(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn events() -> Vec<Case> {
    let message = |payload: Value| json!({ "type": "user_message", "payload": payload });
    let result = |payload: Value| json!({ "type": "tool_result", "payload": payload });
    vec![
        case(json!({ "payload": {} }), "type", "type: is missing; give user_message or tool_result"),
        case(json!({ "type": null, "payload": {} }), "type", "type: is missing"),
        case(
            json!({ "type": "timer", "payload": { "timer_id": "t" } }),
            "type",
            "an event that chronos writes when a timer comes due and nobody can post; give user_message or tool_result",
        ),
        case(json!({ "type": "thought", "payload": {} }), "type", "is \"thought\"; give user_message or tool_result"),
        case(json!({ "type": 7, "payload": {} }), "type", "type: invalid type: integer `7`, expected a string"),
        case(json!({ "type": "user_message" }), "payload", "payload: is missing"),
        case(message(Value::Null), "payload", "payload: is missing"),
        case(message(json!("hi")), "payload", "payload: is not a JSON object"),
        case(message(json!(["hi"])), "payload", "payload: is not a JSON object"),
        case(message(json!({ "content": "hi" })), "payload.text", "payload.text: is missing"),
        case(message(json!({ "text": null })), "payload.text", "payload.text: is missing"),
        case(message(json!({ "text": 7 })), "payload.text", "payload.text: is not a text"),
        case(message(json!({ "text": ["a"] })), "payload.text", "payload.text: is not a text"),
        case(message(json!({ "text": "a\u{0}b" })), "payload", "holds a NUL character"),
        case(r#"{"type":"user_message","payload":{"text":"a","text":"b"}}"#, "payload.text", "give it once"),
        case(result(json!({ "payload": 1 })), "payload.tool_id", "payload.tool_id: is missing"),
        case(result(json!({ "tool_id": 7, "payload": 1 })), "payload.tool_id", "is not a text"),
        case(result(json!({ "tool_id": "t" })), "payload.payload", "payload.payload: is missing"),
        case(
            format!(r#"{{"type":"user_message","payload":{{"text":"a","deep":{}}}}}"#, nested(64)),
            "payload",
            "is nested 65 deep; flatten it to at most 64 levels",
        ),
        case(
            json!({ "id": "x", "type": "user_message", "payload": { "text": "a" } }),
            "id",
            "which is no UUID; give a UUID",
        ),
        case(json!({ "id": "", "type": "user_message", "payload": { "text": "a" } }), "id", "which is no UUID"),
        case(
            json!({ "id": ID.replace('-', ""), "type": "user_message", "payload": { "text": "a" } }),
            "id",
            "which is no UUID",
        ),
        case(json!({ "id": 7, "type": "user_message", "payload": { "text": "a" } }), "id", "expected a string"),
        case(json!({ "type": "user_message", "payload": { "text": "a" }, "seq": 1 }), "seq", "unknown field `seq`"),
        case(r#"{"type":"user_message","type":"tool_result"}"#, "type", "duplicate field `type`"),
        case("[]", "", "not a JSON object"),
        case("{", "", "the body is not the JSON object that was expected"),
        case("", "", "the body is empty"),
        // All at once: the person mends it once.
        case(
            json!({ "id": "x", "type": "y" }),
            "id",
            "type: is \"y\"; give user_message or tool_result; payload: is missing",
        ),
    ]
}

fn effect(effect: &Value) -> Value {
    json!({ "checkpoint_id": "c", "event_seq": 1, "effects": [effect] })
}

fn good() -> Value {
    json!({ "type": "send_message", "payload": { "content": "hi" } })
}

fn checkpoints() -> Vec<Case> {
    let good = good();
    vec![
        case(
            json!({ "event_seq": 1 }),
            "checkpoint_id",
            "checkpoint_id: is missing or empty; give a text of 1 to 256 bytes",
        ),
        case(json!({ "checkpoint_id": "", "event_seq": 1 }), "checkpoint_id", "is missing or empty"),
        case(json!({ "checkpoint_id": "é".repeat(129), "event_seq": 1 }), "checkpoint_id", "is 258 bytes long"),
        case(json!({ "checkpoint_id": "a\u{0}", "event_seq": 1 }), "checkpoint_id", "holds a NUL character"),
        case(json!({ "checkpoint_id": 7, "event_seq": 1 }), "checkpoint_id", "expected a string"),
        case(json!({ "checkpoint_id": "c" }), "event_seq", "event_seq: is missing"),
        case(
            json!({ "checkpoint_id": "c", "event_seq": 0 }),
            "event_seq",
            "is 0; give the number of the event that was processed, 1 or more",
        ),
        case(json!({ "checkpoint_id": "c", "event_seq": -1 }), "event_seq", "is -1"),
        case(json!({ "checkpoint_id": "c", "event_seq": "1" }), "event_seq", "expected a whole number"),
        case(json!({ "checkpoint_id": "c", "event_seq": 1.5 }), "event_seq", "expected a whole number"),
        case(r#"{"checkpoint_id":"c","event_seq":9223372036854775808}"#, "event_seq", "expected a whole number"),
        case(r#"{"checkpoint_id":"c","event_seq":1e99}"#, "event_seq", "expected a whole number"),
        case(json!({ "checkpoint_id": "c", "event_seq": 1, "effect": [] }), "effect", "unknown field `effect`"),
        case(json!({ "checkpoint_id": "c", "event_seq": 1, "effects": {} }), "effects", "expected a sequence"),
        case(
            json!({ "checkpoint_id": "c", "event_seq": 1, "effects": vec![good.clone(); 101] }),
            "effects",
            "effects: has 101 effects; give at most 100 in one checkpoint",
        ),
        // Told by its place, behind those that are right, together with all others.
        case(
            json!({ "checkpoint_id": "c", "event_seq": 1, "effects": [
                good, good, { "type": "schedule_timer", "payload": { "timer_id": "t", "fire_at": "x" } }, { "type": "x" }
            ] }),
            "effects[2].payload.fire_at",
            "effects[3].type: is \"x\"",
        ),
    ]
}

fn sends() -> Vec<Case> {
    let of = |value: Value| effect(&value);
    let message = |payload: Value| effect(&json!({ "type": "send_message", "payload": payload }));
    vec![
        case(of(json!(null)), "effects[0]", "effects[0]: is not a JSON object"),
        case(of(json!(["send_message", { "content": "hi" }])), "effects[0]", "is not a JSON object"),
        case(of(json!({ "payload": {} })), "effects[0].type", "is missing; give send_message or schedule_timer"),
        case(
            of(json!({ "type": "wake", "payload": {} })),
            "effects[0].type",
            "an effect that chronos makes of a timer and nobody can ask for; give send_message or schedule_timer",
        ),
        case(
            of(json!({ "type": "sing", "payload": {} })),
            "effects[0].type",
            "is \"sing\"; give send_message or schedule_timer",
        ),
        case(of(json!({ "type": 7 })), "effects[0].type", "expected a string"),
        case(of(json!({ "type": "send_message" })), "effects[0].payload", "effects[0].payload: is missing"),
        case(of(json!({ "type": "schedule_timer", "payload": null })), "effects[0].payload", "is missing"),
        case(
            of(json!({ "type": "send_message", "payload": { "content": "hi" }, "id": 1 })),
            "effects[0].id",
            "effects[0]: unknown field `id`",
        ),
        case(message(json!("hi")), "effects[0].payload", "effects[0].payload: is not a JSON object"),
        case(message(json!({})), "effects[0].payload.content", "effects[0].payload.content: is missing"),
        case(message(json!({ "content": 7 })), "effects[0].payload.content", "expected a string"),
        case(
            message(json!({ "content": "hi", "lang": "en" })),
            "effects[0].payload.lang",
            "effects[0].payload: unknown field `lang`, expected `content`",
        ),
        case(message(json!({ "content": "\u{0}" })), "effects[0].payload", "holds a NUL character"),
    ]
}

fn timers() -> Vec<Case> {
    let timer = |payload: Value| effect(&json!({ "type": "schedule_timer", "payload": payload }));
    let fire_at = "2090-01-01T00:00:00Z";
    let raw = |payload: &str| {
        format!(r#"{{"checkpoint_id":"c","event_seq":1,"effects":[{{"type":"schedule_timer","payload":{payload}}}]}}"#)
    };
    vec![
        case(timer(json!({})), "effects[0].payload.timer_id", "effects[0].payload.fire_at: is missing"),
        case(
            timer(json!({ "timer_id": "", "fire_at": fire_at })),
            "effects[0].payload.timer_id",
            "is missing or empty",
        ),
        case(
            timer(json!({ "timer_id": "x".repeat(257), "fire_at": fire_at })),
            "effects[0].payload.timer_id",
            "is 257 bytes long; shorten it to at most 256 bytes",
        ),
        case(
            timer(json!({ "timer_id": "\u{0}", "fire_at": fire_at })),
            "effects[0].payload.timer_id",
            "holds a NUL character",
        ),
        case(
            timer(json!({ "timer_id": "t", "fire_at": "2090-01-01T00:00:00" })),
            "effects[0].payload.fire_at",
            "without an offset; give date, time and offset",
        ),
        case(
            timer(json!({ "timer_id": "t", "fire_at": "tomorrow" })),
            "effects[0].payload.fire_at",
            "which is no instant",
        ),
        case(
            timer(json!({ "timer_id": "t", "fire_at": 1_800_000_000 })),
            "effects[0].payload.fire_at",
            "expected a string",
        ),
        case(
            timer(json!({ "timer_id": "t", "fire_at": "2101-01-01T00:00:00Z" })),
            "effects[0].payload.fire_at",
            "lies after the year 2100",
        ),
        case(
            timer(json!({ "timer_id": "t", "fire_at": "1969-12-31T23:59:59Z" })),
            "effects[0].payload.fire_at",
            "lies before the year 1970",
        ),
        case(
            timer(json!({ "timer_id": "t", "fire_at": fire_at, "delay": 5 })),
            "effects[0].payload.delay",
            "unknown field `delay`",
        ),
        case(
            raw(&format!(r#"{{"timer_id":"t","fire_at":"{fire_at}","payload":{}}}"#, nested(65))),
            "effects[0].payload.payload",
            "is nested 65 deep",
        ),
        case(
            raw(&format!(r#"{{"timer_id":"t","fire_at":"{fire_at}","timer_id":"u"}}"#)),
            "effects[0].payload.timer_id",
            "duplicate field `timer_id`; give it once",
        ),
    ]
}

#[tokio::test]
async fn a_mistake_in_a_body_is_told_with_its_path_and_nothing_is_stored() {
    let (_world, _daemon, api) = door().await;
    let tables =
        [("/events", events()), ("/checkpoints", checkpoints()), ("/checkpoints", sends()), ("/checkpoints", timers())];
    for (rest, cases) in tables {
        for (body, field, said) in cases {
            let answer = api.post_text(&of_session(rest), &body).await;
            assert_eq!(answer.refusal(), (400, "invalid_request", field), "{body:.200}: {}", answer.text);
            let message = answer.body["error"]["message"].as_str().unwrap();
            assert!(message.contains(said), "{body:.200}: {message}");
        }
        let large = format!(r#"{{"type":"user_message","payload":{{"text":"{}"}}}}"#, "x".repeat(256 * 1024));
        assert_eq!(api.post_text(&of_session(rest), &large).await.refusal(), (413, "too_large", ""));
    }
    assert_eq!(api.get(SESSION).await.status, 404, "not even the session was made");
}

#[tokio::test]
async fn a_key_that_is_none_is_told_where_sessions_are_made() {
    let (_world, _daemon, api) = door().await;
    let long = format!("ann:agent:{}", "x".repeat(250));
    for (key, told) in [
        ("ann:agent", "session_key has 2 parts; a session key has three, userId:agentId:threadId"),
        ("ann::thread", "session_key has an empty agent id; each of the three parts has at least one character"),
        ("ann:agent:th%20read", "session_key has a thread id with a character other than A-Z a-z 0-9 _ -"),
        ("ann:agent:%00", "session_key has a thread id with a character other than A-Z a-z 0-9 _ -"),
        ("ann:agent:%ff", "session_key in the path is not UTF-8, percent-encoded"),
        (long.as_str(), "session_key is 260 bytes long; a session key has at most 256"),
    ] {
        let answer = api.post(&format!("/v1/sessions/{key}/events"), &said("hello")).await;
        assert_eq!(answer.refusal(), (400, "invalid_request", "session_key"), "{key}");
        assert_eq!(answer.body["error"]["message"], told);
    }
}

#[tokio::test]
async fn a_mistake_beside_the_body_is_told_too() {
    let (_world, _daemon, api) = door().await;
    api.post(&of_session("/events"), &said("hello")).await.data();
    let statuses = "give one of pending, executing, completed, failed, cancelled, suppressed";
    for (rest, field, said) in [
        ("/events?after=-1", "after", "after is \"-1\"; give the seq of an event, or 0 for all"),
        ("/events?after=", "after", "after is \"\""),
        ("/events?after=1.5", "after", "after is \"1.5\""),
        ("/events?limit=0", "limit", "limit is \"0\"; give a whole number from 1 to 500"),
        ("/events?limit=1&limit=2", "limit", "limit is given twice"),
        ("/events?cursor=x", "cursor", "there is no parameter \"cursor\"; there are after, limit"),
        ("/effects?status=done", "status", statuses),
        ("/effects?status=", "status", statuses),
        ("/effects?status=pending,failed", "status", statuses),
        ("/effects?after=1", "after", "there are status, limit"),
        ("/effects?limit=x", "limit", "limit is \"x\""),
        ("/timers?status=pending", "status", "there is no parameter \"status\"; there are limit"),
        ("/timers?limit=-1", "limit", "limit is \"-1\""),
    ] {
        let answer = api.get(&of_session(rest)).await;
        assert_eq!(answer.refusal(), (400, "invalid_request", field), "{rest}");
        let message = answer.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(said), "{rest}: {message}");
    }
    let path = of_session(&format!("/effects/{ID}/ack"));
    let told = api.post(&path, &json!({ "status": "completed" })).await;
    assert_eq!(told.refusal(), (400, "invalid_request", "status"), "an acknowledgement has no body");
    let aside = api.send(api.request(Method::POST, &of_session("/events?id=1")).body(said("hello").to_string())).await;
    assert_eq!(aside.refusal(), (400, "invalid_request", "id"));
    let form = api.request(Method::POST, &of_session("/events")).header("content-type", "text/plain").body("hello");
    assert_eq!(api.send(form).await.refusal(), (415, "invalid_request", ""));
    for (method, rest) in [(Method::DELETE, ""), (Method::PUT, "/events"), (Method::GET, "/checkpoints")] {
        let answer = api.send(api.request(method, &of_session(rest))).await;
        assert_eq!(answer.refusal(), (405, "invalid_request", ""), "{rest}");
    }
}
