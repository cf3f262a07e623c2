//! `POST /v1/schedules/preview`: when would this fire?

use serde_json::{Value, json};

use super::{created, door, in_an_hour, later};
use crate::support::api::Api;

async fn preview(api: &Api, body: Value) -> Value {
    api.post("/v1/schedules/preview", &body).await.data()
}

#[tokio::test]
async fn a_preview_tells_slots_local_time_and_what_a_clock_change_does() {
    let (_world, _daemon, api) = door().await;
    let body =
        json!({ "cron_expr": "30 2 * * *", "timezone": "Europe/Berlin", "from": "2026-03-28T01:30:00Z", "n": 2 });
    let told = preview(&api, body).await;
    assert_eq!(told["description"], "at 02:30 every day, Europe/Berlin");
    assert_eq!(told["timezone"], "Europe/Berlin");
    assert!(told["tzdb"].as_str().unwrap().starts_with("20"));
    assert_eq!(
        told["fires"],
        json!([
            {
                "scheduled_for": "2026-03-29T01:00:00Z", "local": "2026-03-29T03:00:00+02:00",
                "note": "the clock skips 02:30; fires when it has", "effective_at": "2026-03-29T01:00:00Z"
            },
            {
                "scheduled_for": "2026-03-30T00:30:00Z", "local": "2026-03-30T02:30:00+02:00",
                "note": null, "effective_at": "2026-03-30T00:30:00Z"
            }
        ]),
        "`from` is exclusive"
    );
    assert_eq!(api.get("/v1/alarms").await.data()["count"], 0, "nothing is stored");
}

#[tokio::test]
async fn five_slots_from_now_unless_asked_otherwise() {
    let (_world, _daemon, api) = door().await;
    let fires = |told: Value| told["fires"].as_array().unwrap().len();
    assert_eq!(fires(preview(&api, json!({ "cron_expr": "@daily" })).await), 5);
    assert_eq!(fires(preview(&api, json!({ "cron_expr": "@daily", "n": 100 })).await), 100);
    assert_eq!(fires(preview(&api, json!({ "fire_at": later(60) })).await), 1);
    assert_eq!(fires(preview(&api, json!({ "delay_seconds": 60 })).await), 1);
    let once = preview(&api, json!({ "fire_at": "2090-01-01T00:00:00Z", "timezone": "Asia/Tokyo" })).await;
    assert_eq!(
        (&once["timezone"], &once["fires"][0]["local"]),
        (&json!("Asia/Tokyo"), &json!("2090-01-01T09:00:00+09:00"))
    );
    let window =
        json!({ "cron_expr": "@hourly", "starts_at": "2090-01-01T00:00:00Z", "ends_at": "2090-01-01T02:00:00Z" });
    let told = preview(&api, window).await;
    let slots: Vec<_> = told["fires"].as_array().unwrap().iter().map(|fire| fire["scheduled_for"].clone()).collect();
    assert_eq!(slots, ["2090-01-01T00:00:00Z", "2090-01-01T01:00:00Z"]);
}

#[tokio::test]
async fn an_interval_counts_from_its_start_or_from_where_the_preview_begins() {
    let (_world, _daemon, api) = door().await;
    let first = async |body| preview(&api, body).await["fires"][0]["scheduled_for"].clone();
    let from = "2090-01-01T00:00:10Z";
    assert_eq!(first(json!({ "cron_expr": "@every 1m", "from": from })).await, "2090-01-01T00:01:10Z");
    let started = json!({ "cron_expr": "@every 1m", "from": from, "starts_at": "2090-01-01T00:00:00Z" });
    assert_eq!(first(started).await, "2090-01-01T00:01:00Z");
}

#[tokio::test]
async fn with_a_spread_the_exact_instant_is_known_for_an_alarm_that_is_there() {
    let (_world, _daemon, api) = door().await;
    let spread = json!({ "cron_expr": "0 9 * * *", "spread_seconds": 3600, "n": 1 });
    let fire = preview(&api, spread.clone()).await["fires"][0].clone();
    assert_eq!(fire["effective_from"], fire["scheduled_for"]);
    assert_eq!(fire["effective_until"].as_str().unwrap()[11..], *"10:00:00Z");
    assert_eq!(fire.get("effective_at"), None);
    // No slot is moved onto the next one, however wide the window.
    let dense = json!({ "cron_expr": "@every 60s", "spread_seconds": 600, "n": 1, "from": "2090-01-01T00:00:00Z" });
    assert_eq!(preview(&api, dense).await["fires"][0]["effective_until"], "2090-01-01T00:02:00Z");

    let body = json!({ "kind": "cron", "cron_expr": "0 9 * * *", "spread_seconds": 3600, "wake_message": "m" });
    let id = created(&api, &body).await;
    let view = api.get(&super::path(&id)).await.data();
    let mut of_alarm = spread;
    of_alarm["alarm_id"] = json!(id);
    let told = preview(&api, of_alarm).await["fires"][0].clone();
    assert_eq!((&told["effective_at"], &told["scheduled_for"]), (&view["next_fire_at"], &view["scheduled_for"]));
    assert_eq!(view["upcoming"][0], view["next_fire_at"]);
    let beside = json!({ "alarm_id": id, "timezone": "Asia/Tokyo" });
    let refused = api.post("/v1/schedules/preview", &beside).await;
    assert_eq!(refused.refusal(), (400, "invalid_request", "timezone"), "{}", refused.text);
    // Without a schedule in the body it is the alarm's own.
    assert_eq!(preview(&api, json!({ "alarm_id": id, "n": 1 })).await["fires"][0], told);
}

#[tokio::test]
async fn a_preview_of_nothing_is_refused() {
    let (_world, _daemon, api) = door().await;
    created(&api, &in_an_hour()).await;
    for (body, field) in [
        (json!({}), "fire_at"),
        (json!({ "cron_expr": "0 0 30 2 *" }), "cron_expr"),
        (json!({ "cron_expr": "0 9 * * * *" }), "cron_expr"),
        (json!({ "cron_expr": "@daily", "timezone": "Berlin" }), "timezone"),
        (json!({ "cron_expr": "@daily", "fire_at": later(5) }), "fire_at"),
        (json!({ "fire_at": "2020-01-01T00:00:00Z" }), "fire_at"),
        (json!({ "cron_expr": "@daily", "n": 0 }), "n"),
        (json!({ "cron_expr": "@daily", "n": 101 }), "n"),
        (json!({ "cron_expr": "@daily", "from": "now" }), "from"),
        (json!({ "cron_expr": "@daily", "from": "2100-12-31T23:59:59Z" }), "from"),
        (json!({ "fire_at": "2090-01-01T00:00:00Z", "from": "2091-01-01T00:00:00Z" }), "from"),
        (json!({ "cron_expr": "@daily", "kind": "cron" }), "kind"),
    ] {
        let refused = api.post("/v1/schedules/preview", &body).await;
        assert_eq!(refused.refusal(), (400, "invalid_request", field), "{body}: {}", refused.text);
    }
}
