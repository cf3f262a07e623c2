//! How much an agent may ask for, and what it is told when that is too much.

use chronos::{domain::quota::Quotas, store::agents::Enrolled};
use serde_json::{Value, json};

use super::{created, in_an_hour, path};
use crate::support::{AgentKey, Daemon, World, alarms::execute, api::Api};

/// An agent with these quotas.
async fn limited(max_active_alarms: Option<u32>, min_interval_seconds: Option<u32>) -> (World, Daemon, Api) {
    let world = World::new().await;
    let daemon = world.chronosd("api").await;
    let ann = AgentKey::of("ann");
    let key = hex::decode(&ann.public_key).unwrap().try_into().unwrap();
    let quotas = Quotas { max_active_alarms, min_interval_seconds };
    let store = world.database.store().await;
    let enrolled = store.enrol_by_hand_unless_held(&ann.did.parse().unwrap(), &key, quotas).await.unwrap();
    assert!(matches!(enrolled, Enrolled::Stands(_)));
    let api = ann.sign_in(&daemon.api_url()).await;
    (world, daemon, api)
}

fn keyed(key: &str) -> Value {
    json!({ "kind": "once", "delay_seconds": 3600, "wake_message": "m", "idempotency_key": key, "labels": { "team": "ops" } })
}

#[tokio::test]
async fn an_agent_with_all_its_places_taken_is_told_the_limit_and_its_use() {
    let (_world, _daemon, api) = limited(Some(2), None).await;
    let first = created(&api, &keyed("a")).await;
    created(&api, &in_an_hour()).await;
    let full = api.send(api.request(reqwest::Method::POST, "/v1/alarms").body(in_an_hour().to_string())).await;
    assert_eq!(full.refusal(), (429, "quota_exceeded", ""), "{}", full.text);
    assert_eq!(full.body["error"]["details"], json!({ "quota": "max_active_alarms", "limit": 2, "use": 2 }));
    assert_eq!(full.headers["retry-after"], "60");
    // Whoever repeats a request is not asking for one more; a paused alarm keeps its place, one that is over does not.
    assert_eq!(created(&api, &keyed("a")).await, first);
    api.act(&format!("{}/pause", path(&first))).await.data();
    assert_eq!(api.post("/v1/alarms", &in_an_hour()).await.refusal().1, "quota_exceeded");
    assert_eq!(api.put("/v1/alarms/by-key/b", &in_an_hour()).await.refusal(), (429, "quota_exceeded", ""));
    api.delete(&path(&first)).await.data();
    let third = created(&api, &in_an_hour()).await;
    assert_eq!(api.get("/v1/alarms?status=active,paused").await.data()["count"], 2);

    // Nor is one that is over armed again.
    assert_eq!(api.act(&format!("{}/rearm", path(&first))).await.refusal(), (429, "quota_exceeded", ""));
    let over = api.put("/v1/alarms/by-key/a", &in_an_hour()).await;
    assert_eq!(over.refusal(), (429, "quota_exceeded", ""));
    api.delete(&path(&third)).await.data();
    assert_eq!(api.act(&format!("{}/rearm", path(&first))).await.data()["status"], "active");
    // Changing one that has its place takes none.
    let put = api.put("/v1/alarms/by-key/a", &in_an_hour()).await.data();
    assert_eq!((&put["created"], &put["changed"]), (&json!(false), &json!(true)));
}

#[tokio::test]
async fn of_twenty_that_ask_for_the_last_places_at_once_as_many_as_there_are_get_one() {
    let (_world, _daemon, api) = limited(Some(5), None).await;
    let (body, key) = (in_an_hour(), keyed("the last"));
    let puts = (0..10).map(|number| {
        let (api, key) = (&api, &key);
        async move {
            let mut key = key.clone();
            key.as_object_mut().unwrap().remove("idempotency_key");
            api.put(&format!("/v1/alarms/by-key/{number}"), &key).await
        }
    });
    let posts = (0..10).map(|_| api.post("/v1/alarms", &body));
    let (puts, posts) = tokio::join!(futures::future::join_all(puts), futures::future::join_all(posts));
    let told: Vec<u16> = puts.iter().chain(&posts).map(|answer| answer.status).collect();
    assert_eq!(told.iter().filter(|status| **status == 200).count(), 5, "{told:?}");
    assert_eq!(told.iter().filter(|status| **status == 429).count(), 15, "{told:?}");
    assert_eq!(api.get("/v1/alarms").await.data()["count"], 5);
}

#[tokio::test]
async fn a_bulk_arms_as_many_again_as_there_are_places() {
    let (_world, _daemon, api) = limited(Some(3), None).await;
    for key in ["a", "b", "c"] {
        created(&api, &keyed(key)).await;
    }
    let cancelled = api.post("/v1/alarms/bulk", &json!({ "action": "cancel", "selector": "team=ops" })).await.data();
    assert_eq!(cancelled["changed"], 3);
    created(&api, &in_an_hour()).await;
    let rearm = json!({ "action": "rearm", "selector": "team=ops" });
    let rearmed = api.post("/v1/alarms/bulk", &rearm).await.data();
    let told = |bulk: &Value| {
        (bulk["matched"].clone(), bulk["changed"].clone(), bulk["skipped"].clone(), bulk["truncated"].clone())
    };
    assert_eq!(told(&rearmed), (json!(3), json!(2), json!(1), json!(false)));
    let again = api.post("/v1/alarms/bulk", &rearm).await.data();
    assert_eq!(told(&again), (json!(1), json!(0), json!(1), json!(false)), "calling again would not help");
}

#[tokio::test]
async fn a_series_that_fires_too_often_is_told_how_often_it_may() {
    let (world, _daemon, api) = limited(None, Some(300)).await;
    let cron = |expression: &str| json!({ "kind": "cron", "cron_expr": expression, "wake_message": "m" });
    let fast = api.post("/v1/alarms", &cron("*/2 * * * *")).await;
    assert_eq!(fast.refusal(), (429, "quota_exceeded", "cron_expr"), "{}", fast.text);
    assert_eq!(fast.body["error"]["details"], json!({ "quota": "min_interval_seconds", "limit": 300, "use": 120 }));
    assert_eq!(fast.body["error"]["retryable"], false, "it will not become slower");
    assert_eq!(api.put("/v1/alarms/by-key/k", &cron("@every 1m")).await.refusal().1, "quota_exceeded");
    let id = created(&api, &cron("*/5 * * * *")).await;
    let faster = api.patch(&path(&id), &json!({ "cron_expr": "* * * * *" })).await;
    assert_eq!(faster.refusal(), (429, "quota_exceeded", "cron_expr"));
    // A quota that came later holds when the alarm is armed again.
    let mut db = world.database.connect().await;
    let old = created(&api, &cron("*/5 * * * *")).await;
    execute(
        &mut db,
        &format!("UPDATE alarms SET cron_expr = '* * * * *', labels = '{{\"team\":\"ops\"}}' WHERE id = '{old}'"),
    )
    .await;
    api.delete(&path(&old)).await.data();
    assert_eq!(api.act(&format!("{}/rearm", path(&old))).await.refusal(), (429, "quota_exceeded", "cron_expr"));
    let bulk = api.post("/v1/alarms/bulk", &json!({ "action": "rearm", "selector": "team=ops" })).await.data();
    assert_eq!((&bulk["changed"], &bulk["skipped"]), (&json!(0), &json!(1)));
    // Once is not often.
    created(&api, &in_an_hour()).await;
    assert_eq!(api.get(&path(&id)).await.data()["cron_expr"], "*/5 * * * *");
    assert_eq!(api.get("/v1/alarms?status=active").await.data()["count"], 2);
}
