//! Timers of service calls that come due: published, then marked, for as long as it takes.

use std::collections::HashSet;

use chrono::{DateTime, TimeDelta, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::{QUICK, attempts, now_ish};
use crate::support::{AgentKey, Reply, Sink, WAKE_TOKEN, World, api::Api, eventually};

const SINK_TOKEN: &str = "sink-token-of-the-tests-000000001";
const SIGNER: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz";

fn timer(call: &str) -> String {
    format!("/v1/service-calls/{call}/timer")
}

async fn registered(api: &Api, call: &str) {
    api.send(api.request(Method::PUT, &format!("/v1/service-calls/{call}"))).await.data();
}

/// Registers a call and gives it a timer that is due.
async fn due_now(api: &Api, call: &str) -> Value {
    registered(api, call).await;
    api.put(&timer(call), &json!({ "due_at": now_ish(), "correlation_id": "request-7" })).await.data()
}

async fn reached(api: &Api, call: &str) -> Value {
    eventually(&format!("the timer of {call} is reached"), || async {
        let timer = api.get(&timer(call)).await.data();
        (timer["state"] == "Reached").then_some(timer)
    })
    .await
}

/// The alarm that a call's timer is.
async fn alarm_of(db: &mut PgConnection, call: &str) -> String {
    sqlx::query_scalar("SELECT id::text FROM alarms WHERE service_call_id = $1").bind(call).fetch_one(db).await.unwrap()
}

fn deliveries<'a>(events: impl IntoIterator<Item = &'a crate::gauntlet::sink::Received>) -> HashSet<String> {
    events.into_iter().map(|event| event.body["delivery_id"].to_string()).collect()
}

#[tokio::test]
async fn a_timer_tells_its_call_in_time_and_says_the_same_instant_everywhere() {
    let world = World::new().await;
    // Nobody looks unless a hint says so.
    let seldom = [("CHRONOS_TICK_MS", "86400000"), ("CHRONOS_BEAT_MS", "86400000")];
    let daemon = world.chronosd_with("api,dispatch", &seldom).await;
    let ann = AgentKey::of("ann");
    let api = ann.sign_in(&daemon.api_url()).await;
    super::hints::listens(&world).await;
    registered(&api, "call-1").await;
    let due_at = chronos::clock::system().now() + TimeDelta::seconds(1);
    let payload = r#"{"b": 1e2, "a":1.0}"#;
    let body = format!(r#"{{"due_at":"{}","correlation_id":"request-7","payload":{payload}}}"#, due_at.to_rfc3339());
    let scheduled = api.send(api.request(Method::PUT, &timer("call-1")).body(body.clone())).await.data();

    let event = world.sink.wakes(1).await.remove(0);
    let text = std::str::from_utf8(&event.bytes).unwrap();
    assert!(text.contains(&format!(r#""payload":{payload},"#)), "to the byte: {text}");
    assert_eq!(
        event.body,
        json!({
            "tenant_id": ann.did, "service_call_id": "call-1", "correlation_id": "request-7",
            "due_at": scheduled["due_at"], "reached_at": event.body["reached_at"],
            "payload": { "b": 100.0, "a": 1.0 }, "delivery_id": event.body["delivery_id"]
        })
    );
    let instant = |value: &Value| value.as_str().unwrap().parse::<DateTime<Utc>>().unwrap();
    assert!(instant(&event.body["reached_at"]) >= instant(&event.body["due_at"]), "early: {}", event.body);
    let header = |name: &str| event.headers[name].to_str().unwrap();
    for name in ["idempotency-key", "webhook-id", "ce-id"] {
        assert_eq!(header(name), event.body["delivery_id"], "{name}");
    }
    assert_eq!(header("ce-type"), "dev.chronos.timer.due-time-reached");
    assert_eq!((header("ce-subject"), header("ce-time")), ("call-1", event.body["due_at"].as_str().unwrap()));
    assert_eq!(header("authorization"), format!("Bearer {WAKE_TOKEN}"), "the router's origin, the router's token");

    let view = reached(&api, "call-1").await;
    assert_eq!(view["reached_at"], event.body["reached_at"]);
    let mut db = world.database.connect().await;
    let (said, delivered): (String, i64) = sqlx::query_as(
        "SELECT reached_at, (SELECT count(*) FROM attempts WHERE outcome = 'delivered') FROM timer_schedules",
    )
    .fetch_one(&mut db)
    .await
    .unwrap();
    assert_eq!((json!(said), delivered), (view["reached_at"].clone(), 1));

    // The very same command: its instant has passed by now, so it is due at once, as another event.
    api.send(api.request(Method::PUT, &timer("call-1")).body(body)).await.data();
    let events = world.sink.wakes(2).await;
    assert_eq!(deliveries(&events).len(), 2);
    assert_eq!(events[1].body["due_at"], events[0].body["due_at"], "due when it was due");
    let view = reached(&api, "call-1").await;
    assert_eq!(view["reached_at"], events[1].body["reached_at"]);
}

#[tokio::test]
async fn an_event_that_nobody_takes_is_sent_again_for_as_long_as_it_takes() {
    let world = World::new().await;
    let refusals = [503, 410, 404, 302, 500, 410, 429, 503];
    world.sink.reply(refusals.map(Reply::Status).into_iter().chain([Reply::HoldThen(410)]));
    // An agent's alarm would be given up at the first.
    let settings: Vec<_> = QUICK.iter().copied().chain([("CHRONOS_MAX_FAILURES", "0")]).collect();
    let daemon = world.chronosd_with("api,dispatch", &settings).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let scheduled = due_now(&api, "call-1").await;

    world.sink.wakes(9).await;
    let climbing = api.get(&timer("call-1")).await.data();
    assert_eq!(climbing, scheduled, "still scheduled for when it was due, not for when it is tried next");
    world.sink.release();
    let events = world.sink.wakes(10).await;
    assert_eq!(deliveries(&events).len(), 1, "one event");
    let view = reached(&api, "call-1").await;
    assert_eq!(view["reached_at"], events[9].body["reached_at"], "as the one says that was taken");
    let mut db = world.database.connect().await;
    let id = alarm_of(&mut db, "call-1").await;
    let outcomes: Vec<_> = attempts(&mut db, &id).await.into_iter().map(|one| one.outcome).collect();
    assert_eq!(outcomes, [vec!["retrying"; 9], vec!["delivered"]].concat());
    assert_eq!(world.sink.received().len(), 10, "and no more");
}

#[tokio::test]
async fn an_event_whose_dispatcher_was_killed_before_it_could_mark_it_comes_again_under_the_same_id() {
    const SWIFT: &[(&str, &str)] = &[("CHRONOS_BEAT_MS", "1000")];
    let world = World::new().await;
    world.sink.reply([Reply::Hold]);
    let facade = world.chronosd("api").await;
    let api = AgentKey::of("ann").sign_in(&facade.api_url()).await;
    let first = world.chronosd_with("dispatch", SWIFT).await;
    due_now(&api, "call-1").await;
    world.sink.wakes(1).await;
    first.kill().await;
    assert_eq!(api.get(&timer("call-1")).await.data()["state"], "Scheduled");

    let _second = world.chronosd_with("dispatch", SWIFT).await;
    let events = world.sink.wakes(2).await;
    assert_eq!(deliveries(&events).len(), 1);
    let view = reached(&api, "call-1").await;
    assert_eq!(view["reached_at"], events[1].body["reached_at"]);
}

#[tokio::test]
async fn a_late_answer_changes_nothing_about_a_call_that_was_deleted_or_scheduled_anew() {
    let world = World::new().await;
    world.sink.reply([Reply::Hold, Reply::Hold]);
    let daemon = world.chronosd("api,dispatch").await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    due_now(&api, "deleted").await;
    due_now(&api, "moved").await;
    world.sink.wakes(2).await;
    let mut db = world.database.connect().await;
    let (deleted, moved) = (alarm_of(&mut db, "deleted").await, alarm_of(&mut db, "moved").await);

    let gone = api.delete("/v1/service-calls/deleted").await.data();
    assert_eq!(gone, json!({ "deleted": true, "in_flight": true }), "its event may still arrive");
    let anew = api.put(&timer("moved"), &json!({ "due_at": "2099-01-01T00:00:00Z" })).await.data();
    world.sink.release();
    let recorded = async |alarm: &str| {
        let alarm = alarm.to_owned();
        eventually("the attempt is recorded", || async {
            let outcomes: Vec<(String, Option<i32>)> =
                sqlx::query_as("SELECT outcome, http_status FROM attempts WHERE alarm_id = $1::uuid ORDER BY attempt")
                    .bind(&alarm)
                    .fetch_all(&mut world.database.connect().await)
                    .await
                    .unwrap();
            outcomes.iter().any(|(_, status)| status.is_some()).then_some(outcomes)
        })
        .await
    };
    let told = |outcome: &str, status| (outcome.to_owned(), status);
    // The deletion's own trace, and what the sink answered to the event.
    assert_eq!(recorded(&deleted).await, [told("cancelled", None), told("cancelled", Some(202))]);
    assert_eq!(recorded(&moved).await, [told("fenced", Some(202))]);
    assert_eq!(api.get(&timer("deleted")).await.status, 404);
    assert_eq!(api.get(&timer("moved")).await.data(), anew);
}

#[tokio::test]
async fn a_sink_on_another_origin_gets_its_own_token_and_the_routers_token_goes_to_the_router_alone() {
    let (world, sink) = tokio::join!(World::new(), Sink::start());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, SINK_TOKEN).unwrap();
    let settings = [
        ("CHRONOS_TIMER_SINK_URL", sink.url.as_str()),
        ("CHRONOS_TIMER_SINK_TOKEN_FILE", path.to_str().unwrap()),
        ("CHRONOS_WAKE_SIGNING_SECRET", SIGNER),
    ];
    let daemon = world.chronosd_with("api,dispatch", &settings).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    due_now(&api, "call-1").await;
    super::due_now(&api, json!({})).await;
    let (event, wake) = (sink.wakes(1).await.remove(0), world.sink.wakes(1).await.remove(0));
    assert_eq!(event.headers["authorization"], format!("Bearer {SINK_TOKEN}"));
    assert_eq!(wake.headers["authorization"], format!("Bearer {WAKE_TOKEN}"));
    assert!(event.headers.values().all(|value| !value.to_str().unwrap().contains(WAKE_TOKEN)), "{:?}", event.headers);
    assert_eq!((&event.body["service_call_id"], wake.body.get("service_call_id")), (&json!("call-1"), None));
    standardwebhooks::Webhook::new(SIGNER).unwrap().verify(&event.bytes, &event.headers).expect("signed like a wake");

    let renewed = "sink-token-of-the-tests-000000002";
    std::fs::write(&path, renewed).unwrap();
    let told = "CHRONOS_TIMER_SINK_TOKEN was renewed";
    eventually(told, || async { (daemon.said(told) == 1).then_some(()) }).await;
    due_now(&api, "call-2").await;
    let event = sink.wakes(2).await.remove(1);
    assert_eq!(event.headers["authorization"], format!("Bearer {renewed}"));
    assert_eq!((sink.received().len(), world.sink.received().len()), (2, 1), "each got its own");
    assert_eq!(daemon.said(SINK_TOKEN) + daemon.said(renewed), 0, "a secret in the log");
}
