//! Claim, deliver, settle: what an alarm in Postgres goes through. What happens when something dies is in `faults`.

mod edits;
mod fairness;
mod hints;
mod hold;
mod late;
mod poison;
mod suspects;
mod suspended;
mod timers;
mod wait;

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::support::{AgentKey, Reply, World, api::Api, eventually};

/// Retries at once, so that a test climbs the ladder in moments.
const QUICK: &[(&str, &str)] = &[("CHRONOS_RETRY_BASE_MS", "20"), ("CHRONOS_RETRY_CAP_MS", "40")];
/// A lease that a test can wait for, with a wake timeout long enough to kill the dispatcher within it on a busy machine.
const SHORT_LEASE: &[(&str, &str)] = &[("CHRONOS_WAKE_TIMEOUT_SECONDS", "4"), ("CHRONOS_LEASE_SECONDS", "6")];

#[derive(Debug, PartialEq, sqlx::FromRow)]
struct Attempt {
    attempt: i32,
    outcome: String,
    http_status: Option<i32>,
    delivery_id: Uuid,
}

async fn attempts(database: &mut PgConnection, id: &str) -> Vec<Attempt> {
    sqlx::query_as(
        "SELECT attempt, outcome, http_status, delivery_id FROM attempts WHERE alarm_id = $1::uuid ORDER BY started_at",
    )
    .bind(id)
    .fetch_all(database)
    .await
    .unwrap()
}

async fn due_now(api: &Api, more: serde_json::Value) -> String {
    let mut body = json!({ "kind": "once", "fire_at": now_ish(), "wake_message": "m" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    api.post("/v1/alarms", &body).await.data()["id"].as_str().unwrap().to_owned()
}

/// An instant that has just passed: due at once.
fn now_ish() -> String {
    chronos::domain::rfc3339(chronos::clock::system().now() - chrono::TimeDelta::seconds(1))
}

async fn settled(api: &Api, id: &str, status: &str) -> serde_json::Value {
    eventually(&format!("alarm {id} is {status}"), || async {
        let view = api.get(&format!("/v1/alarms/{id}")).await.data();
        (view["status"] == status).then_some(view)
    })
    .await
}

#[tokio::test]
async fn a_wake_that_is_not_taken_is_tried_again_under_the_same_delivery_id() {
    let world = World::new().await;
    world.sink.reply([Reply::Status(503), Reply::RetryAfter(429, 0), Reply::Status(302)]);
    let daemon = world.chronosd_with("api,dispatch", QUICK).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let id = due_now(&api, json!({})).await;

    let wakes = world.sink.wakes(4).await;
    let numbers: Vec<_> = wakes.iter().map(|wake| wake.body["attempt"].as_i64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let deliveries: HashSet<_> = wakes.iter().map(|wake| wake.body["delivery_id"].to_string()).collect();
    assert_eq!(deliveries.len(), 1);
    let view = settled(&api, &id, "fired").await;
    assert_eq!((&view["failure_count"], &view["last_error"]), (&json!(0), &json!("")));

    let history = attempts(&mut world.database.connect().await, &id).await;
    let told: Vec<_> = history.iter().map(|one| (one.attempt, one.outcome.as_str(), one.http_status)).collect();
    assert_eq!(
        told,
        [
            (1, "retrying", Some(503)),
            (2, "retrying", Some(429)),
            (3, "retrying", Some(302)),
            (4, "delivered", Some(202))
        ]
    );
}

#[tokio::test]
async fn a_once_alarm_that_nobody_takes_is_given_up_with_the_reason() {
    let world = World::new().await;
    world.sink.reply([Reply::Status(500), Reply::Status(500), Reply::Status(500)]);
    let daemon = world.chronosd_with("api,dispatch", QUICK).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let id = due_now(&api, json!({ "max_failures": 1 })).await;

    let view = settled(&api, &id, "failed").await;
    assert_eq!(view["last_error"], "HTTP 500: said the sink");
    assert_eq!(world.sink.received().len(), 2, "attempts = max_failures + 1");
    let history = attempts(&mut world.database.connect().await, &id).await;
    assert_eq!(history.iter().map(|one| one.outcome.as_str()).collect::<Vec<_>>(), ["retrying", "exhausted"]);
}

#[tokio::test]
async fn a_wake_that_was_taken_counts_though_its_answer_never_ends() {
    let world = World::new().await;
    world.sink.reply([Reply::Unfinished]);
    let daemon = world.chronosd_with("api,dispatch", &[("CHRONOS_WAKE_TIMEOUT_SECONDS", "1")]).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let id = due_now(&api, json!({})).await;
    settled(&api, &id, "fired").await;
    assert_eq!(world.sink.received().len(), 1);
}

#[tokio::test]
async fn an_agent_that_is_gone_is_tried_once() {
    let world = World::new().await;
    world.sink.reply([Reply::Status(410)]);
    let daemon = world.chronosd_with("api,dispatch", QUICK).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let id = due_now(&api, json!({})).await;
    settled(&api, &id, "failed").await;
    assert_eq!(world.sink.received().len(), 1);
}

#[tokio::test]
async fn a_cron_alarm_fires_slot_after_slot_and_never_early() {
    let world = World::new().await;
    world.sink.reply([Reply::Status(202), Reply::Status(500), Reply::Status(500)]);
    let daemon = world.chronosd_with("api,dispatch", QUICK).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let body = json!({ "kind": "cron", "cron_expr": "@every 1s", "wake_message": "m", "max_failures": 1 });
    let id = api.post("/v1/alarms", &body).await.data()["id"].as_str().unwrap().to_owned();

    // Delivered, given up after one retry, delivered.
    let wakes = world.sink.wakes(4).await;
    let slots: Vec<DateTime<Utc>> =
        wakes.iter().map(|wake| wake.body["scheduled_for"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(slots[1], slots[2], "a retry is of the same slot");
    for pair in [(0, 1), (2, 3)] {
        let gap = slots[pair.1] - slots[pair.0];
        assert!(gap.num_seconds() >= 1 && gap.subsec_nanos() == 0, "slots lie whole intervals apart: {gap}");
    }
    let view = eventually("the fourth attempt is settled", || async {
        let view = api.get(&format!("/v1/alarms/{id}")).await.data();
        (view["fired_count"].as_i64() >= Some(2)).then_some(view)
    })
    .await;
    assert_eq!(view["status"], "active");

    let early: i64 =
        sqlx::query_scalar("SELECT count(*) FROM attempts WHERE alarm_id = $1::uuid AND started_at < scheduled_for")
            .bind(&id)
            .fetch_one(&mut world.database.connect().await)
            .await
            .unwrap();
    assert_eq!(early, 0);
}

#[tokio::test]
async fn a_late_answer_does_not_revive_a_cancelled_alarm() {
    let world = World::new().await;
    world.sink.reply([Reply::Hold]);
    let daemon = world.chronosd("api,dispatch").await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let id = due_now(&api, json!({})).await;
    world.sink.wakes(1).await;

    let cancelled = api.delete(&format!("/v1/alarms/{id}")).await.data();
    assert_eq!((&cancelled["status"], &cancelled["in_flight"]), (&json!("cancelled"), &json!(true)));
    world.sink.release();
    let history = eventually("the attempt is recorded", || async {
        let history = attempts(&mut world.database.connect().await, &id).await;
        (!history.is_empty()).then_some(history)
    })
    .await;
    assert_eq!((history[0].outcome.as_str(), history[0].http_status), ("cancelled", Some(202)));
    assert_eq!(api.get(&format!("/v1/alarms/{id}")).await.data()["status"], "cancelled");
}

#[tokio::test]
async fn a_wake_whose_dispatcher_was_killed_is_delivered_by_another_under_the_same_id() {
    let world = World::new().await;
    world.sink.reply([Reply::Hold]);
    let facade = world.chronosd("api").await;
    let api = AgentKey::of("ann").sign_in(&facade.api_url()).await;
    let first = world.chronosd_with("dispatch", SHORT_LEASE).await;
    let id = due_now(&api, json!({})).await;
    world.sink.wakes(1).await;
    first.kill().await;

    let _second = world.chronosd_with("dispatch", SHORT_LEASE).await;
    let wakes = world.sink.wakes(2).await;
    assert_eq!(wakes[0].body, wakes[1].body, "the same wake, the same delivery id, the same attempt");
    settled(&api, &id, "fired").await;
    let history = attempts(&mut world.database.connect().await, &id).await;
    assert_eq!(history.len(), 1, "the dead dispatcher never knew what became of its attempt");
}

#[tokio::test]
async fn two_dispatchers_deliver_every_alarm_once() {
    const ALARMS: usize = 300;
    let world = World::new().await;
    let facade = world.chronosd("api").await;
    let api = AgentKey::of("ann").sign_in(&facade.api_url()).await;
    let posts = (0..ALARMS).map(|number| due_now(&api, json!({ "label": number.to_string() })));
    let ids: Vec<String> = futures::future::join_all(posts).await;

    // Each takes as many as it has room for and waits; when both are full, the rest is let through.
    world.sink.reply((0..14).map(|_| Reply::Hold));
    let few = [("CHRONOS_CONCURRENCY", "7")];
    let (_first, _second) = tokio::join!(world.chronosd_with("dispatch", &few), world.chronosd_with("dispatch", &few));
    world.sink.wakes(14).await;
    world.sink.release();
    world.sink.wakes(ALARMS).await;
    let mut database = world.database.connect().await;
    eventually("all are fired", || async {
        let list = api.get("/v1/alarms?limit=500").await.data();
        let fired = list["alarms"].as_array().unwrap().iter().filter(|alarm| alarm["status"] == "fired").count();
        (fired == ALARMS).then_some(())
    })
    .await;
    let woken: HashSet<String> =
        world.sink.received().iter().map(|wake| wake.body["alarm_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(woken, ids.into_iter().collect());
    assert_eq!(world.sink.received().len(), ALARMS, "none twice");
    let workers: i64 =
        sqlx::query_scalar("SELECT count(DISTINCT worker) FROM attempts").fetch_one(&mut database).await.unwrap();
    assert_eq!(workers, 2);
}

#[tokio::test]
async fn a_dispatcher_that_is_told_to_stop_finishes_what_is_in_flight() {
    let world = World::new().await;
    world.sink.reply([Reply::Hold]);
    let facade = world.chronosd("api").await;
    let api = AgentKey::of("ann").sign_in(&facade.api_url()).await;
    let dispatcher = world.chronosd("dispatch").await;
    let id = due_now(&api, json!({})).await;
    world.sink.wakes(1).await;

    let stopped = tokio::spawn(dispatcher.terminate());
    world.sink.release();
    assert!(stopped.await.unwrap().success());
    assert_eq!(api.get(&format!("/v1/alarms/{id}")).await.data()["status"], "fired");
}

#[tokio::test]
async fn an_unreachable_router_is_told_in_the_owners_view() {
    let world = World::new().await;
    // A port that was free a moment ago: nobody listens.
    let nobody = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap().local_addr().unwrap();
    let url = format!("http://{nobody}/internal/wake");
    let daemon = world.chronosd_with("api,dispatch", &[("CHRONOS_ROUTER_WAKE_URL", &url)]).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let id = due_now(&api, json!({ "max_failures": 0 })).await;
    let view = settled(&api, &id, "failed").await;
    let error = view["last_error"].as_str().unwrap();
    assert!(error.starts_with("cannot connect: ") && error.contains("refused"), "{error}");
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_parked_and_stops_nobody_else() {
    let world = World::new().await;
    let facade = world.chronosd("api").await;
    let api = AgentKey::of("ann").sign_in(&facade.api_url()).await;
    let poison = due_now(&api, json!({})).await;
    let healthy = due_now(&api, json!({})).await;
    sqlx::query("UPDATE alarms SET kind = 'cron', fire_at = NULL, cron_expr = 'nonsense' WHERE id = $1::uuid")
        .bind(&poison)
        .execute(&mut world.database.connect().await)
        .await
        .unwrap();

    let _dispatcher = world.chronosd("dispatch").await;
    settled(&api, &healthy, "fired").await;
    let parked = settled(&api, &poison, "failed").await;
    assert!(parked["last_error"].as_str().unwrap().starts_with("cannot be read: cron_expr"), "{parked}");
}
