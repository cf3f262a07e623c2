//! `POST /v1/alarms/bulk`: one verb for all that a selector means.

use serde_json::{Value, json};

use super::{created, door, path};
use crate::support::AgentKey;

fn labelled(team: &str) -> Value {
    json!({ "kind": "cron", "cron_expr": "@daily", "wake_message": "m", "labels": { "team": team } })
}

#[tokio::test]
async fn a_verb_reaches_all_that_the_selector_means_and_a_dry_run_none() {
    let (_world, daemon, api) = door().await;
    let bob = AgentKey::of("bob").sign_in(&daemon.api_url()).await;
    let of_bob = created(&bob, &labelled("ops")).await;
    let (first, second) = (created(&api, &labelled("ops")).await, created(&api, &labelled("ops")).await);
    let other = created(&api, &labelled("dev")).await;
    let bulk = async |body: Value| api.post("/v1/alarms/bulk", &body).await.data();
    let status = async |id: &str| api.get(&path(id)).await.data()["status"].as_str().unwrap().to_owned();

    let both = json!({ "matched": 2, "changed": 2, "skipped": 0, "ids": [first, second], "truncated": false });
    let dry = bulk(json!({ "action": "pause", "selector": "team=ops", "dry_run": true })).await;
    assert_eq!((&dry, status(&first).await.as_str()), (&both, "active"));
    assert_eq!(bulk(json!({ "action": "pause", "selector": "team in (ops)" })).await, both);
    assert_eq!((status(&first).await.as_str(), status(&other).await.as_str()), ("paused", "active"));
    let again = bulk(json!({ "action": "pause", "selector": "team=ops" })).await;
    assert_eq!((&again["changed"], &again["skipped"]), (&json!(0), &json!(2)));
    assert_eq!(bulk(json!({ "action": "resume", "selector": "team=ops" })).await["changed"], 2);
    assert_eq!(bulk(json!({ "action": "cancel", "selector": "team=ops" })).await["changed"], 2);
    let only = bulk(json!({ "action": "rearm", "selector": "team", "status": "fired,failed" })).await;
    assert_eq!(only["matched"], 0);
    assert_eq!(bulk(json!({ "action": "rearm", "selector": "team", "status": "cancelled" })).await["changed"], 2);
    assert_eq!(bob.get(&path(&of_bob)).await.data()["revision"], 1, "nobody else's");
}

#[tokio::test]
async fn a_bulk_that_means_everything_or_nothing_known_is_refused() {
    let (_world, _daemon, api) = door().await;
    for (body, field) in [
        (json!({ "action": "cancel", "selector": "" }), "selector"),
        (json!({ "action": "cancel", "selector": " , " }), "selector"),
        (json!({ "action": "cancel", "selector": "team in (" }), "selector"),
        (json!({ "action": "cancel" }), "selector"),
        (json!({ "action": "delete", "selector": "team=ops" }), "action"),
        (json!({ "selector": "team=ops" }), "action"),
        (json!({ "action": "cancel", "selector": "team=ops", "status": "gone" }), "status"),
        (json!({ "action": "cancel", "selector": "team=ops", "dry_run": "yes" }), "dry_run"),
        (json!({ "action": "cancel", "selector": "team=ops", "force": true }), "force"),
    ] {
        let refused = api.post("/v1/alarms/bulk", &body).await;
        assert_eq!(refused.refusal(), (400, "invalid_request", field), "{body}: {}", refused.text);
    }
}
