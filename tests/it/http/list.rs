//! `GET /v1/alarms?…`: filters, and page by page.

use serde_json::{Value, json};

use super::{created, door, later, path};
use crate::support::api::Api;

async fn listed(api: &Api, query: &str) -> Vec<String> {
    let page = api.get(&format!("/v1/alarms?{query}")).await.data();
    let labels: Vec<String> =
        page["alarms"].as_array().unwrap().iter().map(|alarm| alarm["label"].as_str().unwrap().to_owned()).collect();
    assert_eq!(page["count"], labels.len());
    labels
}

#[tokio::test]
async fn every_filter_narrows_the_list() {
    let (_world, _daemon, api) = door().await;
    let once = |label: &str, fire_at: &str, team: &str| json!({ "kind": "once", "fire_at": fire_at, "wake_message": "m", "label": label, "labels": { "team": team } });
    let (soon, late) = (later(600), later(7200));
    created(&api, &once("tea", &soon, "ops")).await;
    created(&api, &once("tea 100%", &late, "dev")).await;
    let mut cron = json!({ "kind": "cron", "cron_expr": "@yearly", "wake_message": "m", "label": "taxes" });
    cron["correlation_id"] = json!("trace-7");
    let cancelled = created(&api, &cron).await;
    api.delete(&path(&cancelled)).await.data();

    assert_eq!(listed(&api, "").await, ["taxes", "tea 100%", "tea"]);
    assert_eq!(listed(&api, "status=active").await, ["tea 100%", "tea"]);
    assert_eq!(listed(&api, "status=cancelled,fired").await, ["taxes"]);
    assert_eq!(listed(&api, "kind=cron").await, ["taxes"]);
    assert_eq!(listed(&api, "label_prefix=tea%20100%25").await, ["tea 100%"]);
    assert_eq!(listed(&api, "label_prefix=tea").await, ["tea 100%", "tea"]);
    assert_eq!(listed(&api, "labels=team%3Dops").await, ["tea"]);
    assert_eq!(listed(&api, "labels=team%21%3Dops").await, ["taxes", "tea 100%"]);
    assert_eq!(listed(&api, "correlation_id=trace-7").await, ["taxes"]);
    assert_eq!(listed(&api, &format!("due_before={late}")).await, ["tea"], "exclusive");
    assert_eq!(listed(&api, &format!("due_after={late}")).await, ["tea 100%"], "inclusive");
    assert_eq!(listed(&api, &format!("due_after={soon}&due_before={late}&kind=once")).await, ["tea"]);
    assert_eq!(listed(&api, "status=fired").await, Vec::<String>::new());
}

#[tokio::test]
async fn pages_follow_each_other_whatever_comes_in_meanwhile() {
    let (_world, _daemon, api) = door().await;
    let body = |label: &str| json!({ "kind": "once", "delay_seconds": 3600, "wake_message": "m", "label": label });
    for label in ["1", "2", "3", "4", "5"] {
        created(&api, &body(label)).await;
    }
    let (mut seen, mut query) = (Vec::new(), "limit=2".to_owned());
    loop {
        let page = api.get(&format!("/v1/alarms?{query}")).await.data();
        seen.extend(page["alarms"].as_array().unwrap().iter().map(|alarm| alarm["label"].as_str().unwrap().to_owned()));
        created(&api, &body("late")).await;
        let Some(cursor) = page.get("next_cursor").and_then(Value::as_str) else { break };
        query = format!("limit=2&cursor={cursor}");
    }
    assert_eq!(seen, ["5", "4", "3", "2", "1"]);
}

#[tokio::test]
async fn a_parameter_that_cannot_be_understood_is_refused_by_name() {
    let (_world, _daemon, api) = door().await;
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=-1", "limit"),
        ("limit=abc", "limit"),
        ("limit=", "limit"),
        ("limit=1.5", "limit"),
        ("limit=1&limit=2", "limit"),
        ("page=2", "page"),
        ("status=gone", "status"),
        ("status=", "status"),
        ("kind=weekly", "kind"),
        ("labels=a%20b", "labels"),
        ("label_prefix=%00", "label_prefix"),
        ("correlation_id=%00", "correlation_id"),
        ("due_after=tomorrow", "due_after"),
        ("due_before=2026-11-16", "due_before"),
        ("cursor=x", "cursor"),
        ("cursor=", "cursor"),
    ] {
        let refused = api.get(&format!("/v1/alarms?{query}")).await;
        assert_eq!(refused.refusal(), (400, "invalid_request", field), "{query}: {}", refused.text);
    }
    for clamped in ["501", "100000", "99999999999999999999999"] {
        assert_eq!(api.get(&format!("/v1/alarms?limit={clamped}")).await.status, 200, "{clamped}");
    }
}

#[tokio::test]
async fn a_page_of_heavy_alarms_ends_early_and_says_where_it_goes_on() {
    let (_world, _daemon, api) = door().await;
    let heavy = json!({ "kind": "once", "delay_seconds": 3600, "wake_message": "m", "payload": "x".repeat(250_000) });
    // 40 of them weigh 10 MB.
    let ids = futures::future::join_all((0..40).map(|_| created(&api, &heavy))).await;
    let (mut seen, mut pages, mut query) = (Vec::new(), 0, "limit=500".to_owned());
    loop {
        let page = api.get(&format!("/v1/alarms?{query}")).await.data();
        seen.extend(page["alarms"].as_array().unwrap().iter().map(|alarm| alarm["id"].as_str().unwrap().to_owned()));
        pages += 1;
        let Some(cursor) = page.get("next_cursor").and_then(Value::as_str) else { break };
        query = format!("limit=500&cursor={cursor}");
    }
    let (mut seen, mut ids) = (seen, ids);
    seen.sort();
    ids.sort();
    assert_eq!((seen, pages), (ids, 2));
}
