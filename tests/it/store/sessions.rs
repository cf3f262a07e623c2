//! Sessions and their logs of events.

use chronos::{
    domain::{
        access::Did,
        ids::EventId,
        payload::Payload,
        session::{
            SessionKey,
            autonomy::EventType,
            effect::{EffectStatus, EffectType},
        },
    },
    store::{
        Store,
        events::{Appended, Event, Happening},
        sessions::Session,
    },
};
use uuid::Uuid;

use super::{columns_of, did_of, execute, plan_of, refused_by, warm_store};
use crate::support::Database;

fn key(text: &str) -> SessionKey {
    text.parse().unwrap()
}

/// A client's own id.
const ID: Option<EventId> = Some(EventId::from_uuid(Uuid::from_u128(7)));

async fn append(store: &Store, owner: &Did, key: &SessionKey, id: Option<EventId>, payload: &str) -> Appended {
    let payload = Payload::parse(payload.to_owned()).unwrap();
    let happening = Happening { id, event_type: EventType::UserMessage, payload: &payload };
    store.append_event_if_owned(owner, key, &happening).await.unwrap()
}

fn new(appended: Appended) -> Event {
    let Appended::New(event) = appended else { panic!("{appended:?}") };
    event
}

#[tokio::test]
async fn events_appended_at_once_are_numbered_from_one_without_gaps() {
    const EVENTS: i64 = 60;
    let database = Database::fresh().await;
    let (one, other) = tokio::join!(warm_store(&database), warm_store(&database));
    let (owner, key) = (did_of("ann"), key("ann:agent:thread"));
    // The session itself is made by whoever comes first. A third of the clients give ids of their own.
    let appended = (0..EVENTS).map(|n| {
        let store = if n % 2 == 0 { &one } else { &other };
        let id = (n % 3 == 0).then(|| EventId::from_uuid(Uuid::from_u128(n.unsigned_abs().into())));
        append(store, &owner, &key, id, "{}")
    });
    let mut numbers: Vec<i64> =
        futures::future::join_all(appended).await.into_iter().map(|event| new(event).seq).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=EVENTS).collect::<Vec<_>>());

    let log = one.events_after_if_owned(&owner, &key, 0, 1000).await.unwrap().unwrap();
    assert_eq!(log.iter().map(|event| event.seq).collect::<Vec<_>>(), numbers);
    assert!(log.windows(2).all(|pair| pair[0].created_at <= pair[1].created_at), "time goes with the numbers");
    assert_eq!(one.find_session_if_owned(&owner, &key).await.unwrap().unwrap().last_seq, EVENTS);
}

#[tokio::test]
async fn an_event_that_is_sent_twice_at_once_happens_once() {
    let database = Database::fresh().await;
    let store = warm_store(&database).await;
    let (owner, key) = (did_of("ann"), key("ann:agent:thread"));
    let sent = (0..10).map(|_| append(&store, &owner, &key, ID, r#"{"text":"hi"}"#));
    let appended = futures::future::join_all(sent).await;
    assert_eq!(appended.iter().filter(|event| matches!(event, Appended::New(_))).count(), 1, "{appended:?}");
    assert_eq!(store.events_after_if_owned(&owner, &key, 0, 1000).await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn the_same_id_again_returns_the_first_event_and_with_another_body_is_a_conflict() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, key) = (did_of("ann"), key("ann:agent:thread"));
    let first = new(append(&store, &owner, &key, ID, r#"{"text": "hé", "n":1}"#).await);
    assert_eq!((first.seq, Some(first.id)), (1, ID));
    assert_eq!(first.payload.as_str(), r#"{"text": "hé", "n":1}"#);

    let again = append(&store, &owner, &key, ID, r#"{"n":1,"text":"h\u00e9"}"#).await;
    assert_eq!(again, Appended::Known(first));
    assert_eq!(append(&store, &owner, &key, ID, r#"{"text": "no", "n":1}"#).await, Appended::Conflict);
    let payload = Payload::parse(r#"{"text": "hé", "n":1}"#.to_owned()).unwrap();
    let another_type = Happening { id: ID, event_type: EventType::ToolResult, payload: &payload };
    let appended = store.append_event_if_owned(&owner, &key, &another_type).await.unwrap();
    assert_eq!(appended, Appended::Conflict);

    // None of these used up a number.
    assert_eq!(new(append(&store, &owner, &key, None, "{}").await).seq, 2);
}

#[tokio::test]
async fn an_id_means_something_only_within_its_session() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (ann, bob) = (did_of("ann"), did_of("bob"));
    let first = new(append(&store, &ann, &key("ann:agent:one"), ID, r#"{"text":"a"}"#).await);
    let second = new(append(&store, &ann, &key("ann:agent:two"), ID, r#"{"text":"b"}"#).await);
    let third = new(append(&store, &bob, &key("bob:agent:one"), ID, r#"{"text":"c"}"#).await);
    assert_eq!((first.seq, second.seq, third.seq), (1, 1, 1));
}

#[tokio::test]
async fn a_session_is_its_owners_alone() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, key) = (did_of("ann"), key("ann:agent:thread"));
    append(&store, &owner, &key, ID, "{}").await;

    // Another user, and another agent of the same user.
    for stranger in [did_of("bob"), did_of("ann")] {
        for id in [None, ID] {
            assert_eq!(append(&store, &stranger, &key, id, "{}").await, Appended::NotOwned);
        }
        assert_eq!(store.find_session_if_owned(&stranger, &key).await.unwrap(), None);
        assert_eq!(store.events_after_if_owned(&stranger, &key, 0, 10).await.unwrap(), None);
    }
    assert_eq!(store.find_session_if_owned(&owner, &key).await.unwrap().unwrap().last_seq, 1);
}

#[tokio::test]
async fn nobody_makes_a_session_in_another_users_name() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let key = key("ann:agent:thread");
    assert_eq!(append(&store, &did_of("bob"), &key, None, "{}").await, Appended::NotOwned);
    assert_eq!(new(append(&store, &did_of("ann"), &key, None, "{}").await).seq, 1, "it was still to be had");
}

#[tokio::test]
async fn a_log_is_read_on_from_where_one_was() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, key) = (did_of("ann"), key("ann:agent:thread"));
    assert_eq!(store.events_after_if_owned(&owner, &key, 0, 10).await.unwrap(), None, "there is no session yet");
    let mut all = Vec::new();
    for n in 0..5 {
        all.push(new(append(&store, &owner, &key, None, &n.to_string()).await));
    }
    let read = async |after, limit| store.events_after_if_owned(&owner, &key, after, limit).await.unwrap().unwrap();
    assert_eq!(read(0, 10).await, all);
    assert_eq!(read(1, 2).await, all[1..3]);
    assert_eq!(read(5, 10).await, []);
}

/// Ann's session with the numbers that later work will set, and a timer of each kind.
const LIVELY: &str =
    "UPDATE sessions SET event_seq = 1, consecutive_autonomous_msgs = 2, last_autonomous_at = created_at;
    INSERT INTO alarms (subject, source, owner_did, user_id, session_key, timer_id, correlation_id, kind, payload,
                        fire_at, scheduled_for, next_fire_at, status, cancelled_by)
    SELECT 'session', 'session', owner_did, user_id, session_key, word, 'c', 'once', '{\"n\": 1e1}',
           '2096-10-02 07:06:40Z', '2096-10-02 07:06:40Z', '2096-10-02 08:00:00Z', word,
           CASE word WHEN 'cancelled' THEN 'owner' END
    FROM sessions, unnest(ARRAY['active', 'fired', 'cancelled']) AS word;
    INSERT INTO effects (session_key, checkpoint_id, event_seq, position, type, payload, dedupe_key, status)
    SELECT session_key, 'c', 1, n, 'send_message', '{}', encode(sha256(n::text::bytea), 'hex'),
           CASE WHEN n < 2 THEN 'pending' ELSE 'completed' END
    FROM sessions, generate_series(0, 3) AS n;";

#[tokio::test]
async fn a_session_shows_what_is_still_to_happen_in_it() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, key) = (did_of("ann"), key("ann:agent:thread"));
    append(&store, &owner, &key, None, "{}").await;
    append(&store, &owner, &key, None, "{}").await;
    execute(&mut database.connect().await, LIVELY).await;
    let session = store.find_session_if_owned(&owner, &key).await.unwrap().unwrap();
    let expected = Session {
        last_seq: 2,
        event_seq: 1,
        consecutive_autonomous_msgs: 2,
        last_autonomous_at: Some(session.created_at),
        pending_timers: 1,
        pending_effects: 2,
        created_at: session.created_at,
    };
    assert_eq!(session, expected);
}

#[tokio::test]
async fn the_view_has_the_columns_and_words_of_the_timers_document() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    let columns = ["id", "session_key", "timer_id", "fire_at", "payload", "status", "created_at", "updated_at"];
    assert_eq!(columns_of(&mut db, "autonomy_timers").await, columns);
    append(&store, &did_of("ann"), &key("ann:agent:thread"), None, "{}").await;
    execute(&mut db, LIVELY).await;
    let shown: Vec<(String, String, String)> =
        sqlx::query_as("SELECT timer_id, status, fire_at || ' ' || payload FROM autonomy_timers ORDER BY timer_id")
            .fetch_all(&mut db)
            .await
            .unwrap();
    let nominal = "2096-10-02 07:06:40+00 {\"n\": 1e1}";
    let expected = [("active", "pending"), ("cancelled", "cancelled"), ("fired", "promoted")];
    let expected = expected.map(|(timer, status)| (timer.to_owned(), status.to_owned(), nominal.to_owned()));
    assert_eq!(shown, expected);
}

#[tokio::test]
async fn with_a_session_goes_all_that_is_its_and_a_pending_timer_leaves_a_trace() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    append(&store, &did_of("ann"), &key("ann:agent:thread"), None, "{}").await;
    execute(&mut db, LIVELY).await;
    execute(
        &mut db,
        "INSERT INTO checkpoints (session_key, checkpoint_id, event_seq, request_hash, answer)
         SELECT session_key, 'c', 1, sha256(''), '{}' FROM sessions;
         DELETE FROM sessions;",
    )
    .await;
    let left: i64 = sqlx::query_scalar(
        "SELECT (SELECT count(*) FROM events) + (SELECT count(*) FROM checkpoints) + (SELECT count(*) FROM effects)
              + (SELECT count(*) FROM alarms)",
    )
    .fetch_one(&mut db)
    .await
    .unwrap();
    let traces: Vec<(String, String)> =
        sqlx::query_as("SELECT outcome, reason FROM attempts").fetch_all(&mut db).await.unwrap();
    assert_eq!((left, traces), (0, vec![("cancelled".to_owned(), "deleted".to_owned())]));
}

#[tokio::test]
async fn the_schema_refuses_what_would_break_a_session() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let mut db = database.connect().await;
    append(&store, &did_of("ann"), &key("ann:agent:thread"), None, "{}").await;
    execute(&mut db, LIVELY).await;
    let refusals = [
        ("UPDATE sessions SET user_id = 'bob'", "sessions_are_of_their_user"),
        ("UPDATE sessions SET event_seq = 2", "sessions_only_processed_what_happened"),
        ("UPDATE effects SET status = 'executing'", "effects_executing_is_claimed"),
        ("UPDATE effects SET claimed_at = now()", "effects_claim_is_whole"),
        ("UPDATE effects SET status = 'suppressed', reason = 'cap'", "effects_autonomous_alone_are_restrained"),
        ("UPDATE effects SET status = 'failed'", "effects_suppressed_or_failed_says_why"),
        ("UPDATE effects SET type = 'schedule_timer'", "effects_timers_are_born_done"),
        (
            "UPDATE effects SET type = 'wake', wakes_did = (SELECT owner_did FROM sessions), not_before = now(), autonomous = true",
            "effects_sends_alone_are_autonomous",
        ),
        ("UPDATE effects SET send_seq = 1", "effects_send_seq_key"),
        ("UPDATE effects SET dedupe_key = 'same'", "effects_dedupe_key_is_sha256"),
        ("UPDATE effects SET dedupe_key = repeat('a', 64)", "effects_dedupe_key_key"),
        (
            "UPDATE effects SET type = 'wake', wakes_did = (SELECT owner_did FROM sessions), status = 'completed'",
            "effects_wakes_have_an_instant",
        ),
        ("UPDATE effects SET wakes_did = 'did:matrix:ann:0000000000000000'", "effects_wakes_alone_are_for_somebody"),
        (
            "INSERT INTO events (session_key, seq, type, payload, created_at)
             SELECT session_key, 3, 'thought', '{}', now() FROM sessions",
            "events_type_known",
        ),
        ("UPDATE alarms SET timer_id = 'same'", "alarms_session_timer_idx"),
        ("UPDATE alarms SET session_key = 'ann:agent:none'", "alarms_session_fkey"),
        ("UPDATE alarms SET owner_did = 'did:matrix:ann:ffffffffffffffff'", "alarms_session_fkey"),
        ("UPDATE alarms SET timer_id = repeat('x', 257)", "alarms_texts_are_capped"),
    ];
    for (statement, constraint) in refusals {
        assert_eq!(refused_by(&mut db, statement).await, constraint, "{statement}");
    }
}

#[tokio::test]
async fn a_sessions_timers_are_found_by_their_indexes() {
    let database = Database::fresh().await;
    let mut db = database.connect().await;
    execute(
        &mut db,
        "INSERT INTO sessions (session_key, owner_did, user_id)
         SELECT 'ann:agent:' || n, 'did:matrix:ann:0000000000000000', 'ann' FROM generate_series(1, 500) n;
         INSERT INTO alarms (subject, source, owner_did, user_id, session_key, timer_id, correlation_id, kind, fire_at,
                             scheduled_for, next_fire_at, status)
         SELECT 'session', 'session', owner_did, user_id, session_key, n, 'c', 'once', due, due, due,
                CASE WHEN n % 10 = 0 THEN 'active' ELSE 'fired' END
         FROM (SELECT *, now() + random() * interval '1 day' AS due FROM sessions, generate_series(1, 20) n) AS s;
         INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, scheduled_for, next_fire_at, status)
         SELECT 'did:matrix:ann:0000000000000000', 'ann', 'c', 'once', due, due, due, CASE WHEN n % 20 = 0 THEN 'active' ELSE 'fired' END
         FROM (SELECT n, now() + random() * interval '1 day' AS due FROM generate_series(1, 20000) n) AS a;
         ANALYZE alarms;",
    )
    .await;
    let pending = "SELECT count(*) FROM alarms WHERE session_key = $1 AND subject = 'session' AND status = 'active'";
    let due = "SELECT id FROM alarms WHERE subject = 'session' AND status = 'active' AND next_fire_at <= now() \
               ORDER BY next_fire_at LIMIT 100";
    let cascade = "DELETE FROM ONLY alarms WHERE $1 OPERATOR(pg_catalog.=) session_key";
    let plan = plan_of(&mut db, pending, &["ann:agent:7"]).await;
    assert!(plan.contains("alarms_session_pending_idx"), "{plan}");
    let plan = plan_of(&mut db, due, &[]).await;
    assert!(plan.contains("idx_timers_fire_at"), "{plan}");
    let plan = plan_of(&mut db, cascade, &["ann:agent:7"]).await;
    assert!(plan.contains("alarms_session_timer_idx"), "{plan}");
}

#[tokio::test]
async fn effects_are_read_by_the_sessions_owner_alone() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (owner, key) = (did_of("ann"), key("ann:agent:thread"));
    append(&store, &owner, &key, None, "{}").await;
    execute(
        &mut database.connect().await,
        "INSERT INTO effects (session_key, checkpoint_id, event_seq, position, type, payload, dedupe_key, status)
         SELECT 'ann:agent:thread', 'c1', 1, n, 'send_message', '{\"content\": \"hi\"}', encode(sha256(n::text::bytea), 'hex'),
                CASE n WHEN 0 THEN 'completed' ELSE 'pending' END
         FROM generate_series(0, 2) AS n",
    )
    .await;

    let effects = async |status| store.effects_if_owned(&owner, &key, status, 10).await.unwrap().unwrap();
    let all = effects(None).await;
    assert_eq!(all.len(), 3);
    assert_eq!((all[0].status, all[0].effect_type), (EffectStatus::Completed, EffectType::SendMessage));
    assert_eq!(all[0].payload.as_str(), r#"{"content": "hi"}"#);
    assert_eq!(effects(Some(EffectStatus::Pending)).await, all[1..]);
    assert_eq!(store.effects_if_owned(&did_of("ann"), &key, None, 10).await.unwrap(), None);
}
