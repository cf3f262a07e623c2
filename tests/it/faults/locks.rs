//! Somebody holds on to a row: an operator in a transaction, or a client that died in the middle of one.

use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use super::{SHORT_LEASE, SWIFT, each_was_woken, every_promise_was_kept};
use crate::gauntlet::{Gauntlet, driver::NOW, history::What, sink::Reply};

/// Locks an alarm's row until what this returns is let go.
async fn hold_on_to(gauntlet: &Gauntlet, alarm: Uuid) -> Transaction<'static, Postgres> {
    let mut lock = gauntlet.database.begin().await.unwrap();
    sqlx::query("SELECT FROM alarms WHERE id = $1 FOR UPDATE").bind(alarm).execute(&mut *lock).await.unwrap();
    lock
}

/// One from the middle, and the others.
fn apart(mut alarms: Vec<Uuid>) -> (Uuid, Vec<Uuid>) {
    let one = alarms.swap_remove(alarms.len() / 2);
    (one, alarms)
}

#[tokio::test]
async fn a_row_that_somebody_holds_on_to_keeps_no_other_result_from_being_settled() {
    const WAKES: usize = 30;
    let gauntlet = Gauntlet::open().await;
    let replica = gauntlet.replica("first", &[]).await;
    // All answers come to one settle.
    gauntlet.sink().reply((0..WAKES).map(|_| Reply::Hold));
    let alarms = gauntlet.driver.many(WAKES, NOW).await;
    gauntlet.sink().wakes(WAKES).await;
    let (locked, others) = apart(alarms.clone());
    let lock = hold_on_to(&gauntlet, locked).await;
    gauntlet.sink().release();

    gauntlet.settled(&others, "fired").await;
    gauntlet.settled(&[locked], "active").await;
    lock.rollback().await.unwrap();
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 1);
    every_promise_was_kept(gauntlet, [replica]).await;
}

#[tokio::test]
async fn rows_that_somebody_holds_on_to_do_not_cost_other_results_their_lease() {
    const WAKES: usize = 16;
    let gauntlet = Gauntlet::open().await;
    let replica = gauntlet.replica("first", SHORT_LEASE).await;
    gauntlet.sink().reply((0..WAKES).map(|_| Reply::Hold));
    let mut alarms = gauntlet.driver.many(WAKES, NOW).await;
    gauntlet.sink().wakes(WAKES).await;
    // Half of them, those that come first in every batch: as a frozen process holds what it was about to change.
    alarms.sort_unstable();
    let (locked, others) = alarms.split_at(WAKES / 2);
    let held = gauntlet.nemesis.begin(What::LeaseOutlasted, None);
    let mut lock = gauntlet.database.begin().await.unwrap();
    sqlx::query("SELECT FROM alarms WHERE id = ANY ($1) FOR UPDATE").bind(locked).execute(&mut *lock).await.unwrap();
    gauntlet.sink().release();

    gauntlet.settled(others, "fired").await;
    each_was_woken(&gauntlet, others, 1);
    gauntlet.settled(locked, "active").await;
    lock.rollback().await.unwrap();
    gauntlet.settled(&alarms, "fired").await;
    gauntlet.nemesis.end(held);
    each_was_woken(&gauntlet, others, 1);
    every_promise_was_kept(gauntlet, [replica]).await;
}

#[tokio::test]
async fn a_row_that_somebody_holds_on_to_keeps_no_other_wake_of_a_dead_dispatcher_from_being_taken_over() {
    const WAKES: usize = 10;
    let gauntlet = Gauntlet::open().await;
    let first = gauntlet.replica("first", SWIFT).await;
    gauntlet.sink().reply((0..WAKES).map(|_| Reply::Hold));
    let alarms = gauntlet.driver.many(WAKES, NOW).await;
    gauntlet.sink().wakes(WAKES).await;
    let (locked, others) = apart(alarms.clone());
    let lock = hold_on_to(&gauntlet, locked).await;
    let second = gauntlet.replica("second", SWIFT).await;
    gauntlet.nemesis.kill(first).await;

    gauntlet.settled(&others, "fired").await;
    // Its own work goes on, too.
    let fresh = gauntlet.driver.once("fresh", NOW).await;
    gauntlet.settled(&[fresh], "fired").await;
    each_was_woken(&gauntlet, &[locked], 1);
    lock.rollback().await.unwrap();
    gauntlet.settled(&[locked], "fired").await;
    each_was_woken(&gauntlet, &alarms, 2);
    each_was_woken(&gauntlet, &[fresh], 1);
    every_promise_was_kept(gauntlet, [second]).await;
}
