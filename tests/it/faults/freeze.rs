//! `SIGSTOP`, and `SIGCONT` when others have long gone on.

use std::time::Duration;

use uuid::Uuid;

use super::{SHORT_LEASE, SWIFT, all, claims_wait, each_was_woken, elected, every_promise_was_kept};
use crate::{
    gauntlet::{Gauntlet, driver::NOW, sink::Reply},
    support::{Namespace, eventually},
    telemetry::scrape::count,
};

#[tokio::test]
async fn a_dispatcher_frozen_past_its_lease_changes_nothing_when_it_goes_on() {
    late_answers_change_nothing(SHORT_LEASE).await;
}

#[tokio::test]
async fn a_dispatcher_frozen_until_its_peers_think_it_dead_changes_nothing_when_it_goes_on() {
    late_answers_change_nothing(SWIFT).await;
}

#[tokio::test]
async fn a_leader_frozen_until_another_leads_changes_nothing_when_it_goes_on() {
    let namespace = Namespace::fresh().await;
    late_answers_change_nothing(&all(&[SWIFT, &elected(&namespace)])).await;
}

async fn late_answers_change_nothing(settings: &[(&str, &str)]) {
    let gauntlet = Gauntlet::open().await;
    let first = gauntlet.replica("first", settings).await;
    gauntlet.sink().reply([Reply::Hold, Reply::Hold]);
    let (alarm, cancelled) = tokio::join!(gauntlet.driver.once("a", NOW), gauntlet.driver.once("b", NOW));
    gauntlet.sink().wakes(2).await;
    let frozen = gauntlet.nemesis.freeze(&first).await;
    assert!(gauntlet.driver.cancel(cancelled).await);

    let second = gauntlet.replica("second", settings).await;
    gauntlet.settled(&[alarm], "fired").await;
    gauntlet.sink().release();
    gauntlet.nemesis.thaw(&first, frozen).await;
    assert_eq!(outcomes(&gauntlet, alarm, "fenced").await, ["delivered", "fenced"]);
    assert_eq!(outcomes(&gauntlet, cancelled, "cancelled").await, ["cancelled"]);
    eventually("both late answers are counted", || async {
        (count(&first.daemon, "chronos_results_fenced_total", &[]).await == 2).then_some(())
    })
    .await;
    each_was_woken(&gauntlet, &[alarm], 2);
    each_was_woken(&gauntlet, &[cancelled], 1);
    every_promise_was_kept(gauntlet, [first, second]).await;
}

/// What became of an alarm's tries, once one of them is as wanted.
async fn outcomes(gauntlet: &Gauntlet, alarm: Uuid, wanted: &str) -> Vec<String> {
    eventually(&format!("an attempt is {wanted}"), || async {
        let outcomes: Vec<_> = gauntlet.tries(alarm).await.into_iter().map(|(_, outcome, _)| outcome).collect();
        outcomes.iter().any(|outcome| outcome == wanted).then_some(outcomes)
    })
    .await
}

#[tokio::test]
async fn a_series_goes_on_while_its_dispatcher_is_frozen_and_the_late_answer_changes_nothing() {
    let gauntlet = Gauntlet::open().await;
    let first = gauntlet.replica("first", SWIFT).await;
    gauntlet.sink().reply([Reply::Hold]);
    let series = gauntlet.driver.every("tick", Duration::from_secs(1)).await;
    gauntlet.sink().wakes(1).await;
    let frozen = gauntlet.nemesis.freeze(&first).await;
    let second = gauntlet.replica("second", SWIFT).await;
    gauntlet.sink().wakes(4).await;

    gauntlet.sink().release();
    gauntlet.nemesis.thaw(&first, frozen).await;
    outcomes(&gauntlet, series, "fenced").await;
    let so_far = gauntlet.sink().received().len();
    gauntlet.sink().wakes(so_far + 2).await;
    gauntlet.driver.cancel(series).await;
    every_promise_was_kept(gauntlet, [first, second]).await;
}

#[tokio::test]
async fn a_dispatcher_frozen_between_claim_and_send_past_its_lease_sends_nothing_when_it_goes_on() {
    nothing_is_sent_late(SHORT_LEASE).await;
}

#[tokio::test]
async fn a_dispatcher_frozen_between_claim_and_send_until_its_peers_think_it_dead_sends_nothing_when_it_goes_on() {
    nothing_is_sent_late(SWIFT).await;
}

/// The dispatcher is stopped while its claim waits in Postgres, which then commits without it.
async fn nothing_is_sent_late(settings: &[(&str, &str)]) {
    let gauntlet = Gauntlet::open().await;
    let lock = claims_wait(&gauntlet).await;
    let alarms = gauntlet.driver.many(3, NOW).await;
    let first = gauntlet.replica("first", settings).await;
    gauntlet.blocked().await;
    let frozen = gauntlet.nemesis.freeze(&first).await;
    lock.rollback().await.unwrap();
    gauntlet.claimed(3).await;

    let second = gauntlet.replica("second", settings).await;
    gauntlet.settled(&alarms, "fired").await;
    gauntlet.nemesis.thaw(&first, frozen).await;
    // It stops when it is done with whatever it found.
    assert!(first.daemon.terminate().await.success());
    each_was_woken(&gauntlet, &alarms, 1);
    every_promise_was_kept(gauntlet, [second]).await;
}
