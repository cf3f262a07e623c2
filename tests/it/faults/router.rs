//! A router that is slow, silent, refusing, rude or late.

use std::time::Duration;

use chrono::TimeDelta;
use serde_json::json;

use super::{QUICK, all, claims_wait, each_was_woken, every_promise_was_kept};
use crate::{
    gauntlet::{
        Gauntlet,
        driver::NOW,
        history::{Wake, What},
        sink::Reply,
    },
    support::eventually,
};

/// A deadline that a test can wait for.
const IMPATIENT: &[(&str, &str)] = &[("CHRONOS_WAKE_TIMEOUT_SECONDS", "1")];

fn tries(told: &[(i32, &str, Option<i32>)]) -> Vec<(i32, String, Option<i32>)> {
    told.iter().map(|(number, outcome, status)| (*number, (*outcome).to_owned(), *status)).collect()
}

#[tokio::test]
async fn a_router_that_is_slow_within_the_deadline_is_waited_for() {
    let gauntlet = Gauntlet::open().await;
    gauntlet.sink().always(Reply::Slow(Duration::from_millis(1500)));
    let replica = gauntlet.replica("first", &[("CHRONOS_WAKE_TIMEOUT_SECONDS", "20")]).await;
    let alarms = gauntlet.driver.many(20, NOW).await;
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 1);
    every_promise_was_kept(gauntlet, [replica]).await;
}

#[tokio::test]
async fn a_router_that_hangs_is_given_up_at_the_deadline_and_asked_again() {
    let gauntlet = Gauntlet::open().await;
    let silence = gauntlet.nemesis.begin(What::RouterFails, None);
    gauntlet.sink().reply((0..3).map(|_| Reply::Hang));
    let replica = gauntlet.replica("first", &all(&[QUICK, IMPATIENT])).await;
    let alarms = gauntlet.driver.many(3, NOW).await;
    gauntlet.settled(&alarms, "fired").await;
    gauntlet.nemesis.end(silence);
    for alarm in &alarms {
        assert_eq!(gauntlet.tries(*alarm).await, tries(&[(1, "retrying", None), (2, "delivered", Some(202))]));
    }
    every_promise_was_kept(gauntlet, [replica]).await;
}

#[tokio::test]
async fn a_router_that_fails_is_asked_again_until_it_recovers_and_only_those_are_given_up_that_may_be() {
    let gauntlet = Gauntlet::open().await;
    let failing = gauntlet.nemesis.begin(What::RouterFails, None);
    gauntlet.sink().always(Reply::Status(503));
    gauntlet.sink().reply([Reply::Status(500), Reply::Status(502), Reply::Status(504)]);
    let (first, second) = tokio::join!(gauntlet.replica("first", QUICK), gauntlet.replica("second", QUICK));
    let alarms = gauntlet.driver.many_with(10, NOW, &json!({ "max_failures": 100 })).await;
    let hasty = gauntlet.driver.once_with("hasty", NOW, &json!({ "max_failures": 1 })).await;
    gauntlet.settled(&[hasty], "failed").await;
    gauntlet.sink().wakes(40).await;
    gauntlet.sink().always(Reply::Status(202));
    gauntlet.nemesis.end(failing);

    gauntlet.settled(&alarms, "fired").await;
    let given_up: Vec<_> =
        gauntlet.tries(hasty).await.into_iter().map(|(number, outcome, _)| (number, outcome)).collect();
    assert_eq!(given_up, [(1, "retrying".to_owned()), (2, "exhausted".to_owned())]);
    every_promise_was_kept(gauntlet, [first, second]).await;
}

#[tokio::test]
async fn a_router_that_asks_for_time_is_given_it_however_long_the_claim_took() {
    let gauntlet = Gauntlet::open().await;
    gauntlet.sink().reply_to("busy", [Reply::RetryAfter(429, 2)]);
    let (busy, other) = tokio::join!(gauntlet.driver.once("busy", NOW), gauntlet.driver.once("other", NOW));
    // A second passes between Postgres' time of the claim and its answer.
    let lock = claims_wait(&gauntlet).await;
    let replica = gauntlet.replica("first", &all(&[QUICK, &[("CHRONOS_RETRY_CAP_MS", "10000")]])).await;
    gauntlet.blocked().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    lock.rollback().await.unwrap();

    gauntlet.settled(&[busy, other], "fired").await;
    assert_eq!(gauntlet.tries(busy).await, tries(&[(1, "retrying", Some(429)), (2, "delivered", Some(202))]));
    let wakes: Vec<_> = gauntlet.sink().log().into_iter().filter(|wake| wake.alarm_id == busy).collect();
    let (_, refused_at) = wakes[0].reaction.unwrap();
    let waited = wakes[1].arrived_at - refused_at;
    assert!(waited >= TimeDelta::seconds(2), "{waited}");
    every_promise_was_kept(gauntlet, [replica]).await;
}

#[tokio::test]
async fn an_agent_that_is_gone_is_woken_once_and_nobody_else_suffers() {
    let gauntlet = Gauntlet::open().await;
    gauntlet.sink().reply_to("gone", [Reply::Status(410)]);
    let (first, second) = tokio::join!(gauntlet.replica("first", QUICK), gauntlet.replica("second", QUICK));
    let (gone, other) = tokio::join!(gauntlet.driver.once("gone", NOW), gauntlet.driver.once("other", NOW));
    gauntlet.settled(&[gone], "failed").await;
    gauntlet.settled(&[other], "fired").await;
    assert_eq!(gauntlet.tries(gone).await, tries(&[(1, "exhausted", Some(410))]));
    each_was_woken(&gauntlet, &[gone, other], 1);
    every_promise_was_kept(gauntlet, [first, second]).await;
}

#[tokio::test]
async fn a_router_that_resets_connections_is_asked_again() {
    let gauntlet = Gauntlet::open().await;
    let rude = gauntlet.nemesis.begin(What::RouterFails, None);
    // First before a byte was read, then with the wake in its hands.
    gauntlet.sink().slam(true);
    gauntlet.sink().reply((0..3).map(|_| Reply::Reset));
    let replica = gauntlet.replica("first", QUICK).await;
    let alarm = gauntlet.driver.once_with("a", NOW, &json!({ "max_failures": 100 })).await;
    gauntlet.sink().slammed(3).await;
    gauntlet.sink().slam(false);
    gauntlet.settled(&[alarm], "fired").await;
    gauntlet.nemesis.end(rude);

    assert_eq!(gauntlet.sink().log().len(), 4, "three that were reset, one that was taken");
    let told = gauntlet.tries(alarm).await;
    assert!(told.len() > 3 + 3, "each of them left a row: {told:?}");
    let error: String = sqlx::query_scalar("SELECT error FROM attempts WHERE alarm_id = $1 ORDER BY attempt LIMIT 1")
        .bind(alarm)
        .fetch_one(&gauntlet.database)
        .await
        .unwrap();
    assert!(!error.is_empty(), "the row says why");
    every_promise_was_kept(gauntlet, [replica]).await;
}

#[tokio::test]
async fn a_success_after_the_deadline_does_not_count_and_the_wake_comes_again_under_the_same_id() {
    let gauntlet = Gauntlet::open().await;
    let late = gauntlet.nemesis.begin(What::AnswersLost, None);
    gauntlet.sink().reply([Reply::Hold]);
    // The second rung is far enough away for the first answer to come before it.
    let settings = all(&[IMPATIENT, &[("CHRONOS_RETRY_BASE_MS", "1000")]]);
    let replica = gauntlet.replica("first", &settings).await;
    let alarm = gauntlet.driver.once("a", NOW).await;
    eventually("the first attempt is given up", || async {
        (gauntlet.tries(alarm).await == tries(&[(1, "retrying", None)])).then_some(())
    })
    .await;
    gauntlet.sink().release();
    gauntlet.settled(&[alarm], "fired").await;
    gauntlet.nemesis.end(late);

    let wakes = gauntlet.sink().log();
    assert!(wakes.len() == 2 && wakes.iter().all(Wake::was_taken), "{wakes:?}");
    assert_eq!(wakes[0].delivery_id, wakes[1].delivery_id);
    assert_eq!(gauntlet.tries(alarm).await, tries(&[(1, "retrying", None), (2, "delivered", Some(202))]));
    every_promise_was_kept(gauntlet, [replica]).await;
}
