//! `kill -9` at each step of a promotion, a wake, a send, a checkpoint and an event: real processes, and one that takes over.

use std::time::Duration;

use futures::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};
use uuid::Uuid;

use crate::support::{AgentKey, Daemon, Proxy, Reply, World, api::Api, eventually, socket::Socket};

/// Peers notice a death in three beats; the lease stays at its two minutes.
const SWIFT: &[(&str, &str)] = &[("CHRONOS_BEAT_MS", "1000"), ("CHRONOS_AUTONOMY_COOLDOWN_MS", "0")];

/// One session, two replicas that may die, and the database behind them.
struct Scene {
    world: World,
    pool: PgPool,
    agent: AgentKey,
    key: String,
}

impl Scene {
    async fn new() -> Self {
        let world = World::new().await;
        let pool = PgPool::connect(&world.database.uri).await.unwrap();
        let agent = AgentKey::of("ann");
        Self { world, pool, agent, key: "ann:coach:thread".to_owned() }
    }

    async fn replica(&self) -> (Daemon, Api) {
        self.replica_with(&[]).await
    }

    async fn replica_with(&self, settings: &[(&str, &str)]) -> (Daemon, Api) {
        let daemon = self.world.chronosd_with("api,dispatch", &[SWIFT, settings].concat()).await;
        let api = self.agent.sign_in(&daemon.api_url()).await;
        (daemon, api)
    }

    /// One that takes over what another leaves behind, and that nobody talks to.
    async fn heir(&self) -> Daemon {
        self.world.chronosd_with("dispatch", SWIFT).await
    }

    fn path(&self, rest: &str) -> String {
        format!("/v1/sessions/{}{rest}", self.key)
    }

    async fn says(&self, api: &Api, text: &str) {
        api.post(&self.path("/events"), &json!({ "type": "user_message", "payload": { "text": text } })).await.data();
    }

    /// A checkpoint of the first event that sets a timer which is due at once.
    async fn sets_a_timer(&self, api: &Api) {
        self.says(api, "remind me").await;
        let timer = json!({ "timer_id": "t", "fire_at": "2020-01-01T00:00:00Z", "payload": { "n": 1 } });
        let body = json!({ "checkpoint_id": "c1", "event_seq": 1, "effects": [{ "type": "schedule_timer", "payload": timer }] });
        api.post(&self.path("/checkpoints"), &body).await.data();
    }

    /// From now on whoever writes such rows waits, until what this returns is let go.
    async fn hold(&self, event: &str, table: &str, when: &str) -> Held {
        self.hold_by(&format!("CREATE TRIGGER held BEFORE {event} ON {table} FOR EACH ROW WHEN ({when})")).await
    }

    /// The same, at the commit of whoever has written such rows.
    async fn hold_commits(&self, event: &str, table: &str, when: &str) -> Held {
        self.hold_by(&format!(
            "CREATE CONSTRAINT TRIGGER held AFTER {event} ON {table} DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ({when})"
        ))
        .await
    }

    async fn hold_by(&self, trigger: &str) -> Held {
        let statement = format!(
            "CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS
                 $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END $$;
             {trigger} EXECUTE FUNCTION wait_for_the_test()"
        );
        let mut lock = self.pool.begin().await.unwrap();
        sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *lock).await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&self.pool).await.unwrap();
        Held { lock, pool: self.pool.clone() }
    }

    /// What the log holds: number and type of each event.
    async fn log(&self) -> Vec<(i64, String)> {
        sqlx::query_as("SELECT seq, type FROM events ORDER BY seq").fetch_all(&self.pool).await.unwrap()
    }

    /// Type and status of each effect.
    async fn effects(&self) -> Vec<(String, String)> {
        sqlx::query_as("SELECT type, status FROM effects ORDER BY event_seq, position, created_at")
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }

    async fn wake_is(&self, status: &str) {
        eventually(&format!("the wake is {status}"), || async {
            let wake = self.effects().await.into_iter().find(|(kind, _)| kind == "wake")?;
            (wake.1 == status).then_some(())
        })
        .await;
    }

    /// The timer has become one event, and its wake has arrived so many times, as the same delivery each time.
    async fn promoted_once_and_woken(&self, times: usize) {
        let wakes = self.world.sink.wakes(times).await;
        self.wake_is("completed").await;
        assert_eq!(self.log().await, [(1, "user_message".to_owned()), (2, "timer".to_owned())]);
        assert_eq!(wakes.len(), times);
        for wake in &wakes {
            assert_eq!(wake.body["delivery_id"], wakes[0].body["delivery_id"]);
            let told = ["session_key", "timer_id", "event_seq", "payload", "message", "conversation_id"]
                .map(|field| wake.body[field].clone());
            let expected =
                [json!("ann:coach:thread"), json!("t"), json!(2), json!({ "n": 1 }), json!(""), json!("thread")];
            assert_eq!(told, expected);
            assert_eq!(wake.headers["ce-type"], "dev.chronos.session.timer-promoted");
        }
        let kinds: Vec<_> = self.effects().await.into_iter().map(|(kind, _)| kind).collect();
        assert_eq!(kinds, ["schedule_timer", "wake"]);
    }
}

/// A lock that the test holds, and others wait for.
struct Held {
    lock: Transaction<'static, Postgres>,
    pool: PgPool,
}

impl Held {
    async fn somebody_waits(&self) {
        eventually("somebody waits for the test", || async {
            let waiting: bool =
                sqlx::query_scalar("SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)")
                    .fetch_one(&self.pool)
                    .await
                    .unwrap();
            waiting.then_some(())
        })
        .await;
    }

    /// Lets go, for good.
    async fn release(self) {
        self.lock.rollback().await.unwrap();
        sqlx::raw_sql("DROP FUNCTION wait_for_the_test CASCADE").execute(&self.pool).await.unwrap();
    }
}

/// Nobody works on anything any more: what the dead left half done is undone.
async fn rolled_back(pool: &PgPool) {
    eventually("what the dead left half done is undone", || async {
        let working: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM pg_stat_activity
                            WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
                              AND wait_event_type = 'Lock')",
        )
        .fetch_one(pool)
        .await
        .unwrap();
        (!working).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_dispatcher_killed_before_or_amid_a_promotion_leaves_the_timer_to_another() {
    // Waiting for the session; having written the event and not the wake; having written all of it, at the commit.
    let steps = [
        ("UPDATE", "alarms", "new.status = 'fired'"),
        ("INSERT", "events", "new.type = 'timer'"),
        ("INSERT", "effects", "new.type = 'wake'"),
        ("INSERT", "attempts", "new.outcome = 'delivered'"),
    ];
    // Each in a world of its own; most of it is waiting for beats that do not come.
    join_all(steps.map(async |(event, table, when)| {
        let scene = Scene::new().await;
        let (first, api) = scene.replica().await;
        let held = scene.hold(event, table, when).await;
        scene.sets_a_timer(&api).await;
        held.somebody_waits().await;
        let _second = scene.heir().await;
        first.kill().await;
        rolled_back(&scene.pool).await;
        assert_eq!(scene.log().await.len(), 1, "{table}: nothing of it is there");
        held.release().await;
        scene.promoted_once_and_woken(1).await;
    }))
    .await;
}

#[tokio::test]
async fn a_promotion_that_postgres_has_counts_though_its_dispatcher_is_dead() {
    let scene = Scene::new().await;
    // Whose death Postgres must not hear of while the commit waits.
    let proxy = Proxy::in_front_of(&scene.world.database).await;
    let (first, api) = scene.replica_with(&[("CHRONOS_POSTGRES_URI", &proxy.uri)]).await;
    let held = scene.hold_commits("UPDATE", "alarms", "new.status = 'fired'").await;
    scene.sets_a_timer(&api).await;
    held.somebody_waits().await;
    let _second = scene.heir().await;
    proxy.freeze();
    first.kill().await;
    held.release().await;
    scene.promoted_once_and_woken(1).await;
}

#[tokio::test]
async fn a_dispatcher_killed_over_a_wake_leaves_it_to_another_and_it_is_the_same_wake() {
    // Promoted, and the wake not claimed yet; on its way to the router; taken by the router, and not settled.
    let claiming = "new.status = 'executing' AND new.type = 'wake'";
    let settling = "new.status = 'completed' AND new.type = 'wake'";
    join_all([("claim", 1), ("delivery", 2), ("settle", 2)].map(async |(step, arrivals)| {
        let scene = Scene::new().await;
        let (first, api) = scene.replica().await;
        let held = match step {
            "claim" => Some(scene.hold("UPDATE", "effects", claiming).await),
            "settle" => Some(scene.hold("UPDATE", "effects", settling).await),
            _ => {
                scene.world.sink.reply([Reply::Hold]);
                None
            }
        };
        scene.sets_a_timer(&api).await;
        match &held {
            Some(held) => held.somebody_waits().await,
            None => drop(scene.world.sink.wakes(1).await),
        }
        let _second = scene.heir().await;
        first.kill().await;
        if let Some(held) = held {
            rolled_back(&scene.pool).await;
            held.release().await;
        }
        scene.promoted_once_and_woken(arrivals).await;
        scene.world.sink.release();
    }))
    .await;
}

/// A session with one reply in its outbox.
async fn with_a_reply(scene: &Scene, api: &Api) {
    scene.says(api, "hi").await;
    let send = json!({ "type": "send_message", "payload": { "content": "hello" } });
    let body = json!({ "checkpoint_id": "c1", "event_seq": 1, "effects": [send] });
    api.post(&scene.path("/checkpoints"), &body).await.data();
}

#[tokio::test]
async fn a_replica_killed_over_a_send_leaves_it_to_the_next_connection_and_it_is_the_same_send() {
    // Before it is marked as on its way; on its way, unanswered; acknowledged, and that not written.
    join_all([("begin", 1), ("answer", 2), ("acknowledge", 2)].map(async |(step, attempts)| {
        let scene = Scene::new().await;
        let ((first, api), (second, other)) = tokio::join!(scene.replica(), scene.replica());
        with_a_reply(&scene, &api).await;
        let key = scene.key.parse().unwrap();
        let held = match step {
            "begin" => Some(scene.hold("UPDATE", "effects", "new.status = 'executing'").await),
            "acknowledge" => Some(scene.hold("UPDATE", "effects", "new.status = 'completed'").await),
            _ => None,
        };
        let mut socket = Socket::connect(&first, &api, &key).await;
        let mut seen = None;
        if step != "begin" {
            let send = socket.next().await;
            if step == "acknowledge" {
                socket.ack(&send["effect_id"]).await;
            }
            seen = Some(send);
        }
        if let Some(held) = &held {
            held.somebody_waits().await;
        }
        first.kill().await;
        if let Some(held) = held {
            rolled_back(&scene.pool).await;
            held.release().await;
        }
        let mut socket = Socket::connect(&second, &other, &key).await;
        let again = socket.next().await;
        assert_eq!((&again["seq"], &again["content"]), (&json!(1), &json!("hello")), "{step}");
        assert!(seen.is_none_or(|seen| seen == again), "{step}: to the byte");
        socket.ack(&again["effect_id"]).await;
        eventually("the send is completed", || async {
            (scene.effects().await == [("send_message".to_owned(), "completed".to_owned())]).then_some(())
        })
        .await;
        let tried: i32 = sqlx::query_scalar("SELECT attempt_count FROM effects").fetch_one(&scene.pool).await.unwrap();
        assert_eq!(tried, attempts, "{step}");
    }))
    .await;
}

/// Posts, and does not mind when nobody answers.
fn posted(api: &Api, path: &str, body: &Value) -> impl Future<Output = ()> + use<> {
    let request = api.request(Method::POST, path).header("content-type", "application/json").body(body.to_string());
    async move { drop(request.send().await) }
}

#[tokio::test]
async fn a_replica_killed_over_a_checkpoint_has_stored_all_of_it_or_nothing() {
    let effects = json!([
        { "type": "send_message", "payload": { "content": "hello" } },
        { "type": "schedule_timer", "payload": { "timer_id": "t", "fire_at": "2090-01-01T00:00:00Z" } }
    ]);
    let body = &json!({ "checkpoint_id": "c1", "event_seq": 1, "effects": effects });
    let steps = [("INSERT", "alarms"), ("INSERT", "checkpoints"), ("INSERT", "effects"), ("COMMIT", "effects")];
    join_all(steps.map(async |(event, table)| {
        let scene = Scene::new().await;
        let proxy = Proxy::in_front_of(&scene.world.database).await;
        let (first, api) = scene.replica_with(&[("CHRONOS_POSTGRES_URI", &proxy.uri)]).await;
        scene.says(&api, "hi").await;
        let held = match event {
            "COMMIT" => scene.hold_commits("INSERT", table, "true").await,
            _ => scene.hold(event, table, "true").await,
        };
        let posting = tokio::spawn(posted(&api, &scene.path("/checkpoints"), body));
        held.somebody_waits().await;
        let (_second, other) = scene.replica().await;
        if event == "COMMIT" {
            proxy.freeze();
        }
        first.kill().await;
        posting.await.unwrap();
        if event != "COMMIT" {
            rolled_back(&scene.pool).await;
            assert!(scene.effects().await.is_empty(), "{table}");
        }
        held.release().await;
        let again = other.post(&scene.path("/checkpoints"), body).await.data();
        let stored: Vec<Uuid> =
            sqlx::query_scalar("SELECT id FROM effects ORDER BY position").fetch_all(&scene.pool).await.unwrap();
        let told: Vec<Uuid> = again["effects"]
            .as_array()
            .unwrap()
            .iter()
            .map(|effect| effect["id"].as_str().unwrap().parse().unwrap())
            .collect();
        assert_eq!(told, stored, "{table}: stored once, whoever stored it");
        let counts: (i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM checkpoints), (SELECT count(*) FROM autonomy_timers WHERE status = 'pending')",
        )
        .fetch_one(&scene.pool)
        .await
        .unwrap();
        assert_eq!(counts, (1, 1), "{table}");
    }))
    .await;
}

#[tokio::test]
async fn events_of_eight_writers_have_no_gap_and_none_twice_though_a_replica_is_killed() {
    const WRITERS: usize = 8;
    const EACH: usize = 25;
    let scene = Scene::new().await;
    let ((first, api), (_second, other)) = tokio::join!(scene.replica(), scene.replica());
    let path = scene.path("/events");
    let writers = (0..WRITERS).map(|writer| {
        let (api, other, path) = (api.clone(), other.clone(), path.clone());
        tokio::spawn(async move {
            for _ in 0..EACH {
                let body = json!({ "id": Uuid::new_v4(), "type": "tool_result", "payload": { "tool_id": "t", "payload": writer } });
                // Asked again elsewhere, under the same id, when there was no answer.
                let request = api.request(Method::POST, &path).header("content-type", "application/json");
                let answered = match request.body(body.to_string()).send().await {
                    Ok(answer) => answer.status() == 200 && answer.bytes().await.is_ok(),
                    Err(_) => false,
                };
                if !answered {
                    other.post(&path, &body).await.data();
                }
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let halfway = i64::try_from(WRITERS * EACH / 2).unwrap();
    eventually("half of it is written", || async {
        (scene.log().await.len() >= usize::try_from(halfway).unwrap()).then_some(())
    })
    .await;
    first.kill().await;
    for writer in writers {
        writer.await.unwrap();
    }
    let all = i64::try_from(WRITERS * EACH).unwrap();
    let seqs: Vec<i64> = scene.log().await.into_iter().map(|(seq, _)| seq).collect();
    assert_eq!(seqs, (1..=all).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_session_follows_up_by_itself_from_the_first_word_to_the_last() {
    let scene = Scene::new().await;
    let (daemon, api) = scene.replica().await;
    scene.sets_a_timer(&api).await;
    scene.promoted_once_and_woken(1).await;
    let mut socket = Socket::connect(&daemon, &api, &scene.key.parse().unwrap()).await;
    let send = json!({ "type": "send_message", "payload": { "content": "the tea is ready" } });
    let body = json!({ "checkpoint_id": "c2", "event_seq": 2, "effects": [send] });
    api.post(&scene.path("/checkpoints"), &body).await.data();
    let arrived = socket.next().await;
    assert_eq!(arrived["content"], "the tea is ready");
    socket.ack(&arrived["effect_id"]).await;
    eventually("all of it is done", || async {
        let session = api.get(&scene.path("")).await.data();
        (session["pending_effects"] == 0 && session["consecutive_autonomous_msgs"] == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_session_that_somebody_holds_on_to_keeps_no_other_promotion_waiting() {
    const TIMERS: usize = 80;
    let scene = Scene::new().await;
    // Room for all of them and another: what waits is in flight.
    let (_daemon, api) = scene.replica_with(&[("CHRONOS_OWNER_CONCURRENCY", "100")]).await;
    let mut lock = scene.pool.begin().await.unwrap();
    scene.says(&api, "remind me").await;
    // Rows that refer to it may come in, nobody may lock it as a promotion does. Its checkpoint would wait, so its timers are set by hand:
    // more than can be tried one by one, half a second each, before a test loses its patience.
    sqlx::query("SELECT FROM sessions FOR NO KEY UPDATE").execute(&mut *lock).await.unwrap();
    let timer = "INSERT INTO alarms (subject, source, owner_did, user_id, session_key, timer_id, correlation_id, kind, fire_at,
                                     scheduled_for, next_fire_at, payload)
                 SELECT 'session', 'session', owner_did, user_id, session_key, 't' || n, 'c', 'once', now(), now(), now(), 'null'
                 FROM sessions, generate_series(1, $1) AS n";
    sqlx::query(timer).bind(i32::try_from(TIMERS).unwrap()).execute(&scene.pool).await.unwrap();
    eventually("they are claimed", || async {
        let claimed = "SELECT count(*) FROM alarms WHERE claim_token IS NOT NULL";
        let claimed: i64 = sqlx::query_scalar(claimed).fetch_one(&scene.pool).await.unwrap();
        (usize::try_from(claimed) == Ok(TIMERS)).then_some(())
    })
    .await;
    let other = "/v1/sessions/ann:coach:other";
    let event = json!({ "type": "user_message", "payload": { "text": "me too" } });
    api.post(&format!("{other}/events"), &event).await.data();
    let timer = json!({ "timer_id": "u", "fire_at": "2020-01-01T00:00:00Z" });
    let body =
        json!({ "checkpoint_id": "c1", "event_seq": 1, "effects": [{ "type": "schedule_timer", "payload": timer }] });
    api.post(&format!("{other}/checkpoints"), &body).await.data();
    let wake = scene.world.sink.wakes(1).await.remove(0);
    assert_eq!(wake.body["timer_id"], "u");
    // And wakes of alarms are not held up at all.
    let alarm = json!({ "kind": "once", "delay_seconds": 1, "wake_message": "m" });
    api.post("/v1/alarms", &alarm).await.data();
    scene.world.sink.wakes(2).await;
    lock.rollback().await.unwrap();
    let mut wakes = scene.world.sink.wakes(2 + TIMERS).await;
    let told: std::collections::HashSet<String> =
        wakes.drain(2..).map(|wake| wake.body["timer_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(told, (1..=TIMERS).map(|number| format!("t{number}")).collect());
}

#[tokio::test]
async fn switched_off_timers_wait_untouched_and_switched_on_again_they_fire() {
    let scene = Scene::new().await;
    let (daemon, api) = scene.replica().await;
    scene.says(&api, "remind me").await;
    drop(daemon);
    let off = scene.world.chronosd_with("api,dispatch", &[("CHRONOS_AUTONOMY_ENABLED", "false")]).await;
    let timer = "INSERT INTO alarms (subject, source, owner_did, user_id, session_key, timer_id, correlation_id, kind, fire_at,
                                     scheduled_for, next_fire_at, payload)
                 SELECT 'session', 'session', owner_did, user_id, session_key, 't', 'c', 'once', now(), now(), now(), '{\"n\": 1}' FROM sessions";
    sqlx::raw_sql(timer).execute(&scene.pool).await.unwrap();
    let api = scene.agent.sign_in(&off.api_url()).await;
    assert_eq!(api.get(&scene.path("")).await.status, 404);
    // By the time this one is here the timer would have been claimed.
    api.post("/v1/alarms", &json!({ "kind": "once", "delay_seconds": 1, "wake_message": "m" })).await.data();
    scene.world.sink.wakes(1).await;
    let untouched: bool =
        sqlx::query_scalar("SELECT claims = 0 AND status = 'active' FROM alarms WHERE subject = 'session'")
            .fetch_one(&scene.pool)
            .await
            .unwrap();
    assert!(untouched);
    drop(off);
    let (_daemon, _) = scene.replica().await;
    let wake = tokio::time::timeout(Duration::from_secs(20), scene.world.sink.wakes(2)).await.unwrap().remove(1);
    assert_eq!(wake.body["timer_id"], "t");
}
