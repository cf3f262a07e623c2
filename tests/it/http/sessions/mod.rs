//! Sessions over HTTP: events in, checkpoints with their effects in, effects and timers out.

mod mistakes;
mod strangers;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{AgentKey, Daemon, World, api::Api};

const SESSION: &str = "/v1/sessions/ann:portfolio-agent:thread_7";
/// A client's own id of an event.
const ID: &str = "019a8f6d-77aa-7c3d-8e21-5b6f7a8c9d01";

/// A running facade that takes as many requests as a test has, and an agent that has signed in.
async fn door() -> (World, Daemon, Api) {
    let world = World::new().await;
    let daemon = world.chronosd_with("api", &[("CHRONOS_OWNER_RATE", "0")]).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    (world, daemon, api)
}

fn of_session(rest: &str) -> String {
    format!("{SESSION}{rest}")
}

fn said(text: &str) -> Value {
    json!({ "type": "user_message", "payload": { "text": text } })
}

fn checkpoint(id: &str, event_seq: i64, effects: &Value) -> Value {
    json!({ "checkpoint_id": id, "event_seq": event_seq, "effects": effects })
}

fn send(content: &str) -> Value {
    json!({ "type": "send_message", "payload": { "content": content } })
}

fn timer(timer_id: &str, fire_at: &str) -> Value {
    json!({ "type": "schedule_timer", "payload": { "timer_id": timer_id, "fire_at": fire_at } })
}

/// Takes what nobody can know beforehand out of an answer, after seeing that it is there.
fn taken(value: &mut Value, fields: &[&str]) -> Vec<Value> {
    let object = value.as_object_mut().unwrap();
    fields.iter().map(|field| object.remove(*field).unwrap_or_else(|| panic!("{field} is there"))).collect()
}

#[tokio::test]
async fn the_first_event_makes_the_session_and_all_are_numbered_in_order() {
    let (_world, _daemon, api) = door().await;
    assert_eq!(api.get(SESSION).await.refusal(), (404, "not_found", ""));

    let mut first = api.post(&of_session("/events"), &said("hello")).await.data();
    let seen = taken(&mut first, &["id", "created_at"]);
    let expected = json!({ "seq": 1, "type": "user_message", "payload": { "text": "hello" }, "deduped": false });
    assert_eq!(first, expected);
    let found = json!({ "type": "tool_result", "payload": { "tool_id": "call_7", "payload": null, "took_ms": 3 } });
    let second = api.post(&of_session("/events"), &found).await.data();
    assert_eq!((&second["seq"], &second["type"]), (&json!(2), &json!("tool_result")));

    let log = api.get(&of_session("/events")).await.data();
    assert_eq!(log["count"], 2);
    let expected = json!({ "id": seen[0], "seq": 1, "type": "user_message", "payload": { "text": "hello" }, "created_at": seen[1] });
    assert_eq!(log["events"][0], expected);
    assert_eq!(log["events"][1]["payload"], found["payload"], "further keys are kept");
    let numbers = async |query: &str| {
        let page = api.get(&of_session(&format!("/events?{query}"))).await.data();
        let events = page["events"].as_array().unwrap().clone();
        assert_eq!(page["count"], events.len());
        events.iter().map(|event| event["seq"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(numbers("after=0").await, [1, 2]);
    assert_eq!(numbers("after=1").await, [2]);
    assert_eq!(numbers("limit=1&after=0").await, [1]);
    assert_eq!(numbers("after=2&limit=100000").await, [0; 0]);
    assert_eq!(numbers("after=99999999999999999999").await, [0; 0]);

    let mut session = api.get(SESSION).await.data();
    taken(&mut session, &["created_at"]);
    let expected = json!({
        "session_key": "ann:portfolio-agent:thread_7", "last_seq": 2, "event_seq": 0, "consecutive_autonomous_msgs": 0,
        "last_autonomous_at": null, "pending_timers": 0, "pending_effects": 0
    });
    assert_eq!(session, expected);
}

#[tokio::test]
async fn what_an_event_carries_comes_back_to_the_byte() {
    let (_world, _daemon, api) = door().await;
    // Order of keys, spelling of numbers, white space, escapes; a key that stands twice; what other parsers stumble over.
    let events = [
        ("user_message", "{\"b\": 1e2,\t\"text\":\"\\u00e9 \u{1f600}\", \"big\":12345678901234567890, \"a\" : 1.0 }"),
        ("user_message", r#"{"text":"","k":1,"k":2}"#),
        ("tool_result", r#"{ "payload" : [1.0,-0] , "tool_id" : "t" }"#),
        ("user_message", r#"{"text":"\ud800","n":1e400}"#),
    ];
    for (event_type, payload) in events {
        let body = format!(r#"{{"type":"{event_type}","payload": {payload} }}"#);
        let answer = api.post_text(&of_session("/events"), &body).await;
        assert!(answer.status == 200 && answer.text.contains(&format!("\"payload\":{payload},")), "{}", answer.text);
    }
    let log = api.get(&of_session("/events")).await;
    for (_, payload) in events {
        assert!(log.status == 200 && log.text.contains(&format!("\"payload\":{payload},")), "{}", log.text);
    }
}

#[tokio::test]
async fn an_event_with_an_id_happens_once() {
    let (_world, _daemon, api) = door().await;
    let mut event = said("hello");
    event["id"] = json!(ID);
    let first = api.post(&of_session("/events"), &event).await.data();
    assert_eq!((&first["id"], &first["deduped"]), (&json!(ID), &json!(false)));
    // Spelt otherwise, it is the same event; the answer has it as it was first written.
    let again =
        format!(r#"{{"payload":{{ "text" : "h\u0065llo" }},"id":"{}","type":"user_message"}}"#, ID.to_uppercase());
    let mut again = api.post_text(&of_session("/events"), &again).await.data();
    assert_eq!(again["deduped"].take(), true);
    let mut expected = first.clone();
    expected["deduped"] = Value::Null;
    assert_eq!(again, expected);

    for other in [
        json!({ "id": ID, "type": "user_message", "payload": { "text": "bye" } }),
        json!({ "id": ID, "type": "tool_result", "payload": { "tool_id": "t", "payload": 1 } }),
    ] {
        let refused = api.post(&of_session("/events"), &other).await;
        assert_eq!(refused.refusal(), (409, "conflict", ""));
        assert!(refused.text.contains("id stands for another event of this session"), "{}", refused.text);
    }
    // In another session it is another event.
    let elsewhere = api.post("/v1/sessions/ann:portfolio-agent:thread_8/events", &event).await.data();
    assert_eq!((&elsewhere["seq"], &elsewhere["deduped"]), (&json!(1), &json!(false)));
    assert_eq!(api.get(SESSION).await.data()["last_seq"], 1);
}

#[tokio::test]
async fn a_checkpoint_stores_what_the_agent_wants_done_once() {
    let (_world, _daemon, api) = door().await;
    api.post(&of_session("/events"), &said("hello")).await.data();
    let effects = json!([
        send("I will."),
        timer("follow-up", "2090-01-01T00:00:00Z"),
        timer("follow-up", "2090-01-01T01:00:00.0000001+01:00"),
    ]);
    let body = checkpoint("c1", 1, &effects);
    let mut stored = api.post(&of_session("/checkpoints"), &body).await.data();
    let again = api.post(&of_session("/checkpoints"), &body).await.data();
    assert_eq!(again, stored, "the same again");
    let keys: Vec<_> = stored["effects"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .map(|effect| taken(effect, &["id", "dedupe_key"]))
        .collect();
    let expected = json!({
        "checkpoint_id": "c1", "event_seq": 1, "replaced_timers": ["follow-up"],
        "effects": [
            { "type": "send_message", "status": "pending" },
            { "type": "schedule_timer", "status": "cancelled", "reason": "replaced" },
            { "type": "schedule_timer", "status": "completed" }
        ]
    });
    assert_eq!(stored, expected);

    let session = api.get(SESSION).await.data();
    let counts = ["last_seq", "event_seq", "pending_timers", "pending_effects"].map(|name| session[name].clone());
    assert_eq!(counts, [1, 1, 1, 1].map(|number| json!(number)));

    let mut listed = api.get(&of_session("/effects?status=pending")).await.data();
    assert_eq!(listed["count"], 1);
    taken(&mut listed["effects"][0], &["created_at", "updated_at"]);
    let expected = json!({
        "id": keys[0][0], "checkpoint_id": "c1", "type": "send_message", "payload": { "content": "I will." },
        "dedupe_key": keys[0][1], "status": "pending", "attempt_count": 0, "last_attempt_at": null
    });
    assert_eq!(listed["effects"][0], expected);
    assert_eq!(api.get(&of_session("/effects")).await.data()["count"], 3);
    assert_eq!(api.get(&of_session("/effects?limit=2")).await.data()["count"], 2);

    // The later one stands, at the microsecond after the instant that was given.
    let mut shown = api.get(&of_session("/timers/follow-up")).await.data();
    taken(&mut shown, &["created_at", "updated_at"]);
    let expected = json!({ "timer_id": "follow-up", "fire_at": "2090-01-01T00:00:00.000001Z", "payload": null, "status": "pending" });
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn a_checkpoint_without_effects_is_one_too() {
    let (_world, _daemon, api) = door().await;
    for (seq, effects) in [(1, None), (2, Some(Value::Null)), (3, Some(json!([])))] {
        api.post(&of_session("/events"), &said("hello")).await.data();
        let mut body = json!({ "checkpoint_id": format!("c{seq}"), "event_seq": seq });
        if let Some(effects) = effects {
            body["effects"] = effects;
        }
        let stored = api.post(&of_session("/checkpoints"), &body).await.data();
        let expected =
            json!({ "checkpoint_id": format!("c{seq}"), "event_seq": seq, "effects": [], "replaced_timers": [] });
        assert_eq!(stored, expected);
    }
    assert_eq!(api.get(SESSION).await.data()["event_seq"], 3);
}

#[tokio::test]
async fn events_are_processed_one_after_another_and_an_id_stands_for_one_body() {
    let (_world, _daemon, api) = door().await;
    let post = async |id: &str, seq: i64, effects: Value| {
        api.post(&of_session("/checkpoints"), &checkpoint(id, seq, &effects)).await
    };
    api.post(&of_session("/events"), &said("one")).await.data();
    post("c1", 1, json!([send("hi")])).await.data();
    let early = post("c2", 2, json!([])).await;
    assert_eq!(early.refusal(), (409, "conflict", ""));
    assert_eq!(early.body["error"]["details"], json!({ "event_seq": 1, "last_seq": 1 }));
    assert!(early.text.contains("event 2, which would be next, does not exist yet"), "{}", early.text);
    for text in ["two", "three"] {
        api.post(&of_session("/events"), &said(text)).await.data();
    }
    for seq in [1, 3] {
        let refused = post("c2", seq, json!([])).await;
        assert_eq!(refused.refusal(), (409, "conflict", ""), "{seq}");
        assert_eq!(refused.body["error"]["details"], json!({ "event_seq": 1, "last_seq": 3 }));
        assert!(refused.text.contains("event 2 is next"), "{}", refused.text);
    }
    let other = post("c1", 1, json!([send("hello")])).await;
    assert_eq!(other.refusal(), (409, "conflict", ""));
    assert!(
        other.text.contains("checkpoint_id stands for a checkpoint of this session with another body"),
        "{}",
        other.text
    );
    post("c2", 2, json!([])).await.data();
}

#[tokio::test]
async fn a_client_without_a_socket_acknowledges_what_it_has_shown() {
    let (_world, _daemon, api) = door().await;
    api.post(&of_session("/events"), &said("hello")).await.data();
    let body = checkpoint("c1", 1, &json!([send("one"), timer("t", "2090-01-01T00:00:00Z")]));
    let stored = api.post(&of_session("/checkpoints"), &body).await.data();
    let ack =
        async |effect: &Value| api.act(&of_session(&format!("/effects/{}/ack", effect["id"].as_str().unwrap()))).await;
    let expected = json!({ "id": stored["effects"][0]["id"], "status": "completed" });
    assert_eq!(ack(&stored["effects"][0]).await.data(), expected);
    assert_eq!(ack(&stored["effects"][0]).await.data(), expected, "and again");
    assert_eq!(ack(&stored["effects"][1]).await.refusal(), (404, "not_found", ""), "only a send is acknowledged");
    assert_eq!(api.get(&of_session("/effects?status=pending")).await.data()["count"], 0);
}

#[tokio::test]
async fn an_acknowledgement_inside_the_cooldown_is_told_when_to_come_back() {
    let (_world, _daemon, api) = door().await;
    // Nobody asked: what follows a tool's result alone is the agent's own idea.
    let found = json!({ "type": "tool_result", "payload": { "tool_id": "t", "payload": 1 } });
    api.post(&of_session("/events"), &found).await.data();
    let body = checkpoint("c1", 1, &json!([send("one"), send("two")]));
    let stored = api.post(&of_session("/checkpoints"), &body).await.data();
    let ack = async |at: usize| {
        api.act(&of_session(&format!("/effects/{}/ack", stored["effects"][at]["id"].as_str().unwrap()))).await
    };
    assert_eq!(ack(0).await.data()["status"], "completed");
    let refused = ack(1).await;
    assert_eq!(refused.refusal(), (409, "conflict", ""), "{}", refused.text);
    let error = &refused.body["error"];
    let last =
        api.get(SESSION).await.data()["last_autonomous_at"].as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>();
    let end = chronos::domain::rfc3339(last.unwrap() + chrono::TimeDelta::seconds(15));
    assert_eq!((&error["details"], &error["retryable"]), (&json!({ "not_before": end }), &json!(true)));
    assert!(error["message"].as_str().unwrap().contains(&end), "{error}");
}

#[tokio::test]
async fn timers_are_seen_and_cancelled_by_their_names() {
    let (_world, _daemon, api) = door().await;
    api.post(&of_session("/events"), &said("hello")).await.data();
    // A name may hold anything but a NUL; what a timer carries is kept to the byte.
    let payload = "{ \"n\": 1e1, \"s\":\"\\u00e9\" }";
    let body = format!(
        r#"{{"checkpoint_id":"c1","event_seq":1,"effects":[{{"type":"schedule_timer","payload":
            {{"timer_id":"späte/r ?#%","fire_at":"2090-01-02T00:00:00Z","payload":{payload}}}}}]}}"#
    );
    api.post_text(&of_session("/checkpoints"), &body).await.data();
    api.post(&of_session("/events"), &json!({ "type": "tool_result", "payload": { "tool_id": "t", "payload": 1 } }))
        .await
        .data();
    let effects = json!([timer("sooner", "2090-01-01T00:00:00Z")]);
    api.post(&of_session("/checkpoints"), &checkpoint("c2", 2, &effects)).await.data();

    let listed = api.get(&of_session("/timers")).await;
    assert!(listed.text.contains(&format!("\"payload\":{payload},")), "{}", listed.text);
    let listed = listed.data();
    let names: Vec<_> = listed["timers"].as_array().unwrap().iter().map(|timer| timer["timer_id"].clone()).collect();
    assert_eq!((names, &listed["count"]), (vec![json!("sooner"), json!("späte/r ?#%")], &json!(2)));
    assert_eq!(api.get(&of_session("/timers?limit=1")).await.data()["count"], 1);

    let path = of_session("/timers/sp%C3%A4te%2Fr%20%3F%23%25");
    let shown = api.get(&path).await.data();
    assert_eq!((&shown, &shown["status"]), (&listed["timers"][1], &json!("pending")));
    let mut cancelled = api.delete(&path).await.data();
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(api.delete(&path).await.data(), cancelled, "cancelling twice is fine");
    taken(&mut cancelled, &["status", "updated_at"]);
    let mut before = shown;
    taken(&mut before, &["status", "updated_at"]);
    assert_eq!(cancelled, before);
    assert_eq!(api.get(SESSION).await.data()["pending_timers"], 1);
}

#[tokio::test]
async fn switched_off_there_are_no_such_paths() {
    let world = World::new().await;
    let daemon = world.chronosd_with("api", &[("CHRONOS_AUTONOMY_ENABLED", "false")]).await;
    let ann = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    for api in [&ann, &Api::new(&daemon.api_url()).with_bearer(None)] {
        let nowhere = api.get("/v1/nowhere").await;
        assert_eq!(nowhere.refusal(), (404, "not_found", ""));
        for (method, rest) in [
            (Method::GET, ""),
            (Method::POST, "/events"),
            (Method::GET, "/events"),
            (Method::POST, "/checkpoints"),
            (Method::GET, "/effects"),
            (Method::POST, "/effects/x/ack"),
            (Method::GET, "/timers"),
            (Method::DELETE, "/timers/x"),
        ] {
            let answer = api.send(api.request(method.clone(), &of_session(rest))).await;
            assert_eq!((answer.status, &answer.text), (404, &nowhere.text), "{method} {rest}");
        }
    }
}
