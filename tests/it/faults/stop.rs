//! `SIGTERM` with work in hand.

use super::{claims_wait, each_was_woken, every_promise_was_kept};
use crate::{
    gauntlet::{Gauntlet, driver::NOW, history::What, sink::Reply},
    support::eventually,
};

/// A grace period that a test can wait for. Wake timeout and lease stay at their one and two minutes, which no test waits for.
const BRIEF: &[(&str, &str)] = &[("CHRONOS_SHUTDOWN_SECONDS", "1")];

/// How many alarms nobody has a claim on that were claimed this often without a result.
async fn free(gauntlet: &Gauntlet, claims: i32) -> i64 {
    sqlx::query_scalar(
        "SELECT count(*) FROM alarms
         WHERE status = 'active' AND num_nonnulls(claimed_at, claim_token, claimed_by, claimed_until) = 0 AND claims = $1",
    )
    .bind(claims)
    .fetch_one(&gauntlet.database)
    .await
    .unwrap()
}

#[tokio::test]
async fn wakes_that_outlast_the_grace_period_are_free_at_once_and_go_out_again_under_the_same_ids() {
    let gauntlet = Gauntlet::open().await;
    let first = gauntlet.replica("first", BRIEF).await;
    gauntlet.sink().reply((0..3).map(|_| Reply::Hold));
    let alarms = gauntlet.driver.many(3, NOW).await;
    gauntlet.sink().wakes(3).await;

    let cut_short = gauntlet.nemesis.begin(What::CutShort, Some("first"));
    assert!(first.daemon.terminate().await.success());
    gauntlet.nemesis.end(cut_short);
    // They may have been sent: what is known of their occurrences stays.
    assert_eq!(free(&gauntlet, 1).await, 3);
    let second = gauntlet.replica("second", &[]).await;
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 2);
    every_promise_was_kept(gauntlet, [second]).await;
}

#[tokio::test]
async fn claims_that_were_not_sent_before_a_stop_are_given_back_as_if_nobody_had_taken_them() {
    let gauntlet = Gauntlet::open().await;
    let lock = claims_wait(&gauntlet).await;
    let alarms = gauntlet.driver.many(3, NOW).await;
    let first = gauntlet.replica("first", &[]).await;
    gauntlet.blocked().await;
    first.daemon.signal("TERM").await;
    eventually("it is about to stop", || async { (first.daemon.said("stopping") > 0).then_some(()) }).await;
    // Only now does it get what it asked for.
    lock.rollback().await.unwrap();
    assert!(first.daemon.terminate().await.success());
    assert_eq!(free(&gauntlet, 0).await, 3);
    each_was_woken(&gauntlet, &alarms, 0);

    let second = gauntlet.replica("second", &[]).await;
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 1);
    every_promise_was_kept(gauntlet, [second]).await;
}

#[tokio::test]
async fn a_stop_in_the_middle_of_a_look_lets_deliveries_land_and_leaves_nothing_behind() {
    let gauntlet = Gauntlet::open().await;
    let mut first = gauntlet.replica("first", &[]).await;
    gauntlet.sink().reply([Reply::Hold]);
    let alarm = gauntlet.driver.once("a", NOW).await;
    gauntlet.sink().wakes(1).await;
    // A look cannot go on without the settings.
    let mut lock = gauntlet.database.begin().await.unwrap();
    sqlx::query("LOCK TABLE settings IN ACCESS EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    gauntlet.blocked().await;
    first.daemon.signal("TERM").await;
    eventually("it has heard", || async { (first.daemon.said("stopping") > 0).then_some(()) }).await;
    lock.rollback().await.unwrap();
    gauntlet.sink().release();
    assert!(first.daemon.ended().await.success());
    gauntlet.settled(&[alarm], "fired").await;
    each_was_woken(&gauntlet, &[alarm], 1);
    let left: i64 = sqlx::query_scalar("SELECT count(*) FROM dispatchers").fetch_one(&gauntlet.database).await.unwrap();
    assert_eq!(left, 0, "it has signed off");
    every_promise_was_kept(gauntlet, []).await;
}
