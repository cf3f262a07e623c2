//! `GET /v1/alarms/{id}/attempts`: what became of every try, and of every slot that had none.

use serde_json::{Value, json};

use super::{created, path};
use crate::support::{AgentKey, Reply, World, alarms::execute, eventually};

#[tokio::test]
async fn every_attempt_is_told_newest_first_and_page_by_page() {
    let world = World::new().await;
    let daemon = world.chronosd_with("api,dispatch", &[("CHRONOS_RETRY_BASE_MS", "50")]).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    world.sink.always(Reply::Status(503));
    let body = json!({ "kind": "once", "delay_seconds": 1, "wake_message": "m", "max_failures": 2 });
    let path = path(&created(&api, &body).await);
    let view = eventually("it is given up", || async {
        let view = api.get(&path).await.data();
        (view["status"] == "failed").then_some(view)
    })
    .await;
    assert_ne!(view["last_error"], "");

    let history = api.get(&format!("{path}/attempts")).await.data();
    assert_eq!((&history["count"], history.get("next_cursor")), (&json!(3), None));
    let attempts = history["attempts"].as_array().unwrap();
    let told =
        |attempt: &Value| (attempt["attempt"].clone(), attempt["outcome"].clone(), attempt["http_status"].clone());
    assert_eq!(
        attempts.iter().map(told).collect::<Vec<_>>(),
        [
            (json!(3), json!("exhausted"), json!(503)),
            (json!(2), json!("retrying"), json!(503)),
            (json!(1), json!("retrying"), json!(503))
        ]
    );
    for attempt in attempts {
        assert_eq!(attempt["scheduled_for"], view["scheduled_for"]);
        assert_eq!(attempt["delivery_id"], attempts[0]["delivery_id"], "one occurrence, one id");
        assert!(attempt["worker"].is_string() && attempt["duration_ms"].is_number(), "{attempt}");
        assert!(!attempt["error"].as_str().unwrap().is_empty(), "{attempt}");
        assert_eq!(attempt.get("slots"), None);
    }
    let first = api.get(&format!("{path}/attempts?limit=2")).await.data();
    assert_eq!(first["count"], 2);
    let rest = format!("{path}/attempts?limit=2&cursor={}", first["next_cursor"].as_str().unwrap());
    let rest = api.get(&rest).await.data();
    assert_eq!((&rest["attempts"][0], rest.get("next_cursor")), (&attempts[2], None));
    let refused = api.get(&format!("{path}/attempts?status=failed")).await;
    assert_eq!(refused.refusal(), (400, "invalid_request", "status"));
}

#[tokio::test]
async fn slots_that_did_not_fire_are_told_as_one_run() {
    let (world, _daemon, api) = super::door().await;
    let body = json!({ "kind": "cron", "cron_expr": "* * * * *", "wake_message": "m" });
    let path = path(&created(&api, &body).await);
    api.act(&format!("{path}/pause")).await.data();
    let mut db = world.database.connect().await;
    execute(
        &mut db,
        "UPDATE alarms SET scheduled_for = date_trunc('minute', now()) - interval '9 minutes',
                           next_fire_at = date_trunc('minute', now()) - interval '9 minutes'",
    )
    .await;
    api.act(&format!("{path}/resume")).await.data();
    let history = api.get(&format!("{path}/attempts")).await.data();
    assert_eq!(history["count"], 1);
    let run = &history["attempts"][0];
    assert_eq!((&run["attempt"], &run["outcome"], &run["reason"]), (&json!(0), &json!("skipped"), &json!("paused")));
    assert!(run["slots"].as_i64().unwrap() >= 10, "{run}");
    assert!(run["first_at"].as_str() < run["last_at"].as_str() && run["last_at"] == run["scheduled_for"], "{run}");
}
