//! When a dispatcher looks, if nobody tells it to.

use std::{collections::HashSet, time::Duration};

use chrono::TimeDelta;
use chronos::domain::alarm::Draft;
use sqlx::PgConnection;

use crate::support::{
    Reply, World,
    alarms::{ann, create, draft, execute, in_an_hour},
    eventually,
};

/// What two busy cores add to a sleep that ends in time. The tick would add up to thirty seconds.
const PUNCTUAL: TimeDelta = TimeDelta::seconds(3);
/// Looks beside those of the beats: the first one, and what passes while a test counts.
const ASIDE: usize = 3;

#[tokio::test]
async fn a_dispatcher_without_hints_sleeps_until_the_next_instant_in_the_table() {
    let world = World::new().await;
    let store = world.database.store().await;
    // Long enough for the first look to find it still ahead.
    let alarm = create(&store, &ann(), Draft { delay_seconds: Some(4), ..draft() }).await;
    let seldom = [("CHRONOS_HINTS", "off"), ("CHRONOS_TICK_MS", "30000"), ("CHRONOS_BEAT_MS", "86400000")];
    let dispatcher = world.chronosd_with("dispatch", &seldom).await;
    let wake = world.sink.wakes(1).await.remove(0);
    // One that was slow to start could not be any earlier.
    let late = wake.arrived_at - alarm.next_fire_at.max(dispatcher.listening_since);
    assert!(late < PUNCTUAL, "{late} late");
    assert!(wake.arrived_at >= alarm.next_fire_at, "early");
}

#[tokio::test]
async fn a_row_that_is_due_and_claimed_by_another_makes_nobody_look_again_and_again() {
    const BEAT: (&str, &str) = ("CHRONOS_BEAT_MS", "1000");
    let world = World::new().await;
    let store = world.database.store().await;
    create(&store, &ann(), in_an_hour()).await;
    execute(&mut world.database.connect().await, "UPDATE alarms SET next_fire_at = now(), scheduled_for = now()").await;
    world.sink.reply([Reply::Hold]);
    let _holder = world.chronosd_with("dispatch", &[BEAT]).await;
    world.sink.wakes(1).await;

    // It has nothing to look for but its beats.
    let seldom = [BEAT, ("CHRONOS_HINTS", "off"), ("CHRONOS_TICK_MS", "86400000"), ("CHRONOS_LOG", "chronos=debug")];
    let other = world.chronosd_with("dispatch", &seldom).await;
    let beats = eventually("it has beaten five times", || async {
        let beats: i64 = sqlx::query_scalar("SELECT beats FROM dispatchers ORDER BY started_at DESC LIMIT 1")
            .fetch_one(&mut world.database.connect().await)
            .await
            .unwrap();
        usize::try_from(beats).ok().filter(|beats| *beats >= 5)
    })
    .await;
    let looks = other.said("looked for due alarms");
    assert!(looks > 0 && looks <= beats + ASIDE, "{looks} looks in {beats} beats");
    assert_eq!(world.sink.received().len(), 1);
}

/// Rows that were due a minute ago, of so many owners that none has a backlog of its own.
pub async fn backlog(db: &mut PgConnection, rows: usize) {
    let insert = "INSERT INTO alarms (owner_did, user_id, label, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
                  SELECT format('did:matrix:user%s:0000000000000000', n), 'user', 'crowd', 'c', 'once', at, 'm', at, at
                  FROM generate_series(1, $1) AS n, LATERAL (SELECT now() - interval '1 min' AS at) AS due";
    sqlx::query(insert).bind(i32::try_from(rows).unwrap()).execute(db).await.unwrap();
}

/// While a backlog is worked off, looks begin behind the last that was taken: what lay before is found from the beginning, which is looked at
/// every second, however long the tick is.
#[tokio::test]
async fn what_somebody_held_on_to_goes_out_when_it_is_let_go_though_a_backlog_is_being_worked_off() {
    const DUE: usize = 400;
    let world = World::new().await;
    let mut holder = world.database.connect().await;
    backlog(&mut holder, DUE).await;
    execute(
        &mut holder,
        "BEGIN; UPDATE alarms SET label = 'held' WHERE id = (SELECT id FROM alarms ORDER BY id LIMIT 1)",
    )
    .await;
    // Two at a time, and 20 ms for each two: four seconds.
    world.sink.always(Reply::Slow(Duration::from_millis(20)));
    let two = [("CHRONOS_BATCH", "2"), ("CHRONOS_CONCURRENCY", "2"), ("CHRONOS_TICK_MS", "30000")];
    let _dispatcher = world.chronosd_with("dispatch", &two).await;
    world.sink.wakes(10).await;
    execute(&mut holder, "COMMIT").await;
    let wakes = world.sink.wakes(DUE).await;
    let alarms: HashSet<_> = wakes.iter().map(|wake| wake.body["alarm_id"].to_string()).collect();
    assert_eq!((wakes.len(), alarms.len()), (DUE, DUE));
    let place = wakes.iter().position(|wake| wake.body["label"] == "held").expect("it was let go");
    assert!(place < DUE - 10, "after all the others, or nearly: {place}");
}

/// While one after another becomes due, looks begin behind what was due by the last one.
#[tokio::test]
async fn what_turns_up_with_an_instant_long_past_goes_out_though_others_become_due_all_the_time() {
    const DUE: usize = 400;
    let world = World::new().await;
    let mut db = world.database.connect().await;
    // One every 20 ms: eight seconds.
    let insert = "INSERT INTO alarms (owner_did, user_id, label, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
                  SELECT format('did:matrix:user%s:0000000000000000', n), 'user', 'stream', 'c', 'once', at, 'm', at, at
                  FROM generate_series(1, $1) AS n, LATERAL (SELECT now() + interval '1 s' + n * interval '20 ms' AS at) AS due";
    sqlx::query(insert).bind(i32::try_from(DUE).unwrap()).execute(&mut db).await.unwrap();
    let _dispatcher = world.chronosd_with("dispatch", &[("CHRONOS_TICK_MS", "30000")]).await;
    world.sink.wakes(10).await;
    backlog(&mut db, 1).await;
    let wakes = world.sink.wakes(DUE + 1).await;
    let place = wakes.iter().position(|wake| wake.body["label"] == "crowd").expect("it went out");
    assert!(place < DUE - 10, "after all the others, or nearly: {place}");
}

/// The look for the second of two begins behind what that for the first has seen, and the one that sees everything is to follow by itself.
#[tokio::test]
async fn what_somebody_held_on_to_goes_out_soon_after_the_others_though_nothing_else_becomes_due() {
    let world = World::new().await;
    let (mut holder, mut db) = (world.database.connect().await, world.database.connect().await);
    backlog(&mut db, 1).await;
    execute(&mut holder, "BEGIN; SET LOCAL synchronous_commit = off; SELECT FROM alarms FOR UPDATE").await;
    let seldom = [("CHRONOS_TICK_MS", "30000"), ("CHRONOS_BEAT_MS", "86400000")];
    let _dispatcher = world.chronosd_with("dispatch", &seldom).await;
    let insert = "INSERT INTO alarms (owner_did, user_id, label, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
                  SELECT format('did:matrix:user%s:0000000000000000', n), 'user', 'other', 'c', 'once', at, 'm', at, at
                  FROM unnest(ARRAY[1200, 2000]) AS n, LATERAL (SELECT now() + n * interval '1 ms' AS at) AS due";
    execute(&mut db, insert).await;
    execute(&mut db, "SELECT pg_notify('chronos_alarm_due', '1200000')").await;
    // Between the two, as Postgres sees it.
    let let_go = "SELECT pg_sleep_until(max(next_fire_at) - interval '700 ms') FROM alarms; COMMIT";
    execute(&mut holder, let_go).await;
    let wakes = world.sink.wakes(3).await;
    // On a busy machine it may have been let go before anybody looked for the first of them.
    let (held, others): (Vec<_>, Vec<_>) = wakes.iter().partition(|wake| wake.body["label"] == "crowd");
    let later = held[0].arrived_at - others.iter().map(|wake| wake.arrived_at).max().unwrap();
    assert!(later < PUNCTUAL, "{later} later");
}

/// Results of many more than one batch has, with one among them that cannot be written for a while.
#[tokio::test]
async fn results_of_several_batches_are_written_once_each_and_none_waits_for_one_that_somebody_holds_on_to() {
    const DUE: usize = 1200;
    let world = World::new().await;
    let mut db = world.database.connect().await;
    backlog(&mut db, DUE).await;
    world.sink.always(Reply::Hold);
    let many = [("CHRONOS_BATCH", "2000"), ("CHRONOS_CONCURRENCY", "2000")];
    let _dispatcher = world.chronosd_with("dispatch", &many).await;
    world.sink.wakes(DUE).await;
    let mut holder = world.database.connect().await;
    execute(&mut holder, "BEGIN; SELECT FROM alarms WHERE id = (SELECT id FROM alarms ORDER BY id LIMIT 1) FOR UPDATE")
        .await;
    world.sink.release();
    let all = i64::try_from(DUE).unwrap();
    let settled = async |wanted: i64| {
        let counts = "SELECT count(*) FILTER (WHERE status = 'fired'), (SELECT count(*) FROM attempts),
                             (SELECT count(DISTINCT alarm_id) FROM attempts WHERE outcome = 'delivered') FROM alarms";
        let seen = eventually("results are written", async || {
            let seen: (i64, i64, i64) =
                sqlx::query_as(counts).fetch_one(&mut world.database.connect().await).await.unwrap();
            (seen.0 >= wanted).then_some(seen)
        });
        assert_eq!(seen.await, (wanted, wanted, wanted));
    };
    settled(all - 1).await;
    execute(&mut holder, "COMMIT").await;
    settled(all).await;
    assert_eq!(world.sink.received().len(), DUE);
}
