//! An owner changes an alarm: PATCH, pause, resume, fire, rearm.

use reqwest::Method;
use serde_json::{Value, json};

use super::{created, door, in_an_hour, later, path};
use crate::support::{AgentKey, World, alarms::execute, api::Api, eventually};

fn daily() -> Value {
    json!({ "kind": "cron", "cron_expr": "0 9 * * *", "wake_message": "m", "labels": { "team": "ops", "tier": "1" } })
}

#[tokio::test]
async fn a_patch_changes_what_it_names_and_null_goes_back_to_the_default() {
    let (_world, _daemon, api) = door().await;
    let mut body = daily();
    body["max_failures"] = json!(7);
    body["payload"] = json!({ "a": 1, "b": { "c": 2 } });
    let path = path(&created(&api, &body).await);
    let before = api.get(&path).await.data();
    let changes = json!({ "label": "new", "max_failures": null, "payload": { "b": 3 }, "labels": { "tier": null, "zone": "eu" } });
    let after = api.patch(&path, &changes).await.data();
    assert_eq!((&after["label"], &after["max_failures"]), (&json!("new"), &json!(5)));
    assert_eq!(after["payload"], json!({ "b": 3 }), "replaced whole");
    assert_eq!(after["labels"], json!({ "team": "ops", "zone": "eu" }), "merged one by one");
    assert_eq!(after["revision"], before["revision"].as_i64().unwrap() + 1);
    assert_eq!((&after["scheduled_for"], &after["wake_message"]), (&before["scheduled_for"], &json!("m")));
    // Nothing new: nothing written.
    assert_eq!(api.patch(&path, &json!({ "label": "new" })).await.data()["revision"], after["revision"]);
    assert_eq!(api.patch(&path, &json!({})).await.data()["revision"], after["revision"]);
    let merge_patch = api.request(Method::PATCH, &path).header("content-type", "application/merge-patch+json");
    assert_eq!(api.send(merge_patch.body(r#"{"label":null}"#)).await.data()["label"], "");
}

#[tokio::test]
async fn fire_at_and_delay_replace_each_other() {
    let (_world, _daemon, api) = door().await;
    let path = path(&created(&api, &in_an_hour()).await);
    let fire_at = later(7200);
    let view = api.patch(&path, &json!({ "fire_at": fire_at })).await.data();
    assert_eq!(
        (&view["fire_at"], &view["scheduled_for"], &view["next_fire_at"]),
        (&json!(fire_at), &json!(fire_at), &json!(fire_at))
    );
    let view = api.patch(&path, &json!({ "delay_seconds": 60 })).await.data();
    assert!(view["fire_at"].as_str() < Some(fire_at.as_str()), "{view}");
}

#[tokio::test]
async fn a_patch_that_cannot_stand_is_told_with_its_field() {
    let (_world, _daemon, api) = door().await;
    let (once, cron) = (path(&created(&api, &in_an_hour()).await), path(&created(&api, &daily()).await));
    for (path, patch, field) in [
        (&once, json!({ "kind": "cron" }), "kind"),
        (&once, json!({ "kind": null }), "kind"),
        (&once, json!({ "id": "x" }), "id"),
        (&once, json!({ "idempotency_key": "k" }), "idempotency_key"),
        (&once, json!({ "correlation_id": "c" }), "correlation_id"),
        (&once, json!({ "status": "paused" }), "status"),
        (&once, json!({ "wake_message": null }), "wake_message"),
        (&once, json!({ "fire_at": "2020-01-01T00:00:00Z" }), "fire_at"),
        (&once, json!({ "fire_at": null }), "fire_at"),
        (&once, json!({ "cron_expr": "@daily" }), "cron_expr"),
        (&once, json!({ "spread_seconds": 5 }), "spread_seconds"),
        (&cron, json!({ "cron_expr": "0 0 30 2 *" }), "cron_expr"),
        (&cron, json!({ "misfire": "never" }), "misfire"),
        (&cron, json!({ "labels": { "a b": "c" } }), "labels"),
        (&cron, json!({ "labels": ["a"] }), "labels"),
        (&cron, json!({ "max_failures": 101 }), "max_failures"),
        (&cron, json!({ "label": 5 }), "label"),
    ] {
        let refused = api.patch(path, &patch).await;
        assert_eq!(refused.refusal(), (400, "invalid_request", field), "{patch}: {}", refused.text);
    }
    let twice = api.request(Method::PATCH, &cron).body(r#"{"labels":{"a":"1","a":"2"}}"#);
    let twice = api.send(twice).await;
    assert_eq!(twice.refusal(), (400, "invalid_request", "labels"));
    assert!(twice.text.contains("twice"), "{}", twice.text);
    let view = api.get(&cron).await.data();
    assert_eq!((&view["revision"], &view["labels"]), (&json!(1), &json!({ "team": "ops", "tier": "1" })));
}

#[tokio::test]
async fn a_patch_for_an_older_revision_is_refused_and_tells_the_newer() {
    let (_world, _daemon, api) = door().await;
    let alarm = path(&created(&api, &daily()).await);
    let patch = async |revision: &str, label: &str| {
        let request = api.request(Method::PATCH, &alarm).header("if-match", revision);
        api.send(request.body(json!({ "label": label }).to_string())).await
    };
    assert_eq!(patch("\"1\"", "first").await.data()["revision"], 2);
    let stale = patch("\"1\"", "second").await;
    assert_eq!(stale.refusal(), (409, "conflict", ""));
    assert_eq!(stale.body["error"]["details"]["revision"], 2);
    assert_eq!(patch("*", "third").await.data()["label"], "third");
    for wrong in ["1", "\"x\"", "W/\"1\""] {
        assert_eq!(patch(wrong, "fourth").await.refusal(), (400, "invalid_request", "If-Match"), "{wrong}");
    }
}

#[tokio::test]
async fn pause_and_resume_may_be_repeated() {
    let (_world, _daemon, api) = door().await;
    let path = path(&created(&api, &daily()).await);
    let paused = api.act(&format!("{path}/pause")).await.data();
    assert_eq!((&paused["status"], &paused["paused_by"]), (&json!("paused"), &json!(["owner"])));
    assert_eq!((paused.get("next_fire_at"), &paused["upcoming"]), (None, &json!([])));
    assert_eq!(api.act(&format!("{path}/pause")).await.data()["revision"], paused["revision"]);
    // An empty object says as much as no body.
    let resumed = api.post(&format!("{path}/resume"), &json!({})).await.data();
    assert_eq!((&resumed["status"], &resumed["paused_by"]), (&json!("active"), &json!([])));
    assert_eq!(api.act(&format!("{path}/resume")).await.data()["revision"], resumed["revision"]);
    let refused = api.post(&format!("{path}/pause"), &json!({ "until": "tomorrow" })).await;
    assert_eq!(refused.refusal(), (400, "invalid_request", "until"));
}

#[tokio::test]
async fn an_alarm_can_be_fired_now_once_and_keeps_its_next_slot() {
    let world = World::new().await;
    let daemon = world.chronosd("api,dispatch").await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let path = path(&created(&api, &daily()).await);
    let before = api.get(&path).await.data();
    api.act(&format!("{path}/fire")).await.data();
    let wake = world.sink.wakes(1).await.remove(0);
    assert_eq!(wake.body["message"], "m");
    let after = eventually("it is settled", || async {
        let view = api.get(&path).await.data();
        (view["fired_count"] == 1).then_some(view)
    })
    .await;
    assert_eq!((&after["status"], &after["scheduled_for"]), (&json!("active"), &before["scheduled_for"]));
}

#[tokio::test]
async fn what_is_due_or_on_its_ladder_is_not_fired_again() {
    // Nobody dispatches here: what is due stays so.
    let (world, _daemon, api) = door().await;
    let path = path(&created(&api, &daily()).await);
    api.act(&format!("{path}/fire")).await.data();
    let due = api.act(&format!("{path}/fire")).await;
    assert_eq!(due.refusal(), (409, "conflict", ""));
    assert!(due.text.contains("due already; wait"), "{}", due.text);
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE alarms SET failure_count = 1, next_fire_at = now() + interval '1 minute'").await;
    assert!(api.act(&format!("{path}/fire")).await.text.contains("being retried"));
    api.act(&format!("{path}/pause")).await.data();
    assert!(api.act(&format!("{path}/fire")).await.text.contains("the alarm is paused"));
}

#[tokio::test]
async fn what_is_over_is_changed_by_rearm_alone() {
    let (_world, _daemon, api) = door().await;
    let path = path(&created(&api, &in_an_hour()).await);
    let living = api.act(&format!("{path}/rearm")).await;
    assert_eq!(living.refusal(), (409, "conflict", ""), "only what is over");
    api.delete(&path).await.data();
    for verb in ["pause", "resume", "fire"] {
        assert_eq!(api.act(&format!("{path}/{verb}")).await.refusal(), (409, "conflict", ""), "{verb}");
    }
    assert_eq!(api.patch(&path, &json!({ "label": "x" })).await.refusal(), (409, "conflict", ""));
    // Its instant is still ahead.
    let armed = api.act(&format!("{path}/rearm")).await.data();
    assert_eq!((&armed["status"], &armed["cancelled_by"]), (&json!("active"), &Value::Null));
    api.delete(&path).await.data();
    let fire_at = later(60);
    let armed = api.post(&format!("{path}/rearm"), &json!({ "fire_at": fire_at })).await.data();
    assert_eq!(armed["fire_at"], json!(fire_at));
}

#[tokio::test]
async fn a_once_alarm_whose_instant_passed_needs_another_to_be_armed_again() {
    let (world, _daemon, api) = door().await;
    let path = path(&created(&api, &in_an_hour()).await);
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE alarms SET status = 'fired', fire_at = now() - interval '1 hour', fired_count = 1").await;
    let rearm = async |body: Value| api.post(&format!("{path}/rearm"), &body).await;
    for (body, field) in [
        (json!({}), "fire_at"),
        (json!({ "fire_at": "2020-01-01T00:00:00Z" }), "fire_at"),
        (json!({ "delay_seconds": 0 }), "delay_seconds"),
        (json!({ "delay_seconds": 5, "fire_at": later(5) }), "fire_at"),
        (json!({ "when": "now" }), "when"),
    ] {
        let refused = rearm(body.clone()).await;
        assert_eq!(refused.refusal(), (400, "invalid_request", field), "{body}: {}", refused.text);
    }
    assert_eq!(rearm(json!({ "delay_seconds": 60 })).await.data()["status"], "active");
    let cron = super::path(&created(&api, &daily()).await);
    api.delete(&cron).await.data();
    let series = api.post(&format!("{cron}/rearm"), &json!({ "delay_seconds": 5 })).await;
    assert_eq!(series.refusal(), (400, "invalid_request", "fire_at"), "{}", series.text);
    assert_eq!(api.act(&format!("{cron}/rearm")).await.data()["status"], "active");
}

async fn managed(world: &World, api: &Api) -> String {
    let id = created(api, &in_an_hour()).await;
    let mut db = world.database.connect().await;
    execute(
        &mut db,
        &format!(
            "UPDATE alarms SET source = 'kubernetes', cluster_id = gen_random_uuid(), resource_uid = gen_random_uuid(),
             resource_namespace = 'home', resource_name = 'tea', resource_generation = 1, definition_hash = '\\x00',
             idempotency_key = 'k', labels = '{{\"team\":\"ops\"}}' WHERE id = '{id}'"
        ),
    )
    .await;
    id
}

#[tokio::test]
async fn an_alarm_of_a_resource_can_be_read_and_nothing_else() {
    let (world, _daemon, api) = door().await;
    let id = managed(&world, &api).await;
    let path = path(&id);
    let view = api.get(&path).await.data();
    assert_eq!(
        (&view["source"], &view["resource"]["namespace"], &view["resource"]["name"]),
        (&json!("kubernetes"), &json!("home"), &json!("tea"))
    );
    assert_eq!(api.get(&format!("{path}/attempts")).await.data()["count"], 0);
    let mut posted = in_an_hour();
    posted["idempotency_key"] = json!("k");
    for refused in [
        api.delete(&path).await,
        api.patch(&path, &json!({ "label": "x" })).await,
        api.act(&format!("{path}/pause")).await,
        api.act(&format!("{path}/resume")).await,
        api.act(&format!("{path}/fire")).await,
        api.act(&format!("{path}/rearm")).await,
        api.put("/v1/alarms/by-key/k", &in_an_hour()).await,
        api.post("/v1/alarms", &posted).await,
    ] {
        assert_eq!(refused.refusal(), (409, "conflict", ""), "{}", refused.text);
        assert!(refused.text.contains("Alarm home/tea"), "{}", refused.text);
    }
    let bulk = json!({ "action": "cancel", "selector": "team=ops" });
    let bulk = api.post("/v1/alarms/bulk", &bulk).await.data();
    assert_eq!((&bulk["changed"], &bulk["skipped"]), (&json!(0), &json!(1)));
    assert_eq!(api.get(&path).await.data()["revision"], view["revision"]);
}
