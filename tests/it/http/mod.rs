//! The agents' door: `contract` holds it to the source document sentence by sentence, the others tell of what was added.

mod bulk;
mod contract;
mod edit;
mod foreign;
mod history;
mod list;
mod openapi;
mod preview;
mod put;
mod quotas;
mod rotation;
mod server;
mod service_calls;
mod sessions;
mod sign_in;
mod tls;

use chrono::SubsecRound;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{AgentKey, World, api::Api};

/// A running facade and an agent that has signed in.
pub async fn door() -> (World, crate::support::Daemon, Api) {
    let world = World::new().await;
    let daemon = world.chronosd("api").await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    (world, daemon, api)
}

pub fn in_an_hour() -> Value {
    json!({ "kind": "once", "delay_seconds": 3600, "wake_message": "wake up" })
}

/// Creates an alarm; its id.
pub async fn created(api: &Api, body: &Value) -> String {
    api.post("/v1/alarms", body).await.data()["id"].as_str().unwrap().to_owned()
}

pub fn path(id: &str) -> String {
    format!("/v1/alarms/{id}")
}

/// That many seconds from now, on the whole second: as it is written, so it comes back.
pub fn later(seconds: i64) -> String {
    let now = chronos::clock::system().now().trunc_subsecs(0);
    chronos::domain::rfc3339(now + chrono::TimeDelta::seconds(seconds))
}

#[tokio::test]
async fn an_alarm_posted_over_http_wakes_the_router() {
    let world = World::new().await;
    let daemon = world.chronosd("api,dispatch").await;
    let ann = AgentKey::of("ann");
    let api = ann.sign_in(&daemon.api_url()).await;

    let body = json!({
        "kind": "once", "delay_seconds": 1, "label": "tea", "wake_message": "the tea is ready",
        "conversation_id": "conv_1", "payload": { "cup": 2 }, "correlation_id": "trace-1"
    });
    let receipt = api.post("/v1/alarms", &body).await.data();
    assert_eq!(receipt["status"], "active");
    assert_eq!(receipt["deduped"], false);
    assert_eq!(receipt["next_fire_at"], receipt["scheduled_for"]);

    let wake = world.sink.wakes(1).await.remove(0);
    assert_eq!(wake.headers["authorization"], format!("Bearer {}", crate::support::WAKE_TOKEN));
    assert_eq!(wake.headers["idempotency-key"].to_str().unwrap(), wake.body["delivery_id"].as_str().unwrap());
    let mut body = wake.body.clone();
    body.as_object_mut().unwrap().remove("delivery_id");
    assert_eq!(
        body,
        json!({
            "user_id": "ann", "conversation_id": "conv_1", "message": "the tea is ready", "payload": { "cup": 2 },
            "alarm_id": receipt["id"], "origin": "chronos", "scheduled_for": receipt["scheduled_for"], "attempt": 1,
            "kind": "once", "label": "tea", "owner_did": ann.did, "correlation_id": "trace-1", "missed": 0
        })
    );

    let path = format!("/v1/alarms/{}", receipt["id"].as_str().unwrap());
    let fired = crate::support::eventually("the alarm is fired", || async {
        let view = api.get(&path).await.data();
        (view["status"] == "fired").then_some(view)
    })
    .await;
    assert_eq!(fired["fired_count"], 1);
    assert_eq!(fired["last_error"], "");
    assert_eq!(fired.get("next_fire_at"), None, "an alarm that is not active has no next time");
    assert!(fired["last_fired_at"].is_string());
}

#[tokio::test]
async fn a_cancelled_alarm_stays_silent() {
    let world = World::new().await;
    let daemon = world.chronosd("api,dispatch").await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let post = async |message: &str, seconds: i64| {
        let body = json!({ "kind": "once", "delay_seconds": seconds, "wake_message": message });
        api.post("/v1/alarms", &body).await.data()["id"].as_str().unwrap().to_owned()
    };
    // Far enough ahead to cancel in time on a busy machine.
    let silent = post("must not be heard", 4).await;
    post("comes a second later", 5).await;

    let cancelled = api.delete(&format!("/v1/alarms/{silent}")).await.data();
    assert_eq!((&cancelled["status"], &cancelled["in_flight"]), (&json!("cancelled"), &json!(false)));
    assert_eq!(cancelled["cancelled_by"], "owner");

    // By the time the later one is here, the cancelled one would have been.
    let wakes = world.sink.wakes(1).await;
    let messages: Vec<_> = wakes.iter().map(|wake| wake.body["message"].as_str().unwrap()).collect();
    assert_eq!(messages, ["comes a second later"]);
    let again = api.delete(&format!("/v1/alarms/{silent}")).await.data();
    assert_eq!(again["status"], "cancelled", "cancelling twice is fine");
}

#[tokio::test]
async fn an_alarm_is_seen_as_it_was_written() {
    let (_world, _daemon, api) = door().await;
    // To the byte: order of keys, spelling of numbers, white space, escapes.
    let payload = "{\"b\": 1e2,\t\"a\":1.0, \"big\":12345678901234567890, \"s\":\"\\u00e9 \u{1f600}\"}";
    let body = format!(
        r#"{{"kind":"cron","cron_expr":"0 9 * * MON-FRI","timezone":"America/New_York","wake_message":"m","payload":{payload},"max_failures":3}}"#
    );
    let receipt = api.post_text("/v1/alarms", &body).await.data();
    let answer = api.get(&format!("/v1/alarms/{}", receipt["id"].as_str().unwrap())).await;
    assert!(answer.text.contains(&format!("\"payload\":{payload},")), "{}", answer.text);
    let view = answer.data();
    assert_eq!(view["cron_expr"], "0 9 * * MON-FRI");
    assert_eq!(view["timezone"], "America/New_York");
    assert_eq!(view["max_failures"], 3);
    assert_eq!(view["source"], "api");
    assert_eq!(view["resource"], Value::Null);
    assert_eq!(view["last_fired_at"], Value::Null);

    let list = api.get("/v1/alarms").await;
    assert!(list.text.contains(&format!("\"payload\":{payload},")), "{}", list.text);
    let list = list.data();
    assert_eq!(list["count"], 1);
    assert_eq!(list["alarms"][0]["id"], receipt["id"]);
}

#[tokio::test]
async fn payloads_that_other_parsers_stumble_over_come_back_all_the_same() {
    let (_world, _daemon, api) = door().await;
    for payload in [r#"{"n":1e400}"#, r#"{"s":"\ud800"}"#, "[1.0,-0]", r#""text""#, "7"] {
        let body = format!(r#"{{"kind":"once","delay_seconds":3600,"wake_message":"m","payload":{payload}}}"#);
        api.post_text("/v1/alarms", &body).await.data();
        let list = api.get("/v1/alarms?limit=1").await;
        assert!(list.status == 200 && list.text.contains(&format!("\"payload\":{payload},")), "{}", list.text);
    }
    // null is as good as nothing.
    let absent =
        json!({ "kind": "once", "delay_seconds": 3600, "wake_message": "m", "payload": null, "correlation_id": "" });
    api.post("/v1/alarms", &absent).await.data();
    let view = api.get("/v1/alarms?limit=1").await.data()["alarms"][0].clone();
    assert_eq!(view["payload"], json!({}));
    assert_ne!(view["correlation_id"], "");
}

#[tokio::test]
async fn the_newest_alarms_are_listed_first_and_pages_are_capped() {
    let (_world, _daemon, api) = door().await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(api.post("/v1/alarms", &in_an_hour()).await.data()["id"].clone());
    }
    let page = api.get("/v1/alarms?limit=2").await.data();
    assert_eq!(page["count"], 2);
    assert_eq!((&page["alarms"][0]["id"], &page["alarms"][1]["id"]), (&ids[2], &ids[1]));
    assert_eq!(api.get("/v1/alarms?limit=100000").await.data()["count"], 3);
    for limit in ["0", "-1", "abc", ""] {
        let refused = api.get(&format!("/v1/alarms?limit={limit}")).await;
        assert_eq!(refused.refusal(), (400, "invalid_request", "limit"), "{limit:?}");
    }
    assert_eq!(api.get("/v1/alarms?page=2").await.refusal(), (400, "invalid_request", "page"));
}

#[tokio::test]
async fn the_same_key_finds_the_same_alarm() {
    let (_world, _daemon, api) = door().await;
    let keyed = |kind: &str, schedule: (&str, Value)| json!({ "kind": kind, schedule.0: schedule.1, "wake_message": "m", "idempotency_key": "k" });
    let once = keyed("once", ("delay_seconds", json!(3600)));
    let first = api.post("/v1/alarms", &once).await.data();
    let second = api.post("/v1/alarms", &once).await.data();
    assert_eq!((&second["id"], &second["deduped"]), (&first["id"], &json!(true)));

    // The header counts as the field.
    let by_header =
        api.request(Method::POST, "/v1/alarms").header("idempotency-key", "k").body(in_an_hour().to_string());
    assert_eq!(api.send(by_header).await.data()["id"], first["id"]);
    let both = api.request(Method::POST, "/v1/alarms").header("idempotency-key", "other").body(once.to_string());
    assert_eq!(api.send(both).await.refusal(), (400, "invalid_request", "idempotency_key"));

    let cron = keyed("cron", ("cron_expr", json!("@daily")));
    assert_eq!(api.post("/v1/alarms", &cron).await.refusal(), (409, "conflict", ""));
    assert_eq!(api.get("/v1/alarms").await.data()["count"], 1);
}

#[tokio::test]
async fn a_key_finds_its_alarm_also_after_its_instant_has_passed() {
    let (_world, _daemon, api) = door().await;
    // As far back as a request may lie; a second later it may not any more.
    let fire_at = chronos::domain::rfc3339(chronos::clock::system().now() - chrono::TimeDelta::seconds(28));
    let plain = json!({ "kind": "once", "fire_at": fire_at, "wake_message": "m" });
    let mut keyed = plain.clone();
    keyed["idempotency_key"] = json!("k");
    let first = api.post("/v1/alarms", &keyed).await.data();
    crate::support::eventually("the instant is too far back for a new alarm", || async {
        (api.post("/v1/alarms", &plain).await.refusal() == (400, "invalid_request", "fire_at")).then_some(())
    })
    .await;
    let again = api.post("/v1/alarms", &keyed).await.data();
    assert_eq!((&again["id"], &again["deduped"]), (&first["id"], &json!(true)));
}

#[tokio::test]
async fn twenty_posts_with_one_key_at_once_make_one_alarm() {
    let (_world, _daemon, api) = door().await;
    let body = json!({ "kind": "once", "delay_seconds": 3600, "wake_message": "m", "idempotency_key": "k" });
    let answers = futures::future::join_all((0..20).map(|_| api.post("/v1/alarms", &body))).await;
    let receipts: Vec<Value> = answers.into_iter().map(crate::support::api::Answer::data).collect();
    assert!(receipts.iter().all(|receipt| receipt["id"] == receipts[0]["id"]));
    assert_eq!(receipts.iter().filter(|receipt| receipt["deduped"] == false).count(), 1);
}

#[tokio::test]
async fn owners_never_see_or_touch_each_others_alarms() {
    let (_world, daemon, ann) = door().await;
    let bob = AgentKey::of("bob").sign_in(&daemon.api_url()).await;
    let id = ann.post("/v1/alarms", &in_an_hour()).await.data()["id"].as_str().unwrap().to_owned();

    let unknown = "/v1/alarms/00000000-0000-0000-0000-000000000000";
    for method in [Method::GET, Method::DELETE] {
        let foreign = bob.send(bob.request(method.clone(), &format!("/v1/alarms/{id}"))).await;
        assert_eq!(foreign.refusal(), (404, "not_found", ""));
        for other in [unknown, "/v1/alarms/nonsense", "/v1/alarms/%ff"] {
            let other = bob.send(bob.request(method.clone(), other)).await;
            assert_eq!((other.status, &other.text), (404, &foreign.text), "byte for byte the same");
        }
    }
    assert_eq!(bob.get("/v1/alarms").await.data()["count"], 0);
    assert_eq!(ann.get(&format!("/v1/alarms/{id}")).await.data()["status"], "active");
}

#[tokio::test]
async fn both_layers_of_auth_are_needed_and_the_answer_does_not_say_which_failed() {
    let (_world, daemon, signed_in) = door().await;
    let anonymous = Api::new(&daemon.api_url());
    let refused = [
        anonymous.get("/v1/alarms").await,
        anonymous.with_agent("forged.token").get("/v1/alarms").await,
        signed_in.with_bearer(None).get("/v1/alarms").await,
        signed_in.with_bearer(Some("wrong")).get("/v1/alarms").await,
        anonymous.with_bearer(None).post("/v1/agent/auth/challenge", &json!({ "did": "x" })).await,
    ];
    for answer in &refused {
        assert_eq!(answer.refusal(), (401, "unauthorized", ""));
        assert_eq!(answer.text, refused[0].text);
    }
}

#[tokio::test]
async fn a_challenge_is_good_for_one_proof_by_the_right_key() {
    let (_world, daemon, _) = door().await;
    let api = Api::new(&daemon.api_url());
    let (ann, eve) = (AgentKey::of("ann"), AgentKey::of("eve"));
    let challenge = async || api.post("/v1/agent/auth/challenge", &json!({ "did": ann.did })).await.data();
    let proof = |challenge: &Value, key: &AgentKey| {
        json!({
            "did": ann.did, "public_key": key.public_key, "nonce": challenge["nonce"],
            "signature": key.sign(challenge["message"].as_str().unwrap())
        })
    };
    let open = challenge().await;
    assert_eq!(open["expires_in"], 120);
    assert_eq!(open["message"], format!("matrix-chronos-auth:{}:{}", ann.did, open["nonce"].as_str().unwrap()));

    // What is malformed is told, and the challenge stays open.
    let mut malformed = proof(&open, &ann);
    malformed["public_key"] = json!("abc");
    assert_eq!(api.post("/v1/agent/auth/verify", &malformed).await.refusal(), (400, "invalid_request", "public_key"));
    let verified = api.post("/v1/agent/auth/verify", &proof(&open, &ann)).await.data();
    assert_eq!((&verified["owner_user_id"], &verified["expires_in"]), (&json!("ann"), &json!(86400)));

    for nonce in ["", "a\u{0}b", "short"] {
        let mut unknown = proof(&open, &ann);
        unknown["nonce"] = json!(nonce);
        assert_eq!(api.post("/v1/agent/auth/verify", &unknown).await.status, 401, "{nonce:?}");
    }

    // Used up; somebody else's key, though its signature is good; a signature of something else.
    assert_eq!(api.post("/v1/agent/auth/verify", &proof(&open, &ann)).await.status, 401);
    assert_eq!(api.post("/v1/agent/auth/verify", &proof(&challenge().await, &eve)).await.status, 401);
    let mut other_text = proof(&challenge().await, &ann);
    other_text["signature"] = json!(ann.sign("something else"));
    assert_eq!(api.post("/v1/agent/auth/verify", &other_text).await.status, 401);
}

#[tokio::test]
async fn the_oldest_of_too_many_open_challenges_is_replaced() {
    let (_world, daemon, _) = door().await;
    let api = Api::new(&daemon.api_url());
    let ann = AgentKey::of("ann");
    let mut open = Vec::new();
    for _ in 0..21 {
        open.push(api.post("/v1/agent/auth/challenge", &json!({ "did": ann.did })).await.data());
    }
    let prove = async |challenge: &Value| {
        let body = json!({
            "did": ann.did, "public_key": ann.public_key, "nonce": challenge["nonce"],
            "signature": ann.sign(challenge["message"].as_str().unwrap())
        });
        api.post("/v1/agent/auth/verify", &body).await.status
    };
    assert_eq!(prove(&open[0]).await, 401);
    assert_eq!(prove(&open[1]).await, 200);
    assert_eq!(prove(&open[20]).await, 200);
}

#[tokio::test]
async fn a_mistake_is_told_with_its_field_and_nothing_is_stored() {
    let (_world, _daemon, api) = door().await;
    let cases = [
        (json!({ "delay_seconds": 5, "wake_message": "m" }), "kind"),
        (json!({ "kind": "once", "delay_seconds": 5, "wake_message": "m", "snooze": 1 }), "snooze"),
        (json!({ "kind": "once", "delay_seconds": 5 }), "wake_message"),
        (json!({ "kind": "once", "delay_seconds": 5, "wake_message": "  " }), "wake_message"),
        (json!({ "kind": "sometimes", "delay_seconds": 5, "wake_message": "m" }), "kind"),
        (json!({ "kind": "once", "wake_message": "m" }), "fire_at"),
        (
            json!({ "kind": "once", "fire_at": "2099-01-01T00:00:00Z", "delay_seconds": 5, "wake_message": "m" }),
            "fire_at",
        ),
        (json!({ "kind": "once", "fire_at": "2020-01-01T00:00:00Z", "wake_message": "m" }), "fire_at"),
        (json!({ "kind": "once", "fire_at": "2099-01-01 00:00", "wake_message": "m" }), "fire_at"),
        (json!({ "kind": "once", "fire_at": "2101-01-01T00:00:00Z", "wake_message": "m" }), "fire_at"),
        (json!({ "kind": "once", "delay_seconds": 0, "wake_message": "m" }), "delay_seconds"),
        (json!({ "kind": "once", "delay_seconds": "5", "wake_message": "m" }), "delay_seconds"),
        (json!({ "kind": "once", "delay_seconds": 5, "cron_expr": "@daily", "wake_message": "m" }), "cron_expr"),
        (json!({ "kind": "cron", "wake_message": "m" }), "cron_expr"),
        (json!({ "kind": "cron", "cron_expr": "0 9 * * * *", "wake_message": "m" }), "cron_expr"),
        (json!({ "kind": "cron", "cron_expr": "0 0 30 2 *", "wake_message": "m" }), "cron_expr"),
        (json!({ "kind": "cron", "cron_expr": "@daily", "delay_seconds": 5, "wake_message": "m" }), "delay_seconds"),
        (json!({ "kind": "cron", "cron_expr": "@daily", "timezone": "Mars/Olympus", "wake_message": "m" }), "timezone"),
        (json!({ "kind": "once", "delay_seconds": 5, "timezone": "Mars/Olympus", "wake_message": "m" }), "timezone"),
        (json!({ "kind": "once", "delay_seconds": 5, "wake_message": "a\u{0}b" }), "wake_message"),
        (json!({ "kind": "once", "delay_seconds": 5, "wake_message": "m", "max_failures": 101 }), "max_failures"),
        (json!({ "kind": "once", "delay_seconds": 5, "wake_message": "m", "label": "x".repeat(257) }), "label"),
        (json!({ "kind": "once", "delay_seconds": 5, "wake_message": "m", "payload": { "a": "\u{0}" } }), "payload"),
        (json!({ "kind": "once", "delay_seconds": 5, "wake_message": "m", "correlation_id": "é" }), "correlation_id"),
        (
            json!({ "kind": "once", "delay_seconds": 5, "wake_message": "m", "idempotency_key": "x".repeat(257) }),
            "idempotency_key",
        ),
    ];
    for (body, field) in cases {
        let answer = api.post("/v1/alarms", &body).await;
        assert_eq!(answer.refusal(), (400, "invalid_request", field), "{body}: {}", answer.text);
    }
    // What no JSON library would send.
    let raw = |rest: &str| format!(r#"{{"kind":"once","delay_seconds":3600,"wake_message":"m",{rest}}}"#);
    let deep = format!(r#""payload":{}{}"#, "[".repeat(65), "]".repeat(65));
    let bomb = format!(r#""payload":{}"#, "[".repeat(100_000));
    for (rest, field) in [
        (r#""kind":"cron""#, "kind"),
        (r#""label":"a","label":"b""#, "label"),
        (r#""label":"a\u0000b""#, "label"),
        (r#""conversation_id":"a\u0000b""#, "conversation_id"),
        (r#""idempotency_key":"a\u0000b""#, "idempotency_key"),
        (r#""labels":{"a":"b\u0000"}"#, "labels"),
        (r#""labels":{"a":"1","a":"2"}"#, "labels"),
        (r#""max_failures":18446744073709551616"#, "max_failures"),
        (r#""max_failures":1e400"#, "max_failures"),
        (r#""max_failures":1.5"#, "max_failures"),
        (r#""max_failures":-1"#, "max_failures"),
        (r#""label":"\ud800""#, "label"),
        (r#""fire_at":7"#, "fire_at"),
        (deep.as_str(), "payload"),
        (bomb.as_str(), "payload"),
    ] {
        let answer = api.post_text("/v1/alarms", &raw(rest)).await;
        assert_eq!(answer.refusal(), (400, "invalid_request", field), "{:.99}: {:.300}", rest, answer.text);
    }
    let many: serde_json::Map<String, Value> = (0..65).map(|number| (format!("k{number}"), json!("v"))).collect();
    let many = json!({ "kind": "once", "delay_seconds": 5, "wake_message": "m", "labels": many });
    assert_eq!(api.post("/v1/alarms", &many).await.refusal(), (400, "invalid_request", "labels"));
    // A misspelt place for something is no licence to do it.
    let misplaced = api.send(api.request(Method::POST, "/v1/alarms?dry_run=true").body(in_an_hour().to_string())).await;
    assert_eq!(misplaced.refusal(), (400, "invalid_request", "dry_run"));
    // All at once: the person mends it once.
    let body = json!({ "kind": "once", "fire_at": "tomorrow", "wake_message": "", "correlation_id": "é" });
    let answer = api.post("/v1/alarms", &body).await;
    for field in ["correlation_id: ", "wake_message: ", "fire_at: "] {
        assert!(answer.text.contains(field), "{field} in {}", answer.text);
    }
    assert_eq!(api.get("/v1/alarms").await.data()["count"], 0);
}

#[tokio::test]
async fn every_answer_has_the_envelope() {
    let (_world, _daemon, api) = door().await;
    let large = format!(r#"{{"kind":"once","wake_message":"{}"}}"#, "x".repeat(300_000));
    let as_form = api
        .request(Method::POST, "/v1/alarms")
        .header("content-type", "application/x-www-form-urlencoded")
        .body("kind=once");
    let answers = [
        (api.get("/nowhere").await, 404, "not_found"),
        (api.send(api.request(Method::PUT, "/v1/alarms")).await, 405, "invalid_request"),
        (api.post_text("/v1/alarms", "{").await, 400, "invalid_request"),
        (api.post_text("/v1/alarms", "[]").await, 400, "invalid_request"),
        (api.post_text("/v1/alarms", "\"once\"").await, 400, "invalid_request"),
        (api.post_text("/v1/alarms", "").await, 400, "invalid_request"),
        (api.post_text("/v1/alarms", &large).await, 413, "too_large"),
        (api.send(as_form).await, 415, "invalid_request"),
    ];
    for (answer, status, code) in answers {
        assert_eq!(answer.refusal(), (status, code, ""), "{}", answer.text);
        assert_eq!(answer.body["ok"], false);
        assert_eq!(answer.body["error"]["retryable"], false);
    }
}

#[tokio::test]
async fn anybody_may_ask_what_it_is_and_how_it_is() {
    let (_world, daemon, _) = door().await;
    let anonymous = Api::new(&daemon.api_url()).with_bearer(None);
    assert_eq!(
        anonymous.get("/").await.data(),
        json!({ "service": "chronosd", "version": "0.1.0", "health": "/healthz" })
    );
    let health = anonymous.get("/healthz").await.data();
    assert_eq!((&health["status"], &health["db"]), (&json!("ok"), &json!(true)));
    assert!(health["tzdb"].as_str().is_some_and(|version| version.starts_with("20")), "{health}");
}

#[tokio::test]
async fn a_request_id_comes_back() {
    let (_world, daemon, api) = door().await;
    let request = api.request(Method::GET, "/").header("x-request-id", "mine").send().await.unwrap();
    assert_eq!(request.headers()["x-request-id"], "mine");
    let made = reqwest::get(daemon.api_url()).await.unwrap();
    assert!(made.headers().contains_key("x-request-id"));
}
