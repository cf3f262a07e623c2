//! When a dispatcher looks, if nobody tells it to.

use chrono::TimeDelta;
use chronos::domain::alarm::Draft;

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
