//! One owner's crowd does not keep the others waiting.

use std::{collections::HashMap, time::Duration};

use chrono::TimeDelta;
use chronos::domain::{access::Did, alarm::Draft};
use sqlx::PgConnection;

use crate::support::{
    Reply, World,
    alarms::{ann, bob, create, draft, execute, in_an_hour},
    eventually,
};

async fn crowd(db: &mut PgConnection, owner: &Did, many: u32) {
    execute(
        db,
        &format!(
            "INSERT INTO alarms (owner_did, user_id, correlation_id, kind, fire_at, wake_message, scheduled_for, next_fire_at)
             SELECT '{}', 'u', 'c', 'once', at, 'm', at, at
             FROM generate_series(1, {many}) AS n, LATERAL (SELECT now() - interval '1 h' + n * interval '1 ms' AS at) AS t",
            owner.as_str()
        ),
    )
    .await;
}

/// How many wakes each owner got.
fn by_owner(world: &World) -> HashMap<String, usize> {
    let mut counts = HashMap::new();
    for wake in world.sink.received() {
        *counts.entry(wake.body["owner_did"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn an_owner_at_its_cap_is_passed_over_and_the_others_are_served() {
    const CROWD: u32 = 1_000;
    let world = World::new().await;
    let store = world.database.store().await;
    let mut db = world.database.connect().await;
    crowd(&mut db, &ann(), CROWD).await;
    execute(&mut db, "ANALYZE alarms").await;
    world.sink.reply((0..4).map(|_| Reply::Hold));
    let few = [("CHRONOS_OWNER_CONCURRENCY", "4"), ("CHRONOS_CONCURRENCY", "64")];
    let _dispatcher = world.chronosd_with("dispatch", &few).await;
    world.sink.wakes(4).await;

    // Four of ann's are held by the router. Bob's was due long after hers, and those made now later still.
    for _ in 0..3 {
        create(&store, &bob(), in_an_hour()).await;
    }
    execute(&mut db, &format!("UPDATE alarms SET next_fire_at = now() WHERE owner_did = '{}'", bob().as_str())).await;
    world.sink.wakes(7).await;
    let counts = by_owner(&world);
    assert_eq!((counts[ann().as_str()], counts[bob().as_str()]), (4, 3));

    // Her own wait for her own, and all of them come.
    world.sink.release();
    eventually("all are fired", || async {
        let left: i64 = sqlx::query_scalar("SELECT count(*) FROM alarms WHERE status = 'active'")
            .fetch_one(&mut world.database.connect().await)
            .await
            .unwrap();
        (left == 0).then_some(())
    })
    .await;
    assert_eq!(by_owner(&world)[ann().as_str()], CROWD as usize, "each once");
}

#[tokio::test]
async fn an_alarm_made_beside_anothers_crowd_is_in_time() {
    /// Four at once, twenty milliseconds each: twenty seconds of work.
    const CROWD: u32 = 4_000;
    /// A tenth of that: a look, and what two busy cores add.
    const IN_TIME: TimeDelta = TimeDelta::seconds(2);
    let world = World::new().await;
    let store = world.database.store().await;
    let mut db = world.database.connect().await;
    crowd(&mut db, &ann(), CROWD).await;
    execute(&mut db, "ANALYZE alarms").await;
    world.sink.always(Reply::Slow(Duration::from_millis(20)));
    let _dispatcher = world.chronosd_with("dispatch", &[("CHRONOS_OWNER_CONCURRENCY", "4")]).await;
    world.sink.wakes(20).await;
    for _ in 0..3 {
        let alarm = create(&store, &bob(), Draft { delay_seconds: Some(1), ..draft() }).await;
        let id = alarm.id.to_string();
        let arrived_at = eventually("bob is woken", || async {
            world.sink.received().iter().rev().find(|wake| wake.body["alarm_id"] == id).map(|wake| wake.arrived_at)
        })
        .await;
        let late = arrived_at - alarm.next_fire_at;
        assert!(late < IN_TIME, "{late} late");
    }
    assert!(by_owner(&world)[ann().as_str()] < CROWD as usize, "hers are not through yet");
}

#[tokio::test]
async fn what_an_owner_has_in_flight_never_passes_the_cap() {
    let world = World::new().await;
    let mut db = world.database.connect().await;
    crowd(&mut db, &ann(), 40).await;
    crowd(&mut db, &bob(), 40).await;
    world.sink.reply((0..80).map(|_| Reply::Slow(Duration::from_millis(20))));
    let few = [("CHRONOS_OWNER_CONCURRENCY", "3")];
    let _dispatcher = world.chronosd_with("dispatch", &few).await;
    world.sink.wakes(80).await;
    let answered = eventually("all are answered", || async {
        let received = world.sink.received();
        let spans: Option<Vec<_>> =
            received.iter().map(|wake| Some((wake.arrived_at, wake.reaction.as_ref()?.1))).collect();
        spans
    })
    .await;
    let open_at = |instant| answered.iter().filter(|(from, until)| *from <= instant && instant < *until).count();
    let most = answered.iter().map(|(from, _)| open_at(*from)).max();
    assert!(most <= Some(6), "{most:?} at once");
}
