//! `SIGSTOP`, and `SIGCONT` when others have long gone on.

use super::{SHORT_LEASE, SWIFT, each, every_promise_was_kept, times_woken};
use crate::{
    gauntlet::{Gauntlet, driver::NOW, sink::Reply},
    support::eventually,
};

#[tokio::test]
async fn a_dispatcher_frozen_past_its_lease_changes_nothing_when_it_goes_on() {
    late_answers_change_nothing(SHORT_LEASE).await;
}

#[tokio::test]
async fn a_dispatcher_frozen_until_its_peers_think_it_dead_changes_nothing_when_it_goes_on() {
    late_answers_change_nothing(SWIFT).await;
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
    let outcome = |alarm, wanted: &'static str| {
        let gauntlet = &gauntlet;
        eventually(wanted, move || async move {
            let tries = gauntlet.tries(alarm).await;
            tries.iter().any(|(_, outcome, _)| outcome == wanted).then_some(tries)
        })
    };
    assert_eq!(outcome(alarm, "fenced").await.len(), 2, "one delivered, one fenced");
    assert_eq!(outcome(cancelled, "cancelled").await.len(), 1);
    let mut expected = each(&[alarm], 2);
    expected.insert(cancelled, 1);
    assert_eq!(times_woken(&gauntlet.sink().log()), expected);
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

/// Claims wait for a lock that the test holds, with the whole question in Postgres' hands. The dispatcher is stopped, and
/// its claim commits without it.
async fn nothing_is_sent_late(settings: &[(&str, &str)]) {
    let gauntlet = Gauntlet::open().await;
    sqlx::raw_sql(
        "CREATE FUNCTION wait_for_the_test() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN new; END $$;
         CREATE TRIGGER claims_wait BEFORE UPDATE ON alarms FOR EACH ROW
             WHEN (new.claim_token IS DISTINCT FROM old.claim_token AND new.claim_token IS NOT NULL)
             EXECUTE FUNCTION wait_for_the_test()",
    )
    .execute(&gauntlet.database)
    .await
    .unwrap();
    let mut lock = gauntlet.database.begin().await.unwrap();
    sqlx::query("SELECT pg_advisory_xact_lock(1)").execute(&mut *lock).await.unwrap();
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
    assert_eq!(times_woken(&gauntlet.sink().log()), each(&alarms, 1));
    every_promise_was_kept(gauntlet, [second]).await;
}
