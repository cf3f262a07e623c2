//! `kill -9`, at every place where it hurts.

use std::time::Duration;

use chrono::TimeDelta;

use super::{SWIFT, all, each_was_woken, elected, every_promise_was_kept, settles_wait};
use crate::{
    gauntlet::{Gauntlet, dead_end::DeadEnd, driver::NOW, sink::Reply},
    support::{Namespace, Proxy},
    telemetry::scrape::count,
};

/// How long the wakes of a dead dispatcher may take at default settings: three beats of 5 s after the last one seen, one
/// more because they are not in step, a tick, and some seconds for a busy machine. The lease would take 120 s.
const RECOVERY_BOUND: TimeDelta = TimeDelta::seconds(25);
/// As `chronosd run` has it when nobody says anything; the tests' own is shorter.
const DEFAULT: &[(&str, &str)] = &[("CHRONOS_TICK_MS", "1000")];

#[tokio::test]
async fn at_default_settings_the_wakes_of_a_killed_dispatcher_go_out_within_25_seconds() {
    the_wakes_of_a_killed_dispatcher_go_out_in_time(DEFAULT).await;
}

#[tokio::test]
async fn the_wakes_of_a_killed_leader_go_out_within_25_seconds_too() {
    let namespace = Namespace::fresh().await;
    the_wakes_of_a_killed_dispatcher_go_out_in_time(&all(&[DEFAULT, &elected(&namespace)])).await;
}

async fn the_wakes_of_a_killed_dispatcher_go_out_in_time(settings: &[(&str, &str)]) {
    let gauntlet = Gauntlet::open().await;
    let first = gauntlet.replica("first", settings).await;
    gauntlet.sink().reply((0..10).map(|_| Reply::Hold));
    let alarms = gauntlet.driver.many(10, NOW).await;
    gauntlet.sink().wakes(10).await;
    let second = gauntlet.replica("second", settings).await;

    let death = gauntlet.nemesis.kill(first).await;
    gauntlet.sink().wakes(20).await;
    for wake in gauntlet.sink().log().iter().filter(|wake| wake.replica == "second") {
        let took = wake.arrived_at - death.began_at;
        assert!(took <= RECOVERY_BOUND, "alarm {} was woken {took} after its dispatcher died", wake.alarm_id);
    }
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 2);
    every_promise_was_kept(gauntlet, [second]).await;
}

#[tokio::test]
async fn a_dispatcher_killed_between_claim_and_send_is_replaced_and_nothing_is_repeated() {
    let gauntlet = Gauntlet::open().await;
    let dead_end = DeadEnd::start().await;
    let nowhere = [("CHRONOS_ROUTER_WAKE_URL", dead_end.url.as_str())];
    let first = gauntlet.replica("first", &all(&[SWIFT, &nowhere])).await;
    let mut alarms = gauntlet.driver.many(5, NOW).await;
    gauntlet.claimed(5).await;
    let cancelled = alarms.pop().unwrap();
    assert!(gauntlet.driver.cancel(cancelled).await, "it is claimed, so its wake may arrive");

    let second = gauntlet.replica("second", SWIFT).await;
    gauntlet.nemesis.kill(first).await;
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 1);
    each_was_woken(&gauntlet, &[cancelled], 0);
    every_promise_was_kept(gauntlet, [second]).await;
}

#[tokio::test]
async fn a_dispatcher_killed_between_send_and_settle_is_replaced_and_its_wakes_go_out_again_under_the_same_ids() {
    let gauntlet = Gauntlet::open().await;
    let first = gauntlet.replica("first", SWIFT).await;
    gauntlet.sink().reply((0..5).map(|_| Reply::Hold));
    let mut alarms = gauntlet.driver.many(5, NOW).await;
    gauntlet.sink().wakes(5).await;
    let cancelled = alarms.pop().unwrap();
    assert!(gauntlet.driver.cancel(cancelled).await);

    let second = gauntlet.replica("second", SWIFT).await;
    gauntlet.nemesis.kill(first).await;
    gauntlet.settled(&alarms, "fired").await;
    // The dead one's answers come now, to nobody.
    gauntlet.sink().release();
    each_was_woken(&gauntlet, &alarms, 2);
    each_was_woken(&gauntlet, &[cancelled], 1);
    // What was cancelled wants no delivery.
    assert_eq!(count(&second.daemon, "chronos_claims_released_total", &[]).await, alarms.len() as u64);
    every_promise_was_kept(gauntlet, [second]).await;
}

#[tokio::test]
async fn a_settle_that_postgres_has_counts_though_its_dispatcher_is_dead() {
    let gauntlet = Gauntlet::open().await;
    // Whose death Postgres must not hear of while the settle waits: it looks every second whether anybody is still there.
    let proxy = Proxy::in_front_of(&gauntlet.world.database).await;
    let first = gauntlet.replica("first", &[SWIFT[0], ("CHRONOS_POSTGRES_URI", &proxy.uri)]).await;
    gauntlet.sink().reply([Reply::Hold]);
    let alarm = gauntlet.driver.once("a", NOW).await;
    gauntlet.sink().wakes(1).await;
    let second = gauntlet.replica("second", SWIFT).await;
    let lock = settles_wait(&gauntlet).await;
    gauntlet.sink().release();
    gauntlet.blocked().await;

    proxy.freeze();
    gauntlet.nemesis.kill(first).await;
    lock.rollback().await.unwrap();
    gauntlet.settled(&[alarm], "fired").await;
    each_was_woken(&gauntlet, &[alarm], 1);
    every_promise_was_kept(gauntlet, [second]).await;
}

#[tokio::test]
async fn the_wakes_of_a_killed_dispatcher_are_taken_by_one_of_its_peers_not_by_each() {
    let gauntlet = Gauntlet::open().await;
    let first = gauntlet.replica("first", SWIFT).await;
    gauntlet.sink().reply((0..20).map(|_| Reply::Hold));
    let alarms = gauntlet.driver.many(20, NOW).await;
    gauntlet.sink().wakes(20).await;
    let (second, third) = tokio::join!(gauntlet.replica("second", SWIFT), gauntlet.replica("third", SWIFT));

    gauntlet.nemesis.kill(first).await;
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 2);
    every_promise_was_kept(gauntlet, [second, third]).await;
}

#[tokio::test]
async fn a_series_goes_on_when_its_dispatcher_is_killed_and_every_slot_is_told() {
    let gauntlet = Gauntlet::open().await;
    let first = gauntlet.replica("first", SWIFT).await;
    gauntlet.sink().reply([Reply::Status(202), Reply::Hold]);
    let series = gauntlet.driver.every("tick", Duration::from_secs(1)).await;
    gauntlet.sink().wakes(2).await;
    let second = gauntlet.replica("second", SWIFT).await;

    gauntlet.nemesis.kill(first).await;
    // The held slot once more, and two that follow it.
    let wakes = gauntlet.sink().wakes(5).await;
    assert_eq!(wakes[1].body["delivery_id"], wakes[2].body["delivery_id"]);
    gauntlet.driver.cancel(series).await;
    every_promise_was_kept(gauntlet, [second]).await;
}
