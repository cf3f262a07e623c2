//! Service calls and their timers, as their tenants see them. What becomes of a timer that is due is in `dispatch`.

use reqwest::Method;
use serde_json::{Value, json};

use super::{door, later};
use crate::support::{
    AgentKey,
    alarms::execute,
    api::{Answer, Api},
};

const CALL: &str = "/v1/service-calls/call-1";
const TIMER: &str = "/v1/service-calls/call-1/timer";

/// A verb that says everything in its path.
async fn put(api: &Api, path: &str) -> Answer {
    api.send(api.request(Method::PUT, path)).await
}

#[tokio::test]
async fn a_call_is_registered_given_a_timer_looked_at_and_deleted() {
    let (world, _daemon, api) = door().await;
    let registered = put(&api, CALL).await.data();
    let tenant = registered["tenant_id"].clone();
    assert!(tenant.as_str().unwrap().starts_with("did:matrix:ann:"), "the caller's DID: {tenant}");
    assert_eq!(registered, json!({ "tenant_id": tenant, "service_call_id": "call-1" }));
    assert_eq!(put(&api, CALL).await.data(), registered, "again changes nothing");
    assert_eq!(api.get(TIMER).await.refusal(), (404, "not_found", ""), "it has no timer yet");

    let body = json!({ "due_at": "2099-12-31T23:00:00.0001-01:00", "correlation_id": "request 7", "payload": [1] });
    let scheduled = api.put(TIMER, &body).await.data();
    let expected = json!({
        "tenant_id": tenant, "service_call_id": "call-1", "correlation_id": "request 7",
        "due_at": "2100-01-01T00:00:00.001Z", "registered_at": scheduled["registered_at"], "reached_at": null,
        "state": "Scheduled"
    });
    assert_eq!(scheduled, expected, "rounded up to the millisecond");
    assert_eq!(api.get(TIMER).await.data(), expected);
    let viewed: String = sqlx::query_scalar("SELECT row_to_json(t)::text FROM timer_schedules AS t")
        .fetch_one(&mut world.database.connect().await)
        .await
        .unwrap();
    assert_eq!(serde_json::from_str::<Value>(&viewed).unwrap(), expected, "and so does the view");

    assert_eq!(api.delete(CALL).await.data(), json!({ "deleted": true, "in_flight": false }));
    let nothing = json!({ "deleted": false, "in_flight": false });
    assert_eq!(api.delete(CALL).await.data(), nothing);
    assert_eq!(api.delete("/v1/service-calls/no%20id").await.data(), nothing, "nobody has such a call");
    assert_eq!(api.get(TIMER).await.refusal(), (404, "not_found", ""));
    let refused = api.put(TIMER, &body).await;
    assert_eq!(refused.refusal(), (404, "not_found", ""));
    assert!(refused.text.contains("register it first: PUT /v1/service-calls/"), "{}", refused.text);
}

#[tokio::test]
async fn a_timer_that_is_asked_for_again_is_planned_anew_and_an_equal_one_only_renewed() {
    let (world, _daemon, api) = door().await;
    put(&api, CALL).await.data();
    let epoch = async || -> i64 {
        let mut db = world.database.connect().await;
        sqlx::query_scalar("SELECT schedule_epoch FROM alarms").fetch_one(&mut db).await.unwrap()
    };
    let (soon, late) = (later(3600), later(7200));
    let first = api.put(TIMER, &json!({ "due_at": soon, "correlation_id": "request-7" })).await.data();
    let second = api.put(TIMER, &json!({ "due_at": late, "payload": null })).await.data();
    assert_eq!(second["due_at"].as_str().unwrap().replace(".000Z", "Z"), late);
    assert_eq!(second["correlation_id"], "request-7", "the one it has stays");
    assert_eq!(epoch().await, 1);
    let third = api.put(TIMER, &json!({ "due_at": late, "payload": {} })).await.data();
    assert!(third["registered_at"].as_str() > second["registered_at"].as_str(), "{second} {third}");
    assert_eq!(epoch().await, 1, "the same command: {first} {third}");

    execute(&mut world.database.connect().await, "UPDATE alarms SET status = 'fired', last_fired_at = now()").await;
    let reached = api.get(TIMER).await.data();
    assert_eq!((&reached["state"], reached["reached_at"].is_string()), (&json!("Reached"), true));
    let again = api.put(TIMER, &json!({ "due_at": late })).await.data();
    assert_eq!((&again["state"], &again["reached_at"]), (&json!("Scheduled"), &Value::Null));
    assert_eq!(epoch().await, 2);
}

#[tokio::test]
async fn timers_are_traced_by_the_request_that_asked_for_them() {
    let (_world, _daemon, api) = door().await;
    let trace = "0af7651916cd43dd8448eb211c80319c";
    for (call, due_at, body_id) in [("b", later(200), None), ("a", later(100), None), ("c", later(50), Some("own"))] {
        put(&api, &format!("/v1/service-calls/{call}")).await.data();
        let body = json!({ "due_at": due_at, "correlation_id": body_id }).to_string();
        let request = api.request(Method::PUT, &format!("/v1/service-calls/{call}/timer"));
        let request = request.header("traceparent", format!("00-{trace}-b7ad6b7169203331-01")).body(body);
        let timer = api.send(request).await.data();
        assert_eq!(timer["correlation_id"], body_id.unwrap_or(trace));
    }
    put(&api, "/v1/service-calls/d").await.data();
    let made_up = api.put("/v1/service-calls/d/timer", &json!({ "due_at": later(1000) })).await.data();
    assert_eq!(made_up["correlation_id"].as_str().unwrap().len(), 36, "an id of our own: {made_up}");

    let traced = api.get(&format!("/v1/timers?correlation_id={trace}")).await.data();
    let calls: Vec<_> =
        traced["timers"].as_array().unwrap().iter().map(|timer| timer["service_call_id"].as_str().unwrap()).collect();
    assert_eq!((calls, &traced["count"]), (vec!["a", "b"], &json!(2)), "in the order in which they are due");
    assert_eq!(traced["timers"][0], api.get("/v1/service-calls/a/timer").await.data());
    let none = api.get("/v1/timers?correlation_id=nobody's").await.data();
    assert_eq!(none, json!({ "timers": [], "count": 0 }));
}

#[tokio::test]
async fn another_tenants_call_is_answered_to_the_byte_like_one_that_nobody_has() {
    let (_world, daemon, ann) = door().await;
    let bob = AgentKey::of("bob").sign_in(&daemon.api_url()).await;
    let body = json!({ "due_at": later(3600), "correlation_id": "shared" });
    put(&ann, CALL).await.data();
    let hers = ann.put(TIMER, &body).await.data();

    let ask = async |call: &str| {
        let path = format!("/v1/service-calls/{call}");
        let timer = format!("{path}/timer");
        [bob.get(&timer).await, bob.put(&timer, &body).await, bob.delete(&path).await]
    };
    let unknown = ask("nobodys").await;
    assert_eq!(unknown.each_ref().map(|answer| answer.status), [404, 404, 200]);
    for call in ["call-1", "CALL-1", "no%20id", "%ff", &"x".repeat(129)] {
        for (answer, expected) in ask(call).await.iter().zip(&unknown) {
            assert_eq!((answer.status, &answer.text), (expected.status, &expected.text), "{call}");
        }
    }
    let traced = async |id: &str| bob.get(&format!("/v1/timers?correlation_id={id}")).await.text;
    assert_eq!(traced("shared").await, traced("nobodys").await);
    assert_eq!(ann.get(TIMER).await.data(), hers, "hers stands as it stood");

    // The same names are his own calls and timers.
    put(&bob, CALL).await.data();
    let his = bob.put(TIMER, &body).await.data();
    assert_ne!(his["tenant_id"], hers["tenant_id"]);
    assert_eq!(bob.get("/v1/timers?correlation_id=shared").await.data(), json!({ "timers": [his], "count": 1 }));
    bob.delete(CALL).await.data();
    assert_eq!(ann.get(TIMER).await.data(), hers);
}

#[tokio::test]
async fn what_is_wrong_is_told_with_the_field_and_what_would_be_right() {
    let (world, _daemon, api) = door().await;
    put(&api, CALL).await.data();
    let id = "give 1 to 128 of A-Z a-z 0-9 _ . : -";
    let timer = |body: &str| (Method::PUT, TIMER.to_owned(), body.to_owned());
    let due = |more: &str| timer(&format!(r#"{{"due_at":"2099-01-01T00:00:00Z",{more}}}"#));
    let call = |id: &str| (Method::PUT, format!("/v1/service-calls/{id}"), String::new());
    let traced = |query: &str| (Method::GET, format!("/v1/timers{query}"), String::new());
    let cases = [
        (call("no%20id"), "service_call_id", format!("has a character other than A-Z a-z 0-9 _ . : -; {id}")),
        (
            call(&"x".repeat(129)),
            "service_call_id",
            format!("is 129 bytes long; a service call's id has 1 to 128; {id}"),
        ),
        (call("%ff"), "service_call_id", format!("is not UTF-8, percent-encoded; {id}")),
        ((Method::PUT, CALL.to_owned(), r#"{"ttl":1}"#.to_owned()), "ttl", "unknown field `ttl`".to_owned()),
        ((Method::PUT, format!("{CALL}?ttl=1"), String::new()), "ttl", "put them into the body".to_owned()),
        (timer(""), "", "the body is empty; send a JSON object".to_owned()),
        (timer("{}"), "due_at", "is missing; give date, time and offset, such as ".to_owned()),
        (timer(r#"{"due_at":null}"#), "due_at", "is missing; give date, time and offset".to_owned()),
        (timer(r#"{"due_at":1794819600}"#), "due_at", "expected a string".to_owned()),
        (timer(r#"{"due_at":"2099-01-01"}"#), "due_at", "which is a date without a time; give date, time".to_owned()),
        (timer(r#"{"due_at":"2099-01-01T09:00:00"}"#), "due_at", "without an offset; give date, time and".to_owned()),
        (timer(r#"{"due_at":"2101-01-01T00:00:00Z"}"#), "due_at", "after the year 2100, where".to_owned()),
        (timer(r#"{"due_at":"2100-12-31T23:59:59.9991Z"}"#), "due_at", "after the year 2100".to_owned()),
        (timer(r#"{"due_at":"1969-12-31T23:59:59Z"}"#), "due_at", "before the year 1970".to_owned()),
        (due(r#""due_at":"2099-01-01T00:00:00Z""#), "due_at", "duplicate field `due_at`".to_owned()),
        (
            due(r#""delay_seconds":5"#),
            "delay_seconds",
            "unknown field `delay_seconds`, expected one of `due_at`".to_owned(),
        ),
        (due(r#""correlation_id":"é""#), "correlation_id", "not printable ASCII; use letters, digits".to_owned()),
        (
            due(&format!(r#""correlation_id":"{}""#, "c".repeat(257))),
            "correlation_id",
            "is 257 bytes long; shorten it to at most 256 bytes".to_owned(),
        ),
        (due(r#""payload":{"a":"\u0000"}"#), "payload", "holds a NUL character".to_owned()),
        (
            due(&format!(r#""payload":{}{}"#, "[".repeat(65), "]".repeat(65))),
            "payload",
            "nested 65 deep; flatten it".to_owned(),
        ),
        (traced(""), "correlation_id", "is missing; say which request's timers are meant".to_owned()),
        (traced("?correlation_id="), "correlation_id", "is missing; say which".to_owned()),
        (traced("?correlation_id=%C3%A9"), "correlation_id", "not printable ASCII".to_owned()),
        (traced("?correlation_id=a&correlation_id=b"), "correlation_id", "is given twice; give it once".to_owned()),
        (
            traced("?correlation_id=a&limit=5"),
            "limit",
            "there is no parameter \"limit\"; there are correlation_id".to_owned(),
        ),
    ];
    for ((method, path, body), field, told) in cases {
        let answer = api.send(api.request(method.clone(), &path).body(body.clone())).await;
        assert_eq!(answer.refusal(), (400, "invalid_request", field), "{method} {path} {body}: {}", answer.text);
        let message = answer.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(&told), "{method} {path} {body}: {message}");
    }
    let large = format!(r#"{{"due_at":"2099-01-01T00:00:00Z","payload":"{}"}}"#, "x".repeat(256 * 1024));
    let answer = api.send(api.request(Method::PUT, TIMER).body(large)).await;
    assert_eq!(answer.refusal(), (413, "too_large", ""));
    let typed = api.request(Method::PUT, TIMER).header("content-type", "text/plain").body("{}");
    assert_eq!(api.send(typed).await.refusal(), (415, "invalid_request", ""));
    let stored: i64 = sqlx::query_scalar("SELECT (SELECT count(*) FROM alarms) + (SELECT count(*) FROM service_calls)")
        .fetch_one(&mut world.database.connect().await)
        .await
        .unwrap();
    assert_eq!(stored, 1, "nothing but the call");
}
