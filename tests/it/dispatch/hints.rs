//! An alarm due before anybody would look is not late, because a hint says so.

use std::time::Duration;

use serde_json::json;

use crate::support::{AgentKey, World, eventually};

/// So seldom that nothing in a test is found by it.
const NO_TICK: &[(&str, &str)] = &[("CHRONOS_TICK_MS", "86400000"), ("CHRONOS_BEAT_MS", "86400000")];

/// Whether the dispatcher listens for hints already.
pub async fn listens(world: &World) {
    eventually("the dispatcher listens", || async {
        let listening: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%chronos_alarm_due%'",
        )
        .fetch_one(&mut world.database.connect().await)
        .await
        .unwrap();
        (listening > 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_alarm_made_while_the_dispatcher_sleeps_goes_out_without_waiting_for_the_tick() {
    let world = World::new().await;
    let daemon = world.chronosd_with("api,dispatch", NO_TICK).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    listens(&world).await;
    for number in 1..=3 {
        api.post("/v1/alarms", &json!({ "kind": "once", "delay_seconds": 1, "wake_message": "m" })).await.data();
        world.sink.wakes(number).await;
    }
}

#[tokio::test]
async fn what_a_lost_hint_told_of_is_found_by_the_tick() {
    let world = World::new().await;
    let settings = [("CHRONOS_HINTS", "off"), ("CHRONOS_TICK_MS", "100")];
    let daemon = world.chronosd_with("api,dispatch", &settings).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    api.post("/v1/alarms", &json!({ "kind": "once", "delay_seconds": 1, "wake_message": "m" })).await.data();
    world.sink.wakes(1).await;
}

#[tokio::test]
async fn a_retry_and_a_next_slot_wait_for_no_tick() {
    let world = World::new().await;
    let settings: Vec<_> = NO_TICK.iter().chain(super::QUICK).copied().collect();
    let daemon = world.chronosd_with("api,dispatch", &settings).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    listens(&world).await;
    world.sink.reply([crate::support::Reply::Status(503)]);
    api.post("/v1/alarms", &json!({ "kind": "cron", "cron_expr": "@every 1s", "wake_message": "m" })).await.data();
    // The first slot's attempt, its retry, the second slot's.
    let wakes =
        tokio::time::timeout(Duration::from_secs(20), world.sink.wakes(3)).await.expect("nobody waits for the tick");
    assert_eq!(wakes[1].body["attempt"], 2);
}
