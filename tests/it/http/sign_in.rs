//! Who may speak: proofs that do not hold, agents that are enrolled, suspended, resumed, removed and rotated, and how often they may ask.

use std::process::Stdio;

use chrono::{DateTime, Utc};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{created, in_an_hour, path};
use crate::support::{
    AgentKey, Daemon, World,
    alarms::execute,
    api::{Answer, Api},
    daemon::command,
    eventually,
};

/// From the command's end to the first refusal.
const SUSPENDED_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);

/// A facade as it is in production: only those who are enrolled.
async fn guarded() -> (World, Daemon) {
    let world = World::new().await;
    let daemon = world.chronosd_with("api", &[("CHRONOS_ENROLMENT", "registered"), ("CHRONOS_DEV", "false")]).await;
    (world, daemon)
}

/// Runs `chronosd` on the world's database, and expects it to do what it is told.
async fn chronosd(world: &World, arguments: &[&str]) -> String {
    let settings = [("CHRONOS_POSTGRES_URI", world.database.uri.as_str()), ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true")];
    let ended = command(&settings).args(arguments).stderr(Stdio::inherit()).output().await.unwrap();
    assert!(ended.status.success(), "{arguments:?}");
    String::from_utf8(ended.stdout).unwrap()
}

async fn challenge(api: &Api, did: &str) -> Value {
    api.post("/v1/agent/auth/challenge", &json!({ "did": did })).await.data()
}

fn proof(key: &AgentKey, challenge: &Value) -> Value {
    json!({
        "did": key.did, "public_key": key.public_key, "nonce": challenge["nonce"],
        "signature": key.sign(challenge["message"].as_str().unwrap())
    })
}

async fn verify(api: &Api, proof: &Value) -> Answer {
    api.post("/v1/agent/auth/verify", proof).await
}

#[tokio::test]
async fn only_an_enrolled_agent_signs_in_and_nobody_learns_who_is_enrolled() {
    let (world, daemon) = guarded().await;
    let api = Api::new(&daemon.api_url());
    let (ann, eve) = (AgentKey::of("ann"), AgentKey::of("ann"));
    chronosd(&world, &["agent", "add", &ann.did, "--public-key", &ann.public_key]).await;
    let (of_ann, of_eve) = (challenge(&api, &ann.did).await, challenge(&api, &eve.did).await);
    let fields = |challenge: &Value| challenge.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&of_ann), fields(&of_eve));
    // Eve holds the key of her DID, and says it is Ann's agent. It is not.
    let refused = verify(&api, &proof(&eve, &of_eve)).await;
    assert_eq!(refused.refusal(), (401, "unauthorized", ""));
    let token = verify(&api, &proof(&ann, &of_ann)).await.data()["token"].as_str().unwrap().to_owned();
    assert_eq!(api.with_agent(&token).get("/v1/alarms").await.data()["count"], 0);
    // A token for somebody who is not enrolled, made with the right secret.
    let open = world.chronosd("api").await;
    let of_eve = eve.sign_in(&open.api_url()).await;
    assert_eq!(of_eve.get("/v1/alarms").await.status, 200, "where everybody may");
    let asked = of_eve.request(Method::GET, "/v1/alarms").build().unwrap();
    let eve_token = asked.headers()["x-chronos-agent"].to_str().unwrap();
    assert_eq!(api.with_agent(eve_token).get("/v1/alarms").await.text, refused.text);
}

#[tokio::test]
async fn a_key_that_only_begins_like_the_enrolled_one_is_another_key() {
    let (world, daemon) = guarded().await;
    let api = Api::new(&daemon.api_url());
    let ann = AgentKey::of("ann");
    chronosd(&world, &["agent", "add", &ann.did, "--public-key", &ann.public_key]).await;
    // Whoever searches long enough finds a key with the same beginning, and so the same DID.
    let mut db = world.database.connect().await;
    execute(&mut db, &format!("UPDATE agents SET public_key = '{}{}'", &ann.public_key[..16], "0".repeat(48))).await;
    let refused = verify(&api, &proof(&ann, &challenge(&api, &ann.did).await)).await;
    assert_eq!(refused.refusal(), (401, "unauthorized", ""));
}

#[tokio::test]
async fn a_suspended_agent_is_refused_at_once_and_comes_back_when_it_is_resumed() {
    let (world, daemon) = guarded().await;
    let ann = AgentKey::of("ann");
    chronosd(&world, &["agent", "add", &ann.did, "--public-key", &ann.public_key]).await;
    let api = ann.sign_in(&daemon.api_url()).await;
    let id = created(&api, &in_an_hour()).await;

    chronosd(&world, &["agent", "suspend", &ann.did]).await;
    let suspended_at: DateTime<Utc> = chronos::clock::system().now();
    let refused = eventually("the agent is refused", || async {
        let answer = api.get("/v1/alarms").await;
        (answer.status == 401).then_some(answer)
    })
    .await;
    let within = (chronos::clock::system().now() - suspended_at).to_std().unwrap();
    assert!(within < SUSPENDED_WITHIN, "refused after {within:?}");
    let anonymous = Api::new(&daemon.api_url());
    let again = verify(&anonymous, &proof(&ann, &challenge(&anonymous, &ann.did).await)).await;
    assert_eq!((again.status, &again.text), (401, &refused.text), "nor does it sign in");

    // Nor does an operator wake it, by arming what was over.
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE alarms SET status = 'failed', paused_by = '{}'").await;
    chronosd(&world, &["alarm", "rearm", &id, "--delay-seconds", "3600"]).await;
    let (status, causes): (String, Vec<String>) =
        sqlx::query_as("SELECT status, paused_by FROM alarms").fetch_one(&mut db).await.unwrap();
    assert_eq!((status.as_str(), causes), ("paused", vec!["agent".to_owned()]));

    chronosd(&world, &["agent", "resume", &ann.did]).await;
    let view = api.get(&path(&id)).await.data();
    assert_eq!((&view["status"], &view["paused_by"]), (&json!("active"), &json!([])), "by itself, with its old token");

    chronosd(&world, &["agent", "remove", &ann.did]).await;
    assert_eq!(api.get("/v1/alarms").await.text, refused.text);
    chronosd(&world, &["agent", "add", &ann.did, "--public-key", &ann.public_key]).await;
    assert_eq!(api.get(&path(&id)).await.data()["status"], "active");
}

/// A request is let in by its head; its body may come half a minute later.
#[tokio::test]
async fn who_is_removed_while_a_body_is_on_its_way_leaves_nothing_behind() {
    let (world, daemon) = guarded().await;
    let (ann, ben, new) = (AgentKey::of("ann"), AgentKey::of("ben"), AgentKey::of("ben"));
    for key in [&ann, &ben] {
        chronosd(&world, &["agent", "add", &key.did, "--public-key", &key.public_key]).await;
    }
    let api = ann.sign_in(&daemon.api_url()).await;
    let over = created(&api, &in_an_hour()).await;
    api.delete(&path(&over)).await.data();
    let cron = json!({ "kind": "cron", "cron_expr": "@every 5s", "wake_message": "m" }).to_string();
    let again = json!({ "delay_seconds": 5 }).to_string();
    let of_ben = ben.sign_in(&daemon.api_url()).await;
    let half_way = futures::future::join_all([
        begin(&daemon, &api, "POST /v1/alarms", &cron),
        begin(&daemon, &api, "PUT /v1/alarms/by-key/k", &cron),
        begin(&daemon, &api, &format!("POST {}/rearm", path(&over)), &again),
        begin(&daemon, &of_ben, "POST /v1/alarms", &cron),
    ])
    .await;
    chronosd(&world, &["agent", "remove", &ann.did]).await;
    chronosd(&world, &["agent", "rotate", &ben.did, &new.did, "--public-key", &new.public_key]).await;
    for (mut stream, rest) in half_way {
        stream.write_all(rest.as_bytes()).await.unwrap();
        let mut said = String::new();
        stream.read_to_string(&mut said).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 401 "), "{said}");
    }
    let mut db = world.database.connect().await;
    let left: Vec<String> = sqlx::query_scalar("SELECT status FROM alarms").fetch_all(&mut db).await.unwrap();
    assert_eq!(left, ["cancelled"]);
}

/// Sends all but the last byte of a request, once the facade has asked who it is; the connection, and what is left to send.
async fn begin(daemon: &Daemon, api: &Api, what: &str, body: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(daemon.api.unwrap()).await.unwrap();
    let credentials: Vec<String> =
        api.credentials().iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let credentials = credentials.concat();
    // 100-continue is asked for when the body is first wanted: after the caller was let in.
    let head = format!(
        "{what} HTTP/1.1\r\nhost: x\r\n{credentials}connection: close\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut go_on = [0; "HTTP/1.1 100 Continue\r\n\r\n".len()];
    stream.read_exact(&mut go_on).await.unwrap();
    assert!(go_on.starts_with(b"HTTP/1.1 100 "), "{}", String::from_utf8_lossy(&go_on));
    (stream, body.to_owned())
}

#[tokio::test]
async fn what_an_agent_had_is_its_new_keys_after_a_rotation() {
    let (world, daemon) = guarded().await;
    let (old, new) = (AgentKey::of("ann"), AgentKey::of("ann"));
    chronosd(&world, &["agent", "add", &old.did, "--public-key", &old.public_key]).await;
    let before = old.sign_in(&daemon.api_url()).await;
    let mut body = in_an_hour();
    body["idempotency_key"] = json!("k");
    let id = created(&before, &body).await;
    chronosd(&world, &["agent", "rotate", &old.did, &new.did, "--public-key", &new.public_key]).await;
    assert_eq!(before.get("/v1/alarms").await.status, 401);
    let after = new.sign_in(&daemon.api_url()).await;
    assert_eq!(after.get(&path(&id)).await.data()["status"], "active");
    assert_eq!(created(&after, &body).await, id, "its keys, too");
}

#[tokio::test]
async fn of_twenty_that_use_one_nonce_at_once_one_gets_a_token() {
    let (_world, daemon, _) = super::door().await;
    let api = Api::new(&daemon.api_url());
    let ann = AgentKey::of("ann");
    let proof = proof(&ann, &challenge(&api, &ann.did).await);
    let answers = futures::future::join_all((0..20).map(|_| verify(&api, &proof))).await;
    let told: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    assert_eq!(told.iter().filter(|status| **status == 200).count(), 1, "{told:?}");
    assert!(told.iter().all(|status| [200, 401].contains(status)), "{told:?}");
}

/// The order of the curve's group: added to half of a signature it gives another one for the same text, which a lax check takes.
const ORDER: [u8; 32] = [
    0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
];

fn not_canonical(signature: &str) -> String {
    let mut bytes = hex::decode(signature).unwrap();
    let mut carry = 0_u16;
    for (byte, order) in bytes[32..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(order) + carry;
        *byte = u8::try_from(sum & 0xff).unwrap();
        carry = sum >> 8;
    }
    assert_eq!(carry, 0);
    hex::encode(bytes)
}

#[tokio::test]
async fn every_proof_that_does_not_hold_has_the_same_answer() {
    let (world, daemon, _) = super::door().await;
    let api = Api::new(&daemon.api_url());
    let (ann, eve) = (AgentKey::of("ann"), AgentKey::of("eve"));
    let with = |mut proof: Value, field: &str, value: Value| {
        proof[field] = value;
        proof
    };
    let good = async || proof(&ann, &challenge(&api, &ann.did).await);
    let mut refused = Vec::new();

    let used = good().await;
    verify(&api, &used).await.data();
    refused.push(("a nonce used before", verify(&api, &used).await));
    let bent = good().await;
    let bent = with(bent.clone(), "signature", json!(not_canonical(bent["signature"].as_str().unwrap())));
    refused.push(("a signature that is not canonical", verify(&api, &bent).await));
    let other = with(good().await, "public_key", json!(eve.public_key));
    refused.push(("a key that the DID does not name", verify(&api, &other).await));
    let stolen = challenge(&api, &ann.did).await;
    let stolen = with(proof(&eve, &stolen), "did", json!(eve.did));
    refused.push(("somebody else's nonce", verify(&api, &stolen).await));
    refused.push(("a nonce nobody gave", verify(&api, &with(good().await, "nonce", json!("A".repeat(32)))).await));
    refused.push(("no nonce at all", verify(&api, &with(good().await, "nonce", json!(""))).await));
    refused.push(("nothing signed", verify(&api, &with(good().await, "signature", json!("0".repeat(128)))).await));

    // Keys of small order: their signatures hold for any text.
    for weak in ["0100000000000000000000000000000000000000000000000000000000000000", &"0".repeat(64)] {
        let did = format!("did:matrix:ann:{}", &weak[..16]);
        let open = challenge(&api, &did).await;
        // R = the identity, S = 0.
        let signature = format!("01{}", "0".repeat(126));
        let proof = json!({ "did": did, "public_key": weak, "nonce": open["nonce"], "signature": signature });
        refused.push(("a weak key", verify(&api, &proof).await));
    }
    let late = good().await;
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE nonces SET expires_at = now() - interval '1 second'").await;
    refused.push(("an expired nonce", verify(&api, &late).await));
    for (what, answer) in &refused {
        assert_eq!(answer.refusal(), (401, "unauthorized", ""), "{what}");
        assert_eq!(answer.text, refused[0].1.text, "{what}");
    }

    // What is malformed is told, and the nonce can still be used.
    let open = good().await;
    for (field, wrong) in [
        ("did", json!("did:matrix:ann")),
        ("did", json!(null)),
        ("public_key", json!("zz".repeat(32))),
        ("public_key", json!("ab".repeat(31))),
        ("signature", json!("ab".repeat(63))),
        ("signature", json!(5)),
        ("nonce", json!(null)),
        ("extra", json!(1)),
    ] {
        let answer = verify(&api, &with(open.clone(), field, wrong.clone())).await;
        assert_eq!(answer.refusal(), (400, "invalid_request", field), "{field} = {wrong}: {}", answer.text);
    }
    for missing in ["did", "public_key", "nonce", "signature"] {
        let mut without = open.clone();
        without.as_object_mut().unwrap().remove(missing);
        assert_eq!(verify(&api, &without).await.refusal(), (400, "invalid_request", missing));
    }
    verify(&api, &open).await.data();
}

#[tokio::test]
async fn an_owner_that_asks_too_often_waits_and_nobody_else_does() {
    let world = World::new().await;
    let daemon = world.chronosd_with("api", &[("CHRONOS_OWNER_RATE", "1")]).await;
    let (ann, bob) =
        (AgentKey::of("ann").sign_in(&daemon.api_url()).await, AgentKey::of("bob").sign_in(&daemon.api_url()).await);
    let answers = futures::future::join_all((0..30).map(|_| ann.get("/v1/alarms"))).await;
    let limited: Vec<&Answer> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert!(!limited.is_empty() && limited.len() < 30, "a burst is let through, and no more");
    for answer in limited {
        assert_eq!(answer.refusal(), (429, "rate_limited", ""), "{}", answer.text);
        assert_eq!(answer.body["error"]["retryable"], true);
        assert_eq!(answer.body["error"]["details"], json!({ "limit": 1, "burst": 2 }));
        assert!(answer.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() >= 1);
    }
    assert_eq!(bob.get("/v1/alarms").await.status, 200);
    eventually("she may ask again", || async { (ann.get("/v1/alarms").await.status == 200).then_some(()) }).await;
}
