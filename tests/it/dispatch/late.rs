//! Slots that passed: folded, queued, skipped, or too late to fire.

use chrono::{DateTime, TimeDelta, Utc};
use chronos::{domain::alarm::Draft, store::alarms::Alarm};
use serde_json::Value;

use super::QUICK;
use crate::{
    gauntlet::sink::Received,
    support::{
        Database, Reply, World,
        alarms::{ann, create, draft, every_minute, execute, in_an_hour, read},
        eventually,
    },
};

/// As if nobody had looked for so many minutes. What is due is then as many slots, or one more if a minute began meanwhile.
async fn overdue(database: &Database, minutes: u32) {
    execute(
        &mut database.connect().await,
        &format!(
            "UPDATE alarms SET scheduled_for = scheduled_for - interval '{minutes} min',
                 next_fire_at = next_fire_at - interval '{minutes} min', created_at = created_at - interval '1 day',
                 fire_at = fire_at - interval '{minutes} min'"
        ),
    )
    .await;
}

fn slot(wake: &Received) -> DateTime<Utc> {
    wake.body["scheduled_for"].as_str().unwrap().parse().unwrap()
}

/// Runs of slots in an alarm's history: outcome, reason, first, last, how many.
async fn runs(database: &Database, alarm: &Alarm) -> Vec<(String, String, DateTime<Utc>, DateTime<Utc>, i64)> {
    sqlx::query_as(
        "SELECT outcome, reason, first_at, last_at, slots FROM attempts WHERE alarm_id = $1 AND attempt = 0
         ORDER BY first_at",
    )
    .bind(alarm.id.as_uuid())
    .fetch_all(&mut database.connect().await)
    .await
    .unwrap()
}

fn minutes(count: i64) -> TimeDelta {
    TimeDelta::minutes(count)
}

#[tokio::test]
async fn slots_missed_while_down_become_one_wake_the_newest_that_counts_the_others() {
    let world = World::new().await;
    let store = world.database.store().await;
    let alarm = create(&store, &ann(), every_minute()).await;
    overdue(&world.database, 5).await;
    let first = read(&store, &alarm).await.scheduled_for;
    world.sink.reply([Reply::Hold]);
    let _dispatcher = world.chronosd("dispatch").await;

    let wake = world.sink.wakes(1).await.remove(0);
    let missed = (slot(&wake) - first).num_minutes();
    assert!((4..=5).contains(&missed), "{missed}");
    assert_eq!(wake.body["missed"], missed);
    // All of it was in the table before the wake went out.
    let stored = read(&store, &alarm).await;
    assert_eq!((stored.scheduled_for, stored.missed_count), (slot(&wake), missed));
    let told = [("missed".to_owned(), "folded".to_owned(), first, slot(&wake) - minutes(1), missed)];
    assert_eq!(runs(&world.database, &alarm).await, told);

    world.sink.release();
    let fired = eventually("it is settled", || async {
        let stored = read(&store, &alarm).await;
        (stored.fired_count == 1).then_some(stored)
    })
    .await;
    assert!(fired.scheduled_for > slot(&wake));
    assert_eq!(fired.missed_count, missed + (fired.scheduled_for - slot(&wake)).num_minutes() - 1);
}

#[tokio::test]
async fn a_folded_wake_goes_out_again_as_it_was_when_its_dispatcher_dies() {
    let world = World::new().await;
    let store = world.database.store().await;
    let alarm = create(&store, &ann(), every_minute()).await;
    overdue(&world.database, 5).await;
    world.sink.reply([Reply::Hold]);
    let quick = [("CHRONOS_BEAT_MS", "100")];
    let first = world.chronosd_with("dispatch", &quick).await;
    let sent = world.sink.wakes(1).await.remove(0);
    first.kill().await;
    // More slots pass before anybody comes: as of the first claim they had not.
    execute(
        &mut world.database.connect().await,
        "UPDATE alarms SET scheduled_for = scheduled_for - interval '3 min', next_fire_at = next_fire_at - interval '3 min',
                first_claimed_at = first_claimed_at - interval '3 min'",
    )
    .await;
    let _second = world.chronosd_with("dispatch", &quick).await;
    let again = world.sink.wakes(2).await.remove(1);
    assert_eq!(slot(&again), slot(&sent) - minutes(3), "the same occurrence, three minutes back with everything else");
    assert_eq!(again.body["missed"], sent.body["missed"]);
    let folded = runs(&world.database, &alarm).await.into_iter().filter(|run| run.1 == "folded").count();
    assert_eq!(folded, 1);
}

#[tokio::test]
async fn under_fire_all_the_slots_go_out_one_after_another() {
    let world = World::new().await;
    let store = world.database.store().await;
    let alarm = create(&store, &ann(), Draft { misfire: Some("fire_all".into()), ..every_minute() }).await;
    overdue(&world.database, 4).await;
    let first = read(&store, &alarm).await.scheduled_for;
    let _dispatcher = world.chronosd("dispatch").await;
    let wakes = world.sink.wakes(4).await;
    for (number, wake) in (0..).zip(&wakes[..4]) {
        assert_eq!((slot(wake), &wake.body["missed"]), (first + minutes(number), &Value::from(0)));
    }
    let ids: std::collections::HashSet<_> = wakes.iter().map(|wake| wake.body["delivery_id"].to_string()).collect();
    assert_eq!(ids.len(), wakes.len());
}

#[tokio::test]
async fn what_is_later_than_its_alarm_allows_is_missed_and_says_so() {
    let world = World::new().await;
    let store = world.database.store().await;
    let (ann, late) = (ann(), Some(30));
    let once = create(&store, &ann, Draft { max_lateness_seconds: late, ..in_an_hour() }).await;
    let skips = create(&store, &ann, Draft { misfire: Some("skip".into()), ..in_an_hour() }).await;
    let daily = Draft { cron_expr: Some("0 0 1 1 *".into()), max_lateness_seconds: late, ..draft() };
    let series = create(&store, &ann, daily).await;
    let ended = create(&store, &ann, Draft { max_lateness_seconds: late, ..every_minute() }).await;
    execute(
        &mut world.database.connect().await,
        "UPDATE alarms SET scheduled_for = '2026-01-01', next_fire_at = '2026-01-01', created_at = '2025-06-01',
                           fire_at = CASE WHEN kind = 'once' THEN timestamptz '2026-01-01' END;
         UPDATE alarms SET ends_at = '2026-01-01 00:10' WHERE cron_expr = '* * * * *'",
    )
    .await;
    let _dispatcher = world.chronosd("dispatch").await;
    for (alarm, status, slots) in
        [(&once, "failed", 1), (&skips, "failed", 1), (&series, "active", 1), (&ended, "fired", 10)]
    {
        let stored = eventually("it is missed", || async {
            let stored = read(&store, alarm).await;
            (stored.missed_count > 0).then_some(stored)
        })
        .await;
        assert_eq!((stored.status.as_str(), stored.missed_count, stored.fired_count), (status, slots, 0));
        assert!(stored.last_error.starts_with("missed: due 2026-01-01T00:0"), "{}", stored.last_error);
        let [(outcome, reason, _, _, told)] = runs(&world.database, alarm).await.try_into().unwrap();
        assert_eq!((outcome.as_str(), reason.as_str(), told), ("missed", "late", slots));
    }
    assert!(read(&store, &series).await.next_fire_at > store.now().await.unwrap());
    assert!(world.sink.received().is_empty());
}

#[tokio::test]
async fn what_is_too_late_takes_no_room_and_makes_nothing_else_late() {
    /// Ten times what their owner may have in flight: ten ticks, if they took room.
    const LATE: usize = 40;
    let world = World::new().await;
    let store = world.database.store().await;
    for _ in 0..LATE {
        create(&store, &ann(), Draft { misfire: Some("skip".into()), ..in_an_hour() }).await;
    }
    let fresh = create(&store, &ann(), Draft { max_lateness_seconds: Some(5), ..in_an_hour() }).await;
    let few = [("CHRONOS_OWNER_CONCURRENCY", "4"), ("CHRONOS_TICK_MS", "1000")];
    let _dispatcher = world.chronosd_with("dispatch", &few).await;
    execute(
        &mut world.database.connect().await,
        "UPDATE alarms SET fire_at = at, scheduled_for = at, next_fire_at = at
         FROM (VALUES ('skip', now() - interval '1 h'), ('fire_once', now())) AS due (under, at) WHERE misfire = under",
    )
    .await;
    let wake = world.sink.wakes(1).await.remove(0);
    assert_eq!(wake.body["alarm_id"], fresh.id.to_string());
    eventually("each has met its fate", || async {
        let fates: Vec<(String, String, i64)> =
            sqlx::query_as("SELECT misfire, status, count(*) FROM alarms GROUP BY misfire, status ORDER BY misfire")
                .fetch_all(&mut world.database.connect().await)
                .await
                .unwrap();
        let fates: Vec<_> = fates.iter().map(|(misfire, status, count)| (&**misfire, &**status, *count)).collect();
        (fates == [("fire_once", "fired", 1), ("skip", "failed", 40)]).then_some(())
    })
    .await;
    assert_eq!(world.sink.received().len(), 1);
}

#[tokio::test]
async fn slots_that_pass_on_the_ladder_are_skipped_and_told_by_the_next_wake() {
    let world = World::new().await;
    let store = world.database.store().await;
    let alarm = create(&store, &ann(), every_minute()).await;
    overdue(&world.database, 1).await;
    let settings = [("CHRONOS_RETRY_BASE_MS", "600000"), ("CHRONOS_RETRY_CAP_MS", "600000")];
    world.sink.reply([Reply::Status(503)]);
    let dispatcher = world.chronosd_with("dispatch", &settings).await;
    let retrying = eventually("it is on its ladder", || async {
        let stored = read(&store, &alarm).await;
        (stored.failure_count == 1).then_some(stored)
    })
    .await;
    dispatcher.terminate().await;
    // Three more slots pass, and its rung comes.
    overdue(&world.database, 3).await;
    execute(&mut world.database.connect().await, "UPDATE alarms SET next_fire_at = now()").await;
    let _dispatcher = world.chronosd_with("dispatch", &settings).await;
    let again = world.sink.wakes(2).await.remove(1);
    assert_eq!(slot(&again), retrying.scheduled_for - minutes(3), "the retry is of the same occurrence");
    let advanced = eventually("it goes on", || async {
        let stored = read(&store, &alarm).await;
        (stored.fired_count == 1).then_some(stored)
    })
    .await;
    let skipped = (advanced.scheduled_for - slot(&again)).num_minutes() - 1;
    assert!((3..=4).contains(&skipped), "{skipped}");
    let told = runs(&world.database, &alarm).await;
    let expected = (
        "skipped".to_owned(),
        "retrying".to_owned(),
        slot(&again) + minutes(1),
        advanced.scheduled_for - minutes(1),
        skipped,
    );
    assert_eq!(told.last(), Some(&expected));
    // The next wake tells of them.
    execute(&mut world.database.connect().await, "UPDATE alarms SET next_fire_at = now()").await;
    let next = world.sink.wakes(3).await.remove(2);
    assert_eq!(next.body["missed"], skipped);
}

#[tokio::test]
async fn a_series_that_is_given_up_goes_on_and_one_without_another_slot_is_retired() {
    let world = World::new().await;
    let store = world.database.store().await;
    let goes_on = create(&store, &ann(), Draft { max_failures: Some(0), ..every_minute() }).await;
    let ends = create(&store, &ann(), Draft { max_failures: Some(0), ..every_minute() }).await;
    execute(
        &mut world.database.connect().await,
        &format!(
            "UPDATE alarms SET next_fire_at = now(), scheduled_for = date_trunc('minute', now());
             UPDATE alarms SET ends_at = scheduled_for + interval '1 s' WHERE id = '{}'",
            ends.id
        ),
    )
    .await;
    world.sink.reply([Reply::Status(500), Reply::Status(500)]);
    let _dispatcher = world.chronosd_with("dispatch", QUICK).await;
    for (alarm, status) in [(&goes_on, "active"), (&ends, "fired")] {
        let stored = eventually("it is given up", || async {
            let stored = read(&store, alarm).await;
            (!stored.last_error.is_empty()).then_some(stored)
        })
        .await;
        assert_eq!(stored.last_error, "HTTP 500: said the sink");
        assert_eq!((stored.status.as_str(), stored.failure_count, stored.fired_count), (status, 0, 0));
    }
    assert!(read(&store, &goes_on).await.next_fire_at > store.now().await.unwrap());
}

#[tokio::test]
async fn a_spread_alarm_fires_behind_its_slot_by_its_own_offset_and_never_before() {
    let world = World::new().await;
    let store = world.database.store().await;
    let draft = Draft { cron_expr: Some("@every 2s".into()), spread_seconds: Some(2), ..draft() };
    let alarm = create(&store, &ann(), draft).await;
    let offset = alarm.next_fire_at - alarm.scheduled_for;
    assert!(offset < TimeDelta::seconds(2), "{offset}");
    let _dispatcher = world.chronosd("dispatch").await;
    let wake = world.sink.wakes(1).await.remove(0);
    assert_eq!(slot(&wake), alarm.scheduled_for);
    let arrived = eventually("it is settled", || async {
        let started: Option<DateTime<Utc>> =
            sqlx::query_scalar("SELECT started_at FROM attempts ORDER BY started_at LIMIT 1")
                .fetch_optional(&mut world.database.connect().await)
                .await
                .unwrap();
        started
    })
    .await;
    assert!(arrived >= alarm.scheduled_for + offset);
}
