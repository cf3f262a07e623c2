//! The stream of a session, on real sockets: what its client sees, whatever happens to it or to us.

use std::time::Duration;

use chrono::TimeDelta;
use chronos::{
    config,
    domain::{
        access::Did,
        payload::Payload,
        session::{SessionKey, autonomy::EventType, effect::EffectStatus},
    },
    store::{
        Store,
        checkpoints::{Asked, Checkpointed, Request, What},
        events::{Appended, Happening},
    },
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

use crate::{
    support::{
        AgentKey, Daemon, PATIENCE, Proxy, World,
        alarms::execute,
        api::Api,
        eventually,
        socket::{Socket, token_for},
    },
    telemetry::scrape::count,
};

/// A session of an agent that has signed in.
struct Session {
    world: World,
    store: Store,
    owner: Did,
    key: SessionKey,
}

impl Session {
    async fn of(world: World, agent: &AgentKey) -> Self {
        let hints = Some(Duration::from_millis(50));
        let database = config::Database { hints, ..world.database.config() };
        let store = Store::connect(&database, "test", 4).await.unwrap();
        let owner: Did = agent.did.parse().unwrap();
        let key = format!("{}:coach:thread", owner.user_id()).parse().unwrap();
        let session = Self { world, store, owner, key };
        session.user_speaks().await;
        session
    }

    async fn user_speaks(&self) -> i64 {
        let payload = Payload::parse(r#"{"text":"hello"}"#.to_owned()).unwrap();
        let happening = Happening { id: None, event_type: EventType::UserMessage, payload: &payload };
        let appended = self.store.append_event_if_owned(&self.owner, &self.key, &happening).await.unwrap();
        let Appended::New(event) = appended else { panic!("{appended:?}") };
        event.seq
    }

    /// The agent answers the last message with these: replies, which nothing holds back.
    async fn reply(&self, contents: &[&str]) {
        let session = self.store.find_session_if_owned(&self.owner, &self.key).await.unwrap().unwrap();
        let next = if session.event_seq == session.last_seq { self.user_speaks().await } else { session.event_seq + 1 };
        let asked = |content: &&str| {
            let payload = Payload::parse(json!({ "content": content }).to_string()).unwrap();
            Asked { payload, what: What::SendMessage }
        };
        let effects: Vec<Asked> = contents.iter().map(asked).collect();
        let checkpoint_id = format!("checkpoint-{next}");
        let request = Request { checkpoint_id: &checkpoint_id, event_seq: next, effects: &effects };
        let done = self.store.checkpoint_if_owned(&self.owner, &self.key, &request).await.unwrap();
        assert!(matches!(done, Checkpointed::Done(_)), "{done:?}");
    }

    /// Where its sends stand, in their order.
    async fn statuses(&self) -> Vec<EffectStatus> {
        let effects = self.store.effects_if_owned(&self.owner, &self.key, None, 100).await.unwrap().unwrap();
        effects.into_iter().map(|effect| effect.status).collect()
    }

    async fn eventually(&self, expected: &[EffectStatus]) {
        eventually("its sends stand as they should", || async { (self.statuses().await == expected).then_some(()) })
            .await;
    }

    fn path(&self) -> String {
        format!("/v1/sessions/{}/stream", self.key)
    }
}

/// A facade, an agent, and its session.
async fn door(settings: &[(&str, &str)]) -> (Session, Daemon, Api) {
    let world = World::new().await;
    let daemon = world.chronosd_with("api", settings).await;
    let ann = AgentKey::of("ann");
    let api = ann.sign_in(&daemon.api_url()).await;
    (Session::of(world, &ann).await, daemon, api)
}

/// What stays the same however often a send is sent.
fn identity(send: &Value) -> [&Value; 4] {
    ["effect_id", "dedupe_key", "seq", "content"].map(|field| &send[field])
}

#[tokio::test]
async fn a_send_arrives_and_its_acknowledgement_completes_it() {
    let (session, daemon, api) = door(&[]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    assert!(socket.is_silent().await);
    session.reply(&["the tea \"is\" ready\né"]).await;
    let send = socket.next().await;
    let effects = session.store.effects_if_owned(&session.owner, &session.key, None, 100).await.unwrap().unwrap();
    assert_eq!(effects[0].status, EffectStatus::Executing);
    let expected = json!({
        "effect_id": effects[0].id, "dedupe_key": effects[0].dedupe_key, "seq": 1,
        "content": "the tea \"is\" ready\né", "created_at": chronos::domain::rfc3339(effects[0].created_at),
    });
    assert_eq!(send, expected);
    socket.ack(&send["effect_id"]).await;
    session.eventually(&[EffectStatus::Completed]).await;
    // Once more changes nothing, and costs nothing but a look.
    socket.ack(&send["effect_id"]).await;
    assert!(socket.is_silent().await);
    let sends = async |outcome| count(&daemon, "chronos_stream_sends_total", &[("outcome", outcome)]).await;
    assert_eq!((sends("acknowledged").await, sends("lost").await), (1, 0));
    assert_eq!(count(&daemon, "chronos_streams", &[]).await, 1);
    socket.close().await;
    eventually("it is counted out", || async { (count(&daemon, "chronos_streams", &[]).await == 0).then_some(()) })
        .await;
}

#[tokio::test]
async fn sends_arrive_in_order_and_one_at_a_time() {
    let (session, daemon, api) = door(&[]).await;
    session.reply(&["one", "two"]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let first = socket.next().await;
    session.reply(&["three"]).await;
    assert!(socket.is_silent().await, "the first is not acknowledged yet");
    assert_eq!((&first["content"], &first["seq"]), (&json!("one"), &json!(1)));
    socket.ack(&first["effect_id"]).await;
    for (content, seq) in [("two", 2), ("three", 3)] {
        let send = socket.next().await;
        assert_eq!((&send["content"], &send["seq"]), (&json!(content), &json!(seq)));
        socket.ack(&send["effect_id"]).await;
    }
    session.eventually(&[EffectStatus::Completed; 3]).await;
}

#[tokio::test]
async fn a_send_that_is_not_acknowledged_closes_the_stream_and_comes_again() {
    let (session, daemon, api) = door(&[("CHRONOS_AUTONOMY_ACK_MS", "700")]).await;
    session.reply(&["hello?"]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let first = socket.next().await;
    let (code, reason) = socket.closed().await;
    assert_eq!((code, reason.starts_with("no acknowledgement within 0.7 s")), (4408, true), "{reason}");
    assert_eq!(session.statuses().await, [EffectStatus::Pending], "before the client knew");

    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let again = socket.next().await;
    assert_eq!(identity(&again), identity(&first));
    socket.ack(&again["effect_id"]).await;
    session.eventually(&[EffectStatus::Completed]).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_is_sent_again_what_it_has_not_acknowledged() {
    let (session, daemon, api) = door(&[]).await;
    session.reply(&["hello?"]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let first = socket.next().await;
    // Without a word.
    drop(socket);
    session.eventually(&[EffectStatus::Pending]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let again = socket.next().await;
    assert_eq!(identity(&again), identity(&first));
    // With one.
    socket.close().await;
    session.eventually(&[EffectStatus::Pending]).await;
}

#[tokio::test]
async fn a_send_that_is_acknowledged_over_http_is_not_waited_for() {
    let (session, daemon, api) = door(&[]).await;
    session.reply(&["one", "two"]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let one = socket.next().await;
    let path = format!("/v1/sessions/{}/effects/{}/ack", session.key, one["effect_id"].as_str().unwrap());
    assert_eq!(api.act(&path).await.data()["status"], "completed");
    assert_eq!(socket.next().await["content"], "two");
}

#[tokio::test]
async fn after_a_rotation_the_old_keys_connection_hears_nothing_more() {
    let (session, daemon, api) = door(&[("CHRONOS_AUTONOMY_ACK_MS", "2000")]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    eventually("the stream is open", || async {
        let mut db = session.world.database.connect().await;
        let open: bool =
            sqlx::query_scalar("SELECT stream_id IS NOT NULL FROM sessions").fetch_one(&mut db).await.unwrap();
        open.then_some(())
    })
    .await;
    let mut db = session.world.database.connect().await;
    let rotated = "UPDATE sessions SET stream_id = NULL, owner_did = 'did:matrix:ann:00000000000000ff'";
    execute(&mut db, rotated).await;
    execute(&mut db, &format!("SELECT pg_notify('chronos_session_changed', '{}')", session.key)).await;
    assert_eq!(socket.closed().await.0, 4409);
}

#[tokio::test]
async fn a_newer_connection_closes_the_older_and_gets_what_that_had_not_acknowledged() {
    let (session, daemon, api) = door(&[]).await;
    let other = session.world.chronosd("api").await;
    session.reply(&["hello?"]).await;
    let mut older = Socket::connect(&daemon, &api, &session.key).await;
    let first = older.next().await;
    // On the same replica, then on another, and back.
    for replica in [&daemon, &other, &daemon] {
        let since = Instant::now();
        let mut newer = Socket::connect(replica, &api, &session.key).await;
        let again = newer.next().await;
        assert_eq!(identity(&again), identity(&first));
        assert_eq!(older.closed().await.0, 4409);
        assert!(since.elapsed() < PATIENCE / 3, "by a hint, not by a look: {:?}", since.elapsed());
        older = newer;
    }
    older.ack(&first["effect_id"]).await;
    session.eventually(&[EffectStatus::Completed]).await;
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let (session, daemon, api) = door(&[]).await;
    let short = api.with_agent(&token_for(&session.owner, TimeDelta::seconds(3)));
    let since = Instant::now();
    let mut socket = Socket::connect(&daemon, &short, &session.key).await;
    let (code, reason) = socket.closed().await;
    assert_eq!((code, reason.contains("expired")), (4401, true), "{reason}");
    assert!((Duration::from_secs(1)..PATIENCE).contains(&since.elapsed()), "{:?}", since.elapsed());
    assert_eq!(Socket::try_connect(&daemon, &short, &session.key).await.err().map(|(status, _)| status), Some(401));
}

#[tokio::test]
async fn any_other_frame_is_told_what_would_be_right_and_nothing_is_lost() {
    let (session, daemon, api) = door(&[]).await;
    session.reply(&["hello?"]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let send = socket.next().await;
    let unknown = "00000000-0000-0000-0000-000000000000";
    for (frame, code) in [
        (Message::text("hello"), "invalid_request"),
        (Message::text("[]"), "invalid_request"),
        (Message::text(r#"{"ack":7}"#), "invalid_request"),
        (Message::text(r#"{"ack":"7"}"#), "invalid_request"),
        (Message::text(format!(r#"{{"ack":"{unknown}","nack":1}}"#)), "invalid_request"),
        (Message::binary(b"{}".to_vec()), "invalid_request"),
        (Message::text(format!(r#"{{"ack":"{unknown}"}}"#)), "not_found"),
    ] {
        socket.say(frame.clone()).await;
        let answer = socket.next().await;
        let error = &answer["error"];
        assert_eq!((&error["code"], &error["retryable"]), (&json!(code), &json!(false)), "{frame}: {answer}");
        assert!(error["message"].as_str().is_some_and(|message| message.len() > 20), "{frame}: {answer}");
    }
    // A ping of the client's is answered, as any.
    socket.say(Message::Ping(vec![7].into())).await;
    socket.ack(&send["effect_id"]).await;
    session.eventually(&[EffectStatus::Completed]).await;
}

#[tokio::test]
async fn a_client_that_talks_too_much_is_shown_the_door() {
    let (session, daemon, api) = door(&[]).await;
    session.reply(&["hello?"]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    socket.next().await;
    for _ in 0..100 {
        if !socket.try_say("hello").await {
            break;
        }
    }
    let (code, reason) = socket.closed().await;
    assert_eq!((code, reason.contains("too many frames")), (1008, true), "{reason}");
    session.eventually(&[EffectStatus::Pending]).await;
    // Pings are frames, too.
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    for _ in 0..100 {
        if !socket.try_say(Message::Ping(Vec::new().into())).await {
            break;
        }
    }
    assert_eq!(socket.closed().await.0, 1008);
}

#[tokio::test]
async fn a_frame_that_is_too_large_closes_the_stream() {
    let (session, daemon, api) = door(&[]).await;
    for size in [5_000, 100_000] {
        let mut socket = Socket::connect(&daemon, &api, &session.key).await;
        socket.say("x".repeat(size)).await;
        let (code, reason) = socket.closed().await;
        assert_eq!((code, reason.as_str()), (1009, "a frame has at most 4096 bytes"), "{size}");
    }
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    socket.say("x".repeat(4096)).await;
    assert_eq!(socket.next().await["error"]["code"], "invalid_request");
}

#[tokio::test]
async fn what_is_wrong_is_told_before_the_upgrade() {
    let (session, daemon, ann) = door(&[]).await;
    let plain = ann.get(&session.path()).await;
    assert_eq!(plain.refusal(), (400, "invalid_request", ""), "{}", plain.text);
    assert!(plain.text.contains("WebSocket"), "{}", plain.text);
    assert_eq!(ann.send(ann.request(Method::POST, &session.path())).await.status, 405);

    // Somebody else's session, one that nobody has, and what cannot be one.
    let bob = AgentKey::of("bob").sign_in(&daemon.api_url()).await;
    let other_agent = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let refused = async |api: &Api, key: &str| {
        Socket::try_connect(&daemon, api, &key.parse().unwrap()).await.err().expect("it is refused")
    };
    let foreign = refused(&bob, session.key.as_str()).await;
    assert_eq!(foreign.0, 404);
    assert_eq!(refused(&other_agent, session.key.as_str()).await, foreign);
    assert_eq!(refused(&ann, "ann:coach:nowhere").await, foreign);
    for malformed in ["ann", "a:b:c:d", "ann:coach:%20", "%ff"] {
        let answer = ann.get(&format!("/v1/sessions/{malformed}/stream")).await;
        assert_eq!((answer.status, &answer.text), (404, &foreign.1), "{malformed}");
    }

    for api in [ann.with_bearer(None), ann.with_bearer(Some("wrong")), ann.with_agent("forged.token")] {
        let (status, text) = refused(&api, session.key.as_str()).await;
        let body: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &body["error"]["code"]), (401, &json!("unauthorized")), "{text}");
    }
}

#[tokio::test]
async fn an_agent_that_is_suspended_is_out() {
    let (session, daemon, api) = door(&[]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let mut db = session.world.database.connect().await;
    let (did, key) = (&session.owner, &session.key);
    let fingerprint = did.fingerprint();
    execute(
        &mut db,
        &format!(
            "INSERT INTO agents (did, public_key, suspended, source)
             VALUES ('{did}', rpad('{fingerprint}', 64, '0'), true, 'cli');
             NOTIFY chronos_session_changed, '{key}'"
        ),
    )
    .await;
    assert_eq!(socket.closed().await.0, 4401);
    assert_eq!(Socket::try_connect(&daemon, &api, key).await.err().map(|(status, _)| status), Some(401));
}

#[tokio::test]
async fn a_replica_that_is_killed_keeps_nothing_from_the_next() {
    let (session, daemon, api) = door(&[]).await;
    let other = session.world.chronosd("api").await;
    session.reply(&["hello?"]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let first = socket.next().await;
    daemon.kill().await;
    assert_eq!(socket.closed().await.0, 1006);
    assert_eq!(session.statuses().await, [EffectStatus::Executing]);
    let since = Instant::now();
    let mut socket = Socket::connect(&other, &api, &session.key).await;
    let again = socket.next().await;
    assert_eq!(identity(&again), identity(&first));
    assert!(since.elapsed() < PATIENCE / 3, "at once, not after its lease: {:?}", since.elapsed());
    socket.ack(&again["effect_id"]).await;
    session.eventually(&[EffectStatus::Completed]).await;
}

#[tokio::test]
async fn a_stop_takes_leave_of_every_stream_and_ends_in_time() {
    let (session, daemon, api) = door(&[]).await;
    let other = session.world.chronosd("api").await;
    session.reply(&["hello?"]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let first = socket.next().await;
    let since = Instant::now();
    let (ended, (code, reason)) = tokio::join!(daemon.terminate(), socket.closed());
    assert_eq!((code, reason.contains("stops")), (1001, true), "{reason}");
    assert!(ended.success());
    assert!(since.elapsed() < PATIENCE / 2, "{:?}", since.elapsed());
    assert_eq!(session.statuses().await, [EffectStatus::Pending]);
    let mut socket = Socket::connect(&other, &api, &session.key).await;
    assert_eq!(identity(&socket.next().await), identity(&first));
    // One that does not say a word does not hold it up either.
    let since = Instant::now();
    assert!(other.terminate().await.success());
    assert!(since.elapsed() < PATIENCE / 2, "{:?}", since.elapsed());
}

#[tokio::test]
async fn a_stream_survives_a_database_that_is_away_for_a_moment() {
    let (session, daemon, api) = door(&[]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let mut db = session.world.database.connect().await;
    execute(
        &mut db,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
         WHERE datname = current_database() AND application_name LIKE 'chronos-%' AND application_name <> 'chronos-test'",
    )
    .await;
    // Heard by the connection that listens anew, or found when it asks what it missed.
    session.reply(&["still there?"]).await;
    let send = socket.next().await;
    assert_eq!(send["content"], "still there?");
    socket.ack(&send["effect_id"]).await;
    session.eventually(&[EffectStatus::Completed]).await;
}

/// A session whose client has not acknowledged the first of two sends, and what stands between its replica and the database.
async fn behind_a_proxy(ack: &str) -> (Session, Daemon, Proxy, Socket, Value) {
    let world = World::new().await;
    let proxy = Proxy::in_front_of(&world.database).await;
    let settings = [("CHRONOS_POSTGRES_URI", proxy.uri.as_str()), ("CHRONOS_AUTONOMY_ACK_MS", ack)];
    let daemon = world.chronosd_with("api", &settings).await;
    let ann = AgentKey::of("ann");
    let api = ann.sign_in(&daemon.api_url()).await;
    let session = Session::of(world, &ann).await;
    session.reply(&["one", "two"]).await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    let send = socket.next().await;
    (session, daemon, proxy, socket, send)
}

#[tokio::test]
async fn an_acknowledgement_outlasts_a_moment_without_a_database() {
    let (session, _daemon, proxy, mut socket, send) = behind_a_proxy("30000").await;
    proxy.cut();
    socket.ack(&send["effect_id"]).await;
    assert!(socket.is_silent().await);
    assert_eq!(session.statuses().await, [EffectStatus::Executing, EffectStatus::Pending]);
    proxy.mend();
    let next = socket.next().await;
    assert_eq!((&next["content"], &next["seq"]), (&json!("two"), &json!(2)));
    assert_eq!(session.statuses().await, [EffectStatus::Completed, EffectStatus::Executing]);
}

#[tokio::test]
async fn without_a_database_for_long_the_client_is_told_to_come_later() {
    let (session, _daemon, proxy, mut socket, send) = behind_a_proxy("1000").await;
    proxy.cut();
    socket.ack(&send["effect_id"]).await;
    let (code, reason) = socket.closed().await;
    assert_eq!((code, reason.starts_with("try again later")), (1013, true), "{reason}");
    assert_eq!(session.statuses().await, [EffectStatus::Executing, EffectStatus::Pending]);
}

#[tokio::test]
async fn an_owner_has_a_hundred_streams_and_no_more() {
    let (session, daemon, api) = door(&[]).await;
    let did = &session.owner;
    execute(
        &mut session.world.database.connect().await,
        &format!(
            "INSERT INTO sessions (session_key, owner_did, user_id)
             SELECT 'ann:coach:' || number, '{did}', 'ann' FROM generate_series(1, 100) AS number"
        ),
    )
    .await;
    let mut sockets = Vec::new();
    for number in 1..=100 {
        sockets.push(Socket::connect(&daemon, &api, &format!("ann:coach:{number}").parse().unwrap()).await);
    }
    assert_eq!(count(&daemon, "chronos_streams", &[]).await, 100);
    let (status, text) = Socket::try_connect(&daemon, &api, &session.key).await.err().expect("it is refused");
    let body: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &body["error"]["code"]), (429, &json!("quota_exceeded")), "{text}");
    assert_eq!(body["error"]["details"], json!({ "quota": "max_streams", "limit": 100, "use": 100 }));
    let bob = AgentKey::of("bob").sign_in(&daemon.api_url()).await;
    assert_eq!(bob.get("/v1/alarms").await.status, 200, "others are served");

    sockets.truncate(1);
    eventually("the others have ended", || async { (count(&daemon, "chronos_streams", &[]).await == 1).then_some(()) })
        .await;
    let mut socket = Socket::connect(&daemon, &api, &session.key).await;
    session.reply(&["hello?"]).await;
    assert_eq!(socket.next().await["content"], "hello?");
}
