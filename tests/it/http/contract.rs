//! The source document `003`, sentence by sentence: an agent that was written against it works unchanged.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use reqwest::Method;
use serde_json::{Value, json};

use super::{created, door, in_an_hour, later, path};
use crate::support::{AgentKey, Proxy, TOKEN, World, alarms::execute, api::Api, eventually};

/// Every `/v1` route: method, path, body, and whether it needs the agent token, too.
fn routes() -> Vec<(Method, &'static str, Value, bool)> {
    let id = "/v1/alarms/11111111-2222-3333-4444-555555555555";
    let path = |verb: &str| -> &'static str { Box::leak(format!("{id}{verb}").into_boxed_str()) };
    vec![
        (Method::POST, "/v1/agent/auth/challenge", json!({ "did": "did:matrix:ann:d75a980182b10ab7" }), false),
        (Method::POST, "/v1/agent/auth/verify", json!({}), false),
        (Method::POST, "/v1/alarms", json!({}), true),
        (Method::GET, "/v1/alarms", Value::Null, true),
        (Method::POST, "/v1/alarms/bulk", json!({}), true),
        (Method::PUT, "/v1/alarms/by-key/k", json!({}), true),
        (Method::GET, path(""), Value::Null, true),
        (Method::PATCH, path(""), json!({}), true),
        (Method::DELETE, path(""), Value::Null, true),
        (Method::GET, path("/attempts"), Value::Null, true),
        (Method::POST, path("/pause"), Value::Null, true),
        (Method::POST, path("/resume"), Value::Null, true),
        (Method::POST, path("/fire"), Value::Null, true),
        (Method::POST, path("/rearm"), Value::Null, true),
        (Method::POST, "/v1/schedules/preview", json!({}), true),
        (Method::PUT, "/v1/service-calls/c", Value::Null, true),
        (Method::DELETE, "/v1/service-calls/c", Value::Null, true),
        (Method::PUT, "/v1/service-calls/c/timer", json!({}), true),
        (Method::GET, "/v1/service-calls/c/timer", Value::Null, true),
        (Method::GET, "/v1/timers", Value::Null, true),
    ]
}

/// "All `/v1/*` endpoints require two-layer auth: the transport bearer on every request, and the agent principal token on alarm
/// endpoints." "The transport bearer alone is not sufficient … The agent token alone is not sufficient … Both must be present."
#[tokio::test]
async fn every_route_asks_for_the_bearer_and_those_of_alarms_for_the_agent_token_too() {
    let (_world, daemon, both) = door().await;
    let (only_agent, only_bearer) = (both.with_bearer(None), Api::new(&daemon.api_url()));
    for (method, path, body, needs_agent) in routes() {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let ask = async |api: &Api| api.send(api.request(method.clone(), path).body(body.clone())).await;
        let refused = ask(&only_agent).await;
        assert_eq!(refused.refusal(), (401, "unauthorized", ""), "{method} {path} without the bearer");
        assert_eq!(ask(&only_bearer).await.status == 401, needs_agent, "{method} {path} without the agent token");
        assert_ne!(ask(&both).await.status, 401, "{method} {path} with both");
        if needs_agent {
            assert_eq!(ask(&only_bearer).await.text, refused.text, "the same text whichever part was wrong");
        }
    }
}

/// "Every response uses the uniform `{ok, data, error}` envelope."
#[tokio::test]
async fn success_and_failure_have_the_same_envelope() {
    let (_world, _daemon, api) = door().await;
    let fields = |answer: &crate::support::api::Answer| -> Vec<String> {
        answer.body.as_object().unwrap().keys().cloned().collect()
    };
    let success = api.get("/v1/alarms").await;
    assert_eq!((fields(&success), &success.body["ok"]), (vec!["data".into(), "ok".into()], &json!(true)));
    let failure = api.get("/v1/alarms/nothing").await;
    assert_eq!((fields(&failure), &failure.body["ok"]), (vec!["error".into(), "ok".into()], &json!(false)));
    for answer in [success, failure] {
        assert_eq!(answer.headers["content-type"], "application/json");
        assert!(answer.headers.contains_key("x-request-id"));
    }
    // A wrong method says which are right.
    let wrong = api.send(api.request(Method::PUT, "/v1/alarms")).await;
    let mut allowed: Vec<&str> = wrong.headers["allow"].to_str().unwrap().split(',').map(str::trim).collect();
    allowed.sort_unstable();
    assert_eq!((wrong.status, allowed), (405, vec!["GET", "HEAD", "POST"]));
}

/// How long a probe has to wait for the answer that the database is away.
const WITHIN: std::time::Duration = std::time::Duration::from_secs(1);

/// "GET /healthz: no auth. Returns service health + DB connectivity." "`db: false` → HTTP 503."
#[tokio::test]
async fn health_tells_of_the_database_within_a_second() {
    let world = World::new().await;
    let proxy = Proxy::in_front_of(&world.database).await;
    let daemon = world.chronosd_with("api", &[("CHRONOS_POSTGRES_URI", &proxy.uri)]).await;
    let signed_in = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let anybody = Api::new(&daemon.api_url()).with_bearer(None);
    let healthy = anybody.get("/healthz").await.data();
    assert_eq!(
        (&healthy["status"], &healthy["version"], &healthy["db"]),
        (&json!("ok"), &json!("0.1.0"), &json!(true))
    );

    // Silent, then gone: a database that does not answer is as away as one that refuses.
    for cut in [false, true] {
        if cut {
            proxy.cut();
        } else {
            proxy.freeze();
        }
        // What was just asked counts a moment longer.
        let (ill, took) = eventually("the database is missed", || async {
            let asked = std::time::Instant::now();
            let answer = anybody.get("/healthz").await;
            (answer.status != 200).then_some((answer, asked.elapsed()))
        })
        .await;
        assert!(took < WITHIN, "an answer after {took:?}");
        assert_eq!((ill.status, &ill.body["ok"]), (503, &json!(false)), "{}", ill.text);
        let data = &ill.body["data"];
        assert_eq!(
            (&data["status"], &data["version"], &data["db"]),
            (&json!("degraded"), &json!("0.1.0"), &json!(false))
        );
        assert_eq!((&ill.body["error"]["code"], &ill.body["error"]["retryable"]), (&json!("internal"), &json!(true)));
    }
    // "`internal` 500: Database error or unexpected failure."
    let refused = signed_in.get("/v1/alarms").await;
    assert_eq!(refused.refusal(), (500, "internal", ""), "{}", refused.text);
    assert_eq!(refused.body["error"]["retryable"], true);
    proxy.mend();
    eventually("the database is back", || async { (anybody.get("/healthz").await.status == 200).then_some(()) }).await;
    assert_eq!(signed_in.get("/v1/alarms").await.data()["count"], 0);
}

/// "Requests a challenge nonce for a DID." `{did, nonce: base64url of 24 random bytes, message, expires_in: 120}`, and 400 for a malformed DID.
#[tokio::test]
async fn a_challenge_names_the_did_a_nonce_and_the_text_to_sign() {
    let (_world, daemon, _) = door().await;
    let api = Api::new(&daemon.api_url());
    let upper = "did:matrix:11111111-2222-3333-4444-5555555555AA:0123456789ABCDEF";
    let challenge = api.post("/v1/agent/auth/challenge", &json!({ "did": upper })).await.data();
    assert_eq!(challenge["did"], upper.to_lowercase(), "canonical at the edge");
    let nonce = challenge["nonce"].as_str().unwrap();
    assert_eq!(URL_SAFE_NO_PAD.decode(nonce).unwrap().len(), 24);
    assert_eq!(challenge["message"], format!("matrix-chronos-auth:{}:{nonce}", upper.to_lowercase()));
    assert_eq!(challenge["expires_in"], 120);
    assert_eq!(challenge.as_object().unwrap().len(), 4);
    for body in [json!({ "did": "" }), json!({ "did": "did:matrix:ann" }), json!({ "did": "did:web:x" }), json!({})] {
        let refused = api.post("/v1/agent/auth/challenge", &body).await;
        assert_eq!(refused.refusal(), (400, "invalid_request", "did"), "{body}");
    }
}

/// "Proves possession of the DID's ed25519 key." `{token: payload.mac, owner_user_id, expires_in: 86400}`
#[tokio::test]
async fn proof_of_the_key_gives_a_token_that_any_replica_believes() {
    let (world, daemon, _) = door().await;
    let ann = AgentKey::of("11111111-2222-3333-4444-555555555555");
    let api = Api::new(&daemon.api_url());
    let challenge = api.post("/v1/agent/auth/challenge", &json!({ "did": ann.did })).await.data();
    let proof = json!({
        "did": ann.did, "public_key": ann.public_key, "nonce": challenge["nonce"],
        "signature": ann.sign(challenge["message"].as_str().unwrap())
    });
    // Nonces are in the database: another replica takes the proof, and either takes the token.
    let other = world.chronosd("api").await;
    let verified = Api::new(&other.api_url()).post("/v1/agent/auth/verify", &proof).await.data();
    assert_eq!(verified["owner_user_id"], "11111111-2222-3333-4444-555555555555");
    assert_eq!((&verified["expires_in"], verified.as_object().unwrap().len()), (&json!(86400), 3));
    let token = verified["token"].as_str().unwrap();
    let (payload, mac) = token.split_once('.').unwrap();
    let payload = String::from_utf8(URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
    let parts: Vec<&str> = payload.split('|').collect();
    assert_eq!(parts[..2], [ann.did.as_str(), "11111111-2222-3333-4444-555555555555"]);
    assert_eq!((parts.len(), URL_SAFE_NO_PAD.decode(mac).unwrap().len()), (3, 32));
    for daemon in [&daemon, &other] {
        assert_eq!(Api::new(&daemon.api_url()).with_agent(token).get("/v1/alarms").await.data()["count"], 0);
    }
}

/// The document's own example, field by field, and back: "Create an alarm", "List the caller's own alarms", "Get one alarm by ID".
#[tokio::test]
async fn the_documents_example_goes_in_and_comes_back() {
    let (_world, _daemon, api) = door().await;
    let body = json!({
        "label": "daily portfolio summary",
        "kind": "cron",
        "cron_expr": "0 9 * * *",
        "timezone": "America/New_York",
        "conversation_id": "conv_abc123",
        "wake_message": "Generate the daily portfolio summary: check balances…",
        "payload": { "task": "daily_summary", "last_run": null },
        "idempotency_key": "daily-summary-v1",
        "max_failures": 3
    });
    let receipt = api.post("/v1/alarms", &body).await.data();
    assert_eq!(receipt["status"], "active");
    let next = receipt["next_fire_at"].as_str().unwrap();
    assert!(next.ends_with("T13:00:00Z") || next.ends_with("T14:00:00Z"), "nine in New York: {next}");

    let list = api.get("/v1/alarms").await.data();
    assert_eq!((&list["count"], list["alarms"].as_array().unwrap().len()), (&json!(1), 1));
    let view = &list["alarms"][0];
    for (field, value) in body.as_object().unwrap() {
        assert_eq!(&view[field], value, "{field}");
    }
    assert_eq!(
        (&view["id"], &view["next_fire_at"], &view["status"]),
        (&receipt["id"], &receipt["next_fire_at"], &json!("active"))
    );
    assert_eq!(
        (&view["failure_count"], &view["last_error"], &view["last_fired_at"]),
        (&json!(0), &json!(""), &Value::Null)
    );
    assert!(view["created_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(api.get(&path(receipt["id"].as_str().unwrap())).await.data(), *view, "the same shape");
    // Beyond the document: what it means in words, and when it comes.
    assert_eq!(view["description"], "at 09:00 every day, America/New_York");
    assert_eq!((view["upcoming"].as_array().unwrap().len(), &view["upcoming"][0]), (5, &view["next_fire_at"]));
    assert_eq!((&view["misfire"], &view["max_lateness_seconds"]), (&json!("fire_once"), &Value::Null));

    // "When `idempotency_key` is non-empty and matches an existing alarm for the same owner, the existing alarm is returned."
    let again = api.post("/v1/alarms", &body).await.data();
    assert_eq!((&again["id"], &again["deduped"]), (&receipt["id"], &json!(true)));
    let mut keyless = in_an_hour();
    keyless["idempotency_key"] = json!("");
    assert_ne!(created(&api, &keyless).await, created(&api, &keyless).await, "an empty key is none");
}

/// "For `kind=once`, use exactly one of `delay_seconds` or `fire_at`."
#[tokio::test]
async fn a_once_alarm_has_a_delay_or_an_instant() {
    let (_world, _daemon, api) = door().await;
    let fire_at = later(86_400);
    let instant = json!({ "kind": "once", "fire_at": fire_at, "wake_message": "Meeting reminder: …" });
    let receipt = api.post("/v1/alarms", &instant).await.data();
    assert_eq!((&receipt["next_fire_at"], &receipt["scheduled_for"]), (&json!(fire_at), &json!(fire_at)));
    let view = api.get(&path(receipt["id"].as_str().unwrap())).await.data();
    assert_eq!((&view["fire_at"], &view["upcoming"]), (&json!(fire_at), &json!([fire_at])));
    for absent in ["cron_expr", "conversation_id", "idempotency_key"] {
        assert_eq!(view.get(absent), None, "{absent} is left out");
    }
    // An offset is converted; more digits than are kept are rounded up: never early.
    let precise = json!({ "kind": "once", "fire_at": "2099-06-16T11:00:00.1234561+02:00", "wake_message": "m" });
    assert_eq!(api.post("/v1/alarms", &precise).await.data()["scheduled_for"], "2099-06-16T09:00:00.123457Z");
    let delayed =
        json!({ "kind": "once", "delay_seconds": 600, "wake_message": "Check if the transaction confirmed…" });
    let receipt = api.post("/v1/alarms", &delayed).await.data();
    assert!(receipt["next_fire_at"].as_str().unwrap() > later(590).as_str());
}

/// "`limit` (int, default 100, max 500)"
#[tokio::test]
async fn a_list_has_a_hundred_unless_asked_and_never_more_than_five_hundred() {
    let (world, _daemon, api) = door().await;
    let first = created(&api, &in_an_hour()).await;
    let mut db = world.database.connect().await;
    execute(
        &mut db,
        &format!(
            "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, scheduled_for, next_fire_at, wake_message)
             SELECT owner_did, user_id, correlation_id, kind, fire_at, scheduled_for, next_fire_at, wake_message
             FROM alarms, generate_series(1, 520) WHERE id = '{first}'"
        ),
    )
    .await;
    for (query, count) in [("", 100), ("?limit=1", 1), ("?limit=500", 500), ("?limit=501", 500), ("?limit=9999", 500)] {
        assert_eq!(api.get(&format!("/v1/alarms{query}")).await.data()["count"], count, "{query}");
    }
}

/// "Cancel an active alarm. Idempotent — already-fired or already-cancelled alarms return success."
#[tokio::test]
async fn cancelling_is_idempotent_and_tells_the_real_status() {
    let (world, _daemon, api) = door().await;
    let path = path(&created(&api, &in_an_hour()).await);
    api.act(&format!("{path}/pause")).await.data();
    let first = api.delete(&path).await.data();
    assert_eq!(
        (&first["status"], &first["in_flight"], &first["paused_by"]),
        (&json!("cancelled"), &json!(false), &json!([]))
    );
    let second = api.delete(&path).await.data();
    assert_eq!((&second["status"], &second["revision"]), (&json!("cancelled"), &first["revision"]));
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE alarms SET status = 'fired', cancelled_by = NULL").await;
    assert_eq!(api.delete(&path).await.data()["status"], "fired");
    assert_eq!(api.delete("/v1/alarms/11111111-2222-3333-4444-555555555555").await.refusal(), (404, "not_found", ""));
}

/// Who gives no correlation id is found by the trace of the request, else by one that was made.
#[tokio::test]
async fn a_correlation_id_is_the_callers_or_the_traces() {
    let (_world, _daemon, api) = door().await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let traced =
        api.request(Method::POST, "/v1/alarms").header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
    let id = api.send(traced.body(in_an_hour().to_string())).await.data()["id"].as_str().unwrap().to_owned();
    assert_eq!(api.get(&path(&id)).await.data()["correlation_id"], trace);
    let untraced = created(&api, &in_an_hour()).await;
    assert_ne!(api.get(&path(&untraced)).await.data()["correlation_id"], "");
}

/// The bearer's scheme may be written in any case; anything else about it must be exact.
#[tokio::test]
async fn a_bearer_is_taken_whole_or_not_at_all() {
    let (_world, _daemon, api) = door().await;
    let bare = api.with_bearer(None);
    let ask = async |header: String| {
        let request = bare.request(Method::GET, "/v1/alarms").header("authorization", header);
        bare.send(request).await.status
    };
    assert_eq!(ask(format!("bearer {TOKEN}")).await, 200);
    for wrong in [
        String::new(),
        "Bearer".into(),
        format!("Basic {TOKEN}"),
        TOKEN.into(),
        format!("Bearer {TOKEN}x"),
        format!("Bearer {}", &TOKEN[1..]),
    ] {
        assert_eq!(ask(wrong.clone()).await, 401, "{wrong}");
    }
}

/// `in_flight: true`: a claim stood when the alarm was cancelled, so its wake may still arrive.
#[tokio::test]
async fn cancelling_what_is_under_way_says_so() {
    let world = World::new().await;
    let daemon = world.chronosd("api,dispatch").await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    world.sink.always(crate::support::Reply::Hold);
    let path = path(&created(&api, &json!({ "kind": "once", "delay_seconds": 1, "wake_message": "m" })).await);
    world.sink.wakes(1).await;
    let cancelled = api.delete(&path).await.data();
    assert_eq!((&cancelled["status"], &cancelled["in_flight"]), (&json!("cancelled"), &json!(true)));
    world.sink.release();
    let told = eventually("the attempt is recorded", || async {
        let history = api.get(&format!("{path}/attempts")).await.data();
        (history["count"] == 1).then(|| history["attempts"][0]["outcome"].clone())
    })
    .await;
    assert_eq!(told, "cancelled");
    assert_eq!(api.get(&path).await.data()["status"], "cancelled", "not revived by a late answer");
}

/// An instant up to 30 s back is due at once; further back it is refused.
#[tokio::test]
async fn an_instant_just_passed_is_due_at_once() {
    let (_world, _daemon, api) = door().await;
    let at = |seconds| json!({ "kind": "once", "fire_at": later(seconds), "wake_message": "m" });
    assert_eq!(api.post("/v1/alarms", &at(-20)).await.data()["status"], "active");
    assert_eq!(api.post("/v1/alarms", &at(-40)).await.refusal(), (400, "invalid_request", "fire_at"));
}
