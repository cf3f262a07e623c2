//! `PUT /v1/alarms/by-key/{idempotency_key}`: the key stands for what the body says.

use serde_json::{Value, json};

use super::{created, door, in_an_hour, later, path};
use crate::support::{AgentKey, World, alarms::execute, api::Api, eventually};

const KEY: &str = "/v1/alarms/by-key/daily%2Fsummary";

fn daily() -> Value {
    json!({ "kind": "cron", "cron_expr": "0 9 * * *", "wake_message": "m", "correlation_id": "trace" })
}

/// What came of it, and the alarm.
async fn put(api: &Api, body: &Value) -> (bool, bool, Value) {
    let view = api.put(KEY, body).await.data();
    (view["created"].as_bool().unwrap(), view["changed"].as_bool().unwrap(), view)
}

#[tokio::test]
async fn the_first_put_creates_and_an_equal_one_changes_nothing() {
    let (_world, _daemon, api) = door().await;
    let (is_new, changed, first) = put(&api, &daily()).await;
    assert!(is_new && changed);
    assert_eq!((&first["idempotency_key"], &first["status"]), (&json!("daily/summary"), &json!("active")));
    assert_eq!(first["correlation_id"], "trace");
    let (is_new, changed, second) = put(&api, &daily()).await;
    assert!(!is_new && !changed);
    assert_eq!((&second["id"], &second["revision"]), (&first["id"], &first["revision"]));
    // The same key as POST knows it.
    let mut posted = daily();
    posted["idempotency_key"] = json!("daily/summary");
    assert_eq!(api.post("/v1/alarms", &posted).await.data()["id"], first["id"]);
}

#[tokio::test]
async fn another_message_leaves_the_occurrence_alone_and_another_schedule_plans_anew() {
    let (_world, _daemon, api) = door().await;
    let (_, _, first) = put(&api, &daily()).await;
    let mut other = daily();
    other["wake_message"] = json!("another");
    let (is_new, changed, second) = put(&api, &other).await;
    assert!(!is_new && changed);
    assert_eq!((&second["wake_message"], &second["scheduled_for"]), (&json!("another"), &first["scheduled_for"]));
    assert_eq!(second["revision"], first["revision"].as_i64().unwrap() + 1);
    // A kind may become the other.
    let once = json!({ "kind": "once", "fire_at": later(7200), "wake_message": "another" });
    let (_, changed, third) = put(&api, &once).await;
    assert!(changed);
    assert_eq!((&third["id"], &third["kind"], &third["fire_at"]), (&first["id"], &json!("once"), &once["fire_at"]));
    assert_eq!(third.get("cron_expr"), None);
    // Left out, so the stored one stays.
    assert_eq!(third["correlation_id"], "trace");
}

#[tokio::test]
async fn a_delay_counts_anew_from_each_put() {
    let (_world, _daemon, api) = door().await;
    let body = json!({ "kind": "once", "delay_seconds": 3600, "wake_message": "m" });
    let (_, _, first) = put(&api, &body).await;
    let (_, changed, second) = put(&api, &body).await;
    assert!(changed && second["fire_at"].as_str() > first["fire_at"].as_str());
}

#[tokio::test]
async fn what_is_over_or_paused_by_its_owner_is_armed_again() {
    let (_world, _daemon, api) = door().await;
    let (_, _, alarm) = put(&api, &daily()).await;
    let path = path(alarm["id"].as_str().unwrap());
    assert_eq!(api.delete(&path).await.data()["status"], "cancelled");
    let (is_new, changed, armed) = put(&api, &daily()).await;
    assert!(!is_new && changed);
    assert_eq!((&armed["id"], &armed["status"]), (&alarm["id"], &json!("active")));
    assert_eq!((&armed["cancelled_by"], &armed["failure_count"]), (&Value::Null, &json!(0)));

    assert_eq!(api.act(&format!("{path}/pause")).await.data()["paused_by"], json!(["owner"]));
    let (_, changed, armed) = put(&api, &daily()).await;
    assert!(changed);
    assert_eq!((&armed["status"], &armed["paused_by"]), (&json!("active"), &json!([])));
}

#[tokio::test]
async fn a_put_lifts_the_pause_of_the_owner_and_nobody_elses() {
    let (world, _daemon, api) = door().await;
    let (_, _, alarm) = put(&api, &daily()).await;
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE alarms SET status = 'paused', paused_by = '{owner,agent}'").await;
    let (_, changed, after) = put(&api, &daily()).await;
    assert!(changed);
    assert_eq!((&after["status"], &after["paused_by"]), (&json!("paused"), &json!(["agent"])));
    assert_eq!(after["id"], alarm["id"]);
}

#[tokio::test]
async fn what_has_fired_at_an_instant_does_not_fire_for_it_again() {
    let world = World::new().await;
    let daemon = world.chronosd("api,dispatch").await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let body = json!({ "kind": "once", "fire_at": later(1), "wake_message": "once and for all" });
    let (_, _, alarm) = put(&api, &body).await;
    world.sink.wakes(1).await;
    let path = path(alarm["id"].as_str().unwrap());
    eventually("the alarm is fired", || async { (api.get(&path).await.data()["status"] == "fired").then_some(()) })
        .await;
    // An answer was lost, and the caller tries again: within the 30 s in which an instant just passed is still accepted.
    let again = api.put(KEY, &body).await;
    assert_eq!(again.refusal(), (400, "invalid_request", "fire_at"), "{}", again.text);
    assert_eq!(api.get(&path).await.data()["fired_count"], 1);
}

#[tokio::test]
async fn twenty_puts_of_one_key_at_once_make_one_alarm() {
    let (_world, _daemon, api) = door().await;
    let body = daily();
    let answers = futures::future::join_all((0..20).map(|_| api.put(KEY, &body))).await;
    let views: Vec<Value> = answers.into_iter().map(crate::support::api::Answer::data).collect();
    assert!(views.iter().all(|view| view["id"] == views[0]["id"]));
    assert_eq!(views.iter().filter(|view| view["created"] == true).count(), 1);
    assert_eq!(views.iter().filter(|view| view["changed"] == true).count(), 1);
}

#[tokio::test]
async fn a_key_is_its_owners() {
    let (_world, daemon, ann) = door().await;
    let bob = AgentKey::of("bob").sign_in(&daemon.api_url()).await;
    let (_, _, of_ann) = put(&ann, &daily()).await;
    let (is_new, _, of_bob) = put(&bob, &daily()).await;
    assert!(is_new && of_ann["id"] != of_bob["id"]);
}

#[tokio::test]
async fn a_put_that_cannot_stand_is_told_and_leaves_everything_as_it_was() {
    let (_world, _daemon, api) = door().await;
    let (_, _, before) = put(&api, &daily()).await;
    let with = |name: &str, value: Value| {
        let mut body = daily();
        body[name] = value;
        body
    };
    let past = json!({ "kind": "once", "fire_at": "2020-01-01T00:00:00Z", "wake_message": "m" });
    for (body, field) in [
        (with("idempotency_key", json!("other")), "idempotency_key"),
        (with("cron_expr", json!("0 0 30 2 *")), "cron_expr"),
        (with("wake_message", json!("")), "wake_message"),
        (with("correlation_id", json!("é")), "correlation_id"),
        (with("snooze", json!(1)), "snooze"),
        (past, "fire_at"),
    ] {
        let refused = api.put(KEY, &body).await;
        assert_eq!(refused.refusal(), (400, "invalid_request", field), "{body}: {}", refused.text);
    }
    for (key, told) in [("%ff", "not UTF-8"), ("a%00b", "NUL"), (&"x".repeat(257), "257 bytes")] {
        let refused = api.put(&format!("/v1/alarms/by-key/{key}"), &daily()).await;
        assert_eq!(refused.refusal(), (400, "invalid_request", "idempotency_key"), "{key}");
        assert!(refused.text.contains(told), "{}", refused.text);
    }
    // The same key in the body is no other one.
    let (_, changed, after) = put(&api, &with("idempotency_key", json!("daily/summary"))).await;
    assert!(!changed);
    assert_eq!(after["revision"], before["revision"]);
    assert_eq!(api.get("/v1/alarms").await.data()["count"], 1);
}

#[tokio::test]
async fn an_alarm_that_cannot_be_read_is_replaced() {
    let (world, _daemon, api) = door().await;
    let (_, _, before) = put(&api, &daily()).await;
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE alarms SET timezone = 'Mars/Olympus', status = 'failed', last_error = 'cannot be read'")
        .await;
    let parked = api.get(&path(before["id"].as_str().unwrap())).await.data();
    assert!(parked["description"].as_str().unwrap().starts_with("cannot be read: timezone"), "{parked}");
    let (_, changed, after) = put(&api, &daily()).await;
    assert!(changed);
    assert_eq!((&after["id"], &after["status"], &after["timezone"]), (&before["id"], &json!("active"), &json!("UTC")));
    assert_eq!(after["last_error"], "");
    created(&api, &in_an_hour()).await;
}

#[tokio::test]
async fn a_put_with_the_same_schedule_keeps_the_place_on_the_ladder() {
    let (world, _daemon, api) = door().await;
    let (_, _, alarm) = put(&api, &daily()).await;
    let mut db = world.database.connect().await;
    execute(
        &mut db,
        "UPDATE alarms SET failure_count = 2, last_error = 'router: 503', scheduled_for = now() - interval '1 minute',
                           next_fire_at = now() + interval '1 minute'",
    )
    .await;
    let mut other = daily();
    other["wake_message"] = json!("another");
    let (_, changed, after) = put(&api, &other).await;
    assert!(changed);
    assert_eq!((&after["failure_count"], &after["last_error"]), (&json!(2), &json!("router: 503")));
    let path = path(alarm["id"].as_str().unwrap());
    assert_eq!(api.act(&format!("{path}/fire")).await.refusal(), (409, "conflict", ""), "it is being retried");
}

#[tokio::test]
async fn a_put_on_a_paused_alarm_whose_wake_is_under_way_does_not_send_it_twice() {
    let world = World::new().await;
    let daemon = world.chronosd("api,dispatch").await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    world.sink.always(crate::support::Reply::Hold);
    let body = json!({ "kind": "once", "fire_at": later(1), "wake_message": "once" });
    let (_, _, alarm) = put(&api, &body).await;
    let path = path(alarm["id"].as_str().unwrap());
    world.sink.wakes(1).await;
    api.act(&format!("{path}/pause")).await.data();
    let (_, changed, after) = put(&api, &body).await;
    assert!(changed);
    assert_eq!(after["status"], "active");
    world.sink.always(crate::support::Reply::Status(200));
    world.sink.release();
    eventually("the alarm is fired", || async { (api.get(&path).await.data()["status"] == "fired").then_some(()) })
        .await;
    assert_eq!(world.sink.received().len(), 1);
    // Nor does another message make it fire for the same instant again.
    let mut other = body;
    other["wake_message"] = json!("another");
    assert_eq!(api.put(KEY, &other).await.refusal(), (400, "invalid_request", "fire_at"));
}
