//! Occurrences that were claimed again and again without a result go out one at a time, and hold up nobody.

use std::time::Duration;

use chrono::TimeDelta;
use chronos::domain::alarm::Draft;

use super::wait::backlog;
use crate::support::{
    Reply, World,
    alarms::{ann, bob, create, execute, in_an_hour},
    eventually,
};

/// As `chronosd run` has it when nobody says anything; the tests' own is shorter.
const DEFAULT: &[(&str, &str)] = &[("CHRONOS_TICK_MS", "1000")];
const SUSPECTS: usize = 20;
/// One suspect a tick would take twenty of them.
const IN_TIME: TimeDelta = TimeDelta::seconds(5);

#[tokio::test]
async fn suspects_fly_one_at_a_time_and_what_is_due_behind_them_does_not_wait_for_them() {
    let world = World::new().await;
    let store = world.database.store().await;
    for _ in 0..SUSPECTS {
        create(&store, &ann(), Draft { label: "suspect".into(), ..in_an_hour() }).await;
    }
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE alarms SET next_fire_at = now() - interval '1 min', first_claimed_at = now(), claims = 4")
        .await;
    let fresh = create(&store, &bob(), in_an_hour()).await;
    execute(&mut db, &format!("UPDATE alarms SET next_fire_at = now() WHERE id = '{}'", fresh.id)).await;
    // The first of them is held until somebody else has come through.
    world.sink.reply_to("suspect", [Reply::Hold]);
    world.sink.always(Reply::Slow(Duration::from_millis(20)));
    let dispatcher = world.chronosd_with("dispatch", DEFAULT).await;

    let wakes = world.sink.wakes(2).await;
    let wake = wakes.iter().find(|wake| wake.body["alarm_id"] == fresh.id.to_string()).expect("not a second suspect");
    let late = wake.arrived_at - dispatcher.listening_since;
    assert!(late < IN_TIME, "{late} after its dispatcher began");
    world.sink.release();
    world.sink.wakes(SUSPECTS + 1).await;

    let flights: Vec<_> = eventually("all are answered", || async {
        let received = world.sink.received();
        let suspects = received.iter().filter(|wake| wake.body["label"] == "suspect");
        suspects.map(|wake| Some((wake.arrived_at, wake.reaction.as_ref()?.1))).collect::<Option<_>>()
    })
    .await;
    assert_eq!(flights.len(), SUSPECTS, "each once");
    let overlapping = flights.windows(2).filter(|pair| pair[1].0 < pair[0].1).count();
    assert_eq!(overlapping, 0, "{flights:?}");
    let took = flights[SUSPECTS - 1].0 - flights[0].1;
    assert!(took < IN_TIME, "{took} for those that waited");
}

/// Looks begin behind what was taken while there is a backlog, and the suspects lie before it.
#[tokio::test]
async fn suspects_follow_each_other_though_a_backlog_is_being_worked_off() {
    const CROWD: usize = 1500;
    let world = World::new().await;
    let store = world.database.store().await;
    for _ in 0..SUSPECTS {
        create(&store, &ann(), Draft { label: "suspect".into(), ..in_an_hour() }).await;
    }
    let mut db = world.database.connect().await;
    execute(&mut db, "UPDATE alarms SET next_fire_at = now() - interval '1 h', first_claimed_at = now(), claims = 4")
        .await;
    backlog(&mut db, CROWD).await;
    // Four at a time, and 20 ms for each four: seven seconds for the crowd alone.
    world.sink.always(Reply::Slow(Duration::from_millis(20)));
    let four = [("CHRONOS_TICK_MS", "1000"), ("CHRONOS_BATCH", "4"), ("CHRONOS_CONCURRENCY", "4")];
    let _dispatcher = world.chronosd_with("dispatch", &four).await;
    let wakes = world.sink.wakes(CROWD + SUSPECTS).await;
    let suspects: Vec<_> =
        wakes.iter().filter(|wake| wake.body["label"] == "suspect").map(|wake| wake.arrived_at).collect();
    let took = suspects[SUSPECTS - 1] - suspects[0];
    assert!(took < IN_TIME, "{took} for {} suspects", suspects.len());
}
