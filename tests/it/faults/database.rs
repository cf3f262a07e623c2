//! Postgres goes away, comes back, and hangs up.

use std::{collections::HashSet, time::Duration};

use chrono::TimeDelta;
use uuid::Uuid;

use super::{
    QUICK, SHORT_LEASE, SWIFT, all, claims_wait, each_was_woken, elected, every_promise_was_kept, settles_wait,
};
use crate::{
    gauntlet::{Gauntlet, driver::NOW, history::What, postgres::Stop, sink::Reply},
    support::{Namespace, Proxy, eventually},
    telemetry::scrape::count,
};

/// How long Postgres stays away under held wakes: the promise itself.
const AWAY: Duration = Duration::from_secs(20);
/// Longer than a restart takes on a busy machine.
const LEASE: &[(&str, &str)] = &[("CHRONOS_WAKE_TIMEOUT_SECONDS", "10"), ("CHRONOS_LEASE_SECONDS", "20")];

#[tokio::test]
async fn wakes_held_by_the_router_while_postgres_is_away_for_20_seconds_are_neither_released_nor_repeated() {
    const WAKES: usize = 40;
    let gauntlet = Gauntlet::open().await;
    let (first, second) = tokio::join!(gauntlet.replica("first", SWIFT), gauntlet.replica("second", SWIFT));
    gauntlet.sink().reply((0..WAKES).map(|_| Reply::Hold));
    let alarms = gauntlet.driver.many(WAKES, NOW).await;
    gauntlet.sink().wakes(WAKES).await;
    let tokens = tokens(&gauntlet).await;

    let away = gauntlet.nemesis.stop_database(&gauntlet.postgres, Stop::Fast).await;
    // Half of the answers come while there is nobody to write them down.
    gauntlet.sink().release_some(WAKES / 2);
    tokio::time::sleep(AWAY).await;
    let away = gauntlet.nemesis.start_database(&gauntlet.postgres, away).await;
    assert!(away.ended_at.unwrap() - away.began_at >= TimeDelta::from_std(AWAY).unwrap());
    // Time enough to take each other for dead, if they ever would.
    beats_pass(&gauntlet, 5).await;
    gauntlet.sink().release();
    gauntlet.settled(&alarms, "fired").await;

    each_was_woken(&gauntlet, &alarms, 1);
    let recorded: Vec<(Uuid, String)> =
        sqlx::query_as("SELECT claim_token, outcome FROM attempts").fetch_all(&gauntlet.database).await.unwrap();
    assert!(recorded.iter().all(|(_, outcome)| outcome == "delivered"), "{recorded:?}");
    assert_eq!((recorded.len(), tokens.len()), (WAKES, WAKES));
    assert_eq!(recorded.into_iter().map(|(token, _)| token).collect::<HashSet<_>>(), tokens, "under the first claims");
    every_promise_was_kept(gauntlet, [first, second]).await;
}

async fn tokens(gauntlet: &Gauntlet) -> HashSet<Uuid> {
    let query = sqlx::query_scalar("SELECT claim_token FROM alarms WHERE claim_token IS NOT NULL");
    query.fetch_all(&gauntlet.database).await.unwrap().into_iter().collect()
}

/// Waits until every dispatcher has beaten this often from now on.
async fn beats_pass(gauntlet: &Gauntlet, count: i64) {
    let least = || async {
        let query = sqlx::query_scalar("SELECT coalesce(min(beats), 0) FROM dispatchers");
        query.fetch_one(&gauntlet.database).await.unwrap()
    };
    let before: i64 = least().await;
    eventually("the dispatchers beat", || async { (least().await >= before + count).then_some(()) }).await;
}

#[tokio::test]
async fn postgres_restarted_under_load_loses_and_repeats_nothing() {
    nothing_is_lost_or_repeated_by(Stop::Fast, &[]).await;
}

#[tokio::test]
async fn postgres_crashed_under_load_loses_and_repeats_nothing() {
    nothing_is_lost_or_repeated_by(Stop::Immediate, &[]).await;
}

#[tokio::test]
async fn postgres_crashed_under_the_load_of_a_leader_loses_and_repeats_nothing() {
    let namespace = Namespace::fresh().await;
    nothing_is_lost_or_repeated_by(Stop::Immediate, &elected(&namespace)).await;
}

/// `mode` says how replicas share the work.
async fn nothing_is_lost_or_repeated_by(how: Stop, mode: &[(&str, &str)]) {
    let gauntlet = Gauntlet::open().await;
    // In flight for a while: claims, deliveries and settles are all under way at any time.
    gauntlet.sink().always(Reply::Slow(Duration::from_millis(100)));
    let settings = all(&[LEASE, QUICK, mode]);
    let (first, second) = tokio::join!(gauntlet.replica("first", &settings), gauntlet.replica("second", &settings));
    let mut alarms = Vec::new();
    for due_in in [0, 1, 2, 3] {
        alarms.extend(gauntlet.driver.many(50, Duration::from_secs(due_in)).await);
    }
    for wakes in [20, 100] {
        gauntlet.sink().wakes(wakes).await;
        let away = gauntlet.nemesis.stop_database(&gauntlet.postgres, how).await;
        gauntlet.nemesis.start_database(&gauntlet.postgres, away).await;
    }
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 1);
    every_promise_was_kept(gauntlet, [first, second]).await;
}

#[tokio::test]
async fn connections_cut_again_and_again_lose_and_repeat_nothing() {
    let gauntlet = Gauntlet::open().await;
    gauntlet.sink().always(Reply::Slow(Duration::from_millis(20)));
    let settings = all(&[LEASE, QUICK]);
    let (first, second) = tokio::join!(gauntlet.replica("first", &settings), gauntlet.replica("second", &settings));
    let alarms = gauntlet.driver.many(200, NOW).await;
    for wakes in [20, 50, 80, 110, 140, 170] {
        gauntlet.sink().wakes(wakes).await;
        gauntlet.nemesis.cut_connections(&gauntlet.database).await;
    }
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 1);
    every_promise_was_kept(gauntlet, [first, second]).await;
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_does_not_wait_for_its_lease() {
    let gauntlet = Gauntlet::open().await;
    let (_, address) = gauntlet.world.database.uri.split_once('@').expect("an address with a password");
    let host = address.split('/').next().expect("host and port");
    let proxy = Proxy::to(host).await;
    let uri = gauntlet.world.database.uri.replace(host, &proxy.address.to_string());
    // The lease stays at its two minutes, which no test waits for. Every other look is a beat, too. Not every one: a disk that takes
    // longer than two beats for a look would keep it from sending anything.
    let replica =
        gauntlet.replica("first", &[("CHRONOS_BEAT_MS", "100"), ("CHRONOS_POSTGRES_URI", uri.as_str())]).await;
    let lock = claims_wait(&gauntlet).await;
    let alarm = gauntlet.driver.once("a", NOW).await;
    gauntlet.blocked().await;
    proxy.cut();
    lock.rollback().await.unwrap();
    gauntlet.claimed(1).await; // and nobody was told
    proxy.mend();
    gauntlet.settled(&[alarm], "fired").await;
    // While it lets go of claims it does not know of, it keeps those it does.
    gauntlet.sink().always(Reply::Slow(Duration::from_millis(100)));
    let mut alarms = vec![alarm];
    for due_in in [0, 1, 2] {
        alarms.extend(gauntlet.driver.many(30, Duration::from_secs(due_in)).await);
    }
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 1);
    every_promise_was_kept(gauntlet, [replica]).await;
}

#[tokio::test]
async fn a_settle_whose_connection_was_cut_is_written_by_the_next_try() {
    let gauntlet = Gauntlet::open().await;
    let replica = gauntlet.replica("first", LEASE).await;
    gauntlet.sink().reply([Reply::Hold]);
    let alarm = gauntlet.driver.once("a", NOW).await;
    gauntlet.sink().wakes(1).await;
    let lock = settles_wait(&gauntlet).await;
    gauntlet.sink().release();
    for _ in 0..2 {
        gauntlet.blocked().await;
        gauntlet.nemesis.cut_connections(&gauntlet.database).await;
    }
    lock.rollback().await.unwrap();
    gauntlet.settled(&[alarm], "fired").await;
    assert_eq!(gauntlet.tries(alarm).await, [(1, "delivered".to_owned(), Some(202))]);
    every_promise_was_kept(gauntlet, [replica]).await;
}

#[tokio::test]
async fn an_answer_that_postgres_cannot_take_within_its_lease_is_given_up_and_the_same_wake_goes_out_again() {
    let gauntlet = Gauntlet::open().await;
    let replica = gauntlet.replica("first", SHORT_LEASE).await;
    gauntlet.sink().reply([Reply::Hold]);
    let alarm = gauntlet.driver.once("a", NOW).await;
    gauntlet.sink().wakes(1).await;

    let outlasted = gauntlet.nemesis.begin(What::LeaseOutlasted, None);
    let away = gauntlet.nemesis.stop_database(&gauntlet.postgres, Stop::Fast).await;
    gauntlet.sink().release();
    eventually("the answer is given up", || async {
        (replica.daemon.said("not settled within its lease; the same wake goes out again") == 1).then_some(())
    })
    .await;
    gauntlet.nemesis.start_database(&gauntlet.postgres, away).await;
    gauntlet.nemesis.end(outlasted);

    gauntlet.settled(&[alarm], "fired").await;
    let wakes = gauntlet.sink().received();
    assert_eq!(wakes.len(), 2);
    assert_eq!(wakes[0].body, wakes[1].body, "the same wake, the same delivery id, the same attempt");
    assert_eq!(gauntlet.tries(alarm).await, [(1, "delivered".to_owned(), Some(202))]);
    every_promise_was_kept(gauntlet, [replica]).await;
}

#[tokio::test]
async fn a_claim_that_took_too_long_to_finish_inside_its_lease_is_given_back_and_taken_again() {
    let gauntlet = Gauntlet::open().await;
    let lock = claims_wait(&gauntlet).await;
    let alarm = gauntlet.driver.once("a", NOW).await;
    let replica = gauntlet.replica("first", SHORT_LEASE).await;
    gauntlet.blocked().await;
    // More than the lease has beside the wake timeout, and less than the lease.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    lock.rollback().await.unwrap();

    gauntlet.settled(&[alarm], "fired").await;
    each_was_woken(&gauntlet, &[alarm], 1);
    let [taken, returned] = ["chronos_claims_taken_total", "chronos_claims_returned_total"];
    let (taken, returned) = (count(&replica.daemon, taken, &[]).await, count(&replica.daemon, returned, &[]).await);
    assert!(returned >= 1 && taken == returned + 1, "{taken} taken, {returned} given back");
    every_promise_was_kept(gauntlet, [replica]).await;
}
