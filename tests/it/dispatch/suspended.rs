//! What is due to an owner who is suspended waits, and keeps nobody busy.

use chronos::store::Store;
use serde_json::json;
use sqlx::PgConnection;

use crate::support::{
    World,
    alarms::{ann, bob, create, execute, in_an_hour},
    eventually,
};

/// Looks beside those of the beats: the first one, the one past the backlog it finds, and what passes while a test counts.
const ASIDE: usize = 3;

async fn beats(db: &mut PgConnection) -> usize {
    let beats: i64 = sqlx::query_scalar("SELECT coalesce(max(beats), 0) FROM dispatchers").fetch_one(db).await.unwrap();
    usize::try_from(beats).unwrap()
}

/// A world in which Ann is suspended, and three timers of hers are due.
async fn suspended() -> (World, Store, PgConnection) {
    let world = World::new().await;
    let store = world.database.store().await;
    let mut db = world.database.connect().await;
    let ann = ann();
    execute(
        &mut db,
        &format!(
            "INSERT INTO agents (did, public_key, suspended, source)
             VALUES ('{ann}', 'd75a980182b10ab7' || repeat('0', 48), true, 'cli');
             INSERT INTO service_calls SELECT '{ann}', 'call-' || n FROM generate_series(1, 3) AS n;
             INSERT INTO alarms (owner_did, user_id, subject, service_call_id, registered_at, correlation_id, kind,
                                 fire_at, scheduled_for, next_fire_at)
             SELECT tenant_id, 'ann', 'service_call', service_call_id, now(), 'c', 'once', now(), now(), now()
             FROM service_calls"
        ),
    )
    .await;
    (world, store, db)
}

#[tokio::test]
async fn a_suspended_owners_timers_wait_until_it_is_resumed_and_make_nobody_look_again_and_again() {
    let (world, store, mut db) = suspended().await;
    let before = waiting(&mut db).await;
    // It has nothing to look for but its beats. Fewer rows fit a look than are waiting.
    let seldom = [
        ("CHRONOS_BEAT_MS", "500"),
        ("CHRONOS_HINTS", "off"),
        ("CHRONOS_TICK_MS", "86400000"),
        ("CHRONOS_BATCH", "2"),
        ("CHRONOS_LOG", "chronos=debug"),
    ];
    let dispatcher = world.chronosd_with("dispatch", &seldom).await;
    let beats = eventually("it has beaten ten times", || async {
        Some(beats(&mut world.database.connect().await).await).filter(|beats| *beats >= 10)
    })
    .await;
    let looks = dispatcher.said("looked for due alarms");
    assert!(looks > 0 && looks <= beats + ASIDE, "{looks} looks in {beats} beats");

    create(&store, &bob(), in_an_hour()).await;
    execute(&mut db, &format!("UPDATE alarms SET next_fire_at = now() WHERE owner_did = '{}'", bob())).await;
    let wakes = world.sink.wakes(1).await;
    assert_eq!(wakes[0].body["owner_did"], bob().as_str(), "others are served behind her");
    assert_eq!(waiting(&mut db).await, before, "hers stand as they stood");

    execute(&mut db, "UPDATE agents SET suspended = false").await;
    let events = world.sink.wakes(4).await;
    assert!(events[1..].iter().all(|event| event.body["tenant_id"] == ann().as_str()), "{events:?}");
}

/// What looks past a backlog look for is what became due since the last of them. An alarm that was resumed, one that was committed late, or a
/// claim that came to its end, became due before.
#[tokio::test]
async fn a_suspended_owners_backlog_hides_nothing_that_was_due_before_anybody_could_have_it() {
    let (world, store, mut db) = suspended().await;
    let alarm = create(&store, &bob(), in_an_hour()).await;
    store.pause_if_owned(&bob(), alarm.id).await.unwrap();
    let settings = [("CHRONOS_HINTS", "off"), ("CHRONOS_TICK_MS", "100"), ("CHRONOS_LOG", "chronos=debug")];
    let dispatcher = world.chronosd_with("dispatch", &settings).await;
    // The first finds the backlog, the second looks past it.
    eventually("it has looked", || async { (dispatcher.said("looked for due alarms") > 3).then_some(()) }).await;
    execute(
        &mut db,
        &format!(
            "UPDATE alarms SET next_fire_at = now() - interval '1 h', failure_count = 1 WHERE owner_did = '{}'",
            bob()
        ),
    )
    .await;
    store.resume_if_owned(&bob(), alarm.id).await.unwrap();
    let wakes = world.sink.wakes(1).await;
    assert_eq!((&wakes[0].body["owner_did"], &wakes[0].body["attempt"]), (&json!(bob().as_str()), &json!(2)));
}

/// All that a claim or a try would have changed of the timers.
async fn waiting(db: &mut PgConnection) -> Vec<String> {
    sqlx::query_scalar("SELECT row_to_json(a)::text FROM alarms AS a WHERE subject = 'service_call' ORDER BY id")
        .fetch_all(db)
        .await
        .unwrap()
}
