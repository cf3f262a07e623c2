//! Replicas whose clocks are wrong: Postgres' alone counts. Only what they take for the time of day is wrong, not their
//! stopwatch, as on a machine that lost its time server.

use std::{collections::BTreeSet, fs, time::Duration};

use chrono::TimeDelta;

use super::{QUICK, SWIFT, all, each_was_woken, every_promise_was_kept};
use crate::gauntlet::{Gauntlet, Replica, driver::NOW, sink::Reply};

/// Debian's libfaketime for programs with threads; the loader fills in where this machine keeps its libraries.
const LIBRARY: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";
/// Much more than a machine needs to pass a line on, much less than the skew.
const TOLERANCE: TimeDelta = TimeDelta::seconds(3);
const SKEW: TimeDelta = TimeDelta::seconds(10);

/// A replica whose clock is this far ahead (`+10s`) or behind (`-10s`).
async fn skewed(gauntlet: &Gauntlet, name: &str, by: &str, settings: &[(&str, &str)]) -> Replica {
    let clock = [("LD_PRELOAD", LIBRARY), ("FAKETIME", by), ("FAKETIME_DONT_FAKE_MONOTONIC", "1")];
    let replica = gauntlet.replica(name, &all(&[&clock, settings])).await;
    // The library leaves them behind when its process is killed, and stumbles over them when the pid comes round again.
    // Whoever has opened them keeps them.
    for left in ["faketime_shm", "sem.faketime_sem"] {
        fs::remove_file(format!("/dev/shm/{left}_{}", replica.daemon.pid())).ok();
    }
    replica
}

/// How far the clock of a replica that has just started is ahead.
fn ahead(replica: &Replica) -> TimeDelta {
    replica.daemon.listening_since - chronos::clock::system().now()
}

#[tokio::test]
async fn replicas_whose_clocks_are_ten_seconds_off_wake_nobody_early_and_nobody_twice() {
    let gauntlet = Gauntlet::open().await;
    let settings = all(&[QUICK, &[("CHRONOS_CONCURRENCY", "7")]]);
    let fast = skewed(&gauntlet, "fast", "+10s", &settings).await;
    assert!((ahead(&fast) - SKEW).abs() < TOLERANCE, "{} ahead", ahead(&fast));
    let slow = skewed(&gauntlet, "slow", "-10s", &settings).await;
    assert!((ahead(&slow) + SKEW).abs() < TOLERANCE, "{} ahead", ahead(&slow));
    let right = gauntlet.replica("right", &settings).await;

    // Refused at first, so that the time of the retry is somebody's reckoning; then held until all three are at work.
    let alarms = gauntlet.driver.many(60, Duration::from_secs(2)).await;
    gauntlet.sink().reply((0..21).map(|_| Reply::RetryAfter(503, 1)).chain((0..21).map(|_| Reply::Hold)));
    gauntlet.sink().wakes(42).await;
    gauntlet.sink().release();
    let series = gauntlet.driver.every("tick", Duration::from_secs(1)).await;
    gauntlet.settled(&alarms, "fired").await;
    gauntlet.driver.cancel(series).await;

    let wakes = gauntlet.sink().log();
    let senders: BTreeSet<_> = wakes.iter().map(|wake| wake.replica.as_str()).collect();
    assert_eq!(senders, BTreeSet::from(["fast", "right", "slow"]));
    let taken = wakes.iter().filter(|wake| wake.was_taken() && wake.alarm_id != series).count();
    assert_eq!(taken, alarms.len(), "each once");
    every_promise_was_kept(gauntlet, [fast, slow, right]).await;
}

#[tokio::test]
async fn a_replica_whose_clock_is_ten_seconds_off_takes_over_from_another_that_died() {
    for (dying, surviving) in [("+10s", "-10s"), ("-10s", "+10s")] {
        let gauntlet = Gauntlet::open().await;
        let first = skewed(&gauntlet, "first", dying, SWIFT).await;
        gauntlet.sink().reply((0..5).map(|_| Reply::Hold));
        let alarms = gauntlet.driver.many(5, NOW).await;
        gauntlet.sink().wakes(5).await;
        let second = skewed(&gauntlet, "second", surviving, SWIFT).await;
        gauntlet.nemesis.kill(first).await;
        gauntlet.settled(&alarms, "fired").await;
        each_was_woken(&gauntlet, &alarms, 2);
        every_promise_was_kept(gauntlet, [second]).await;
    }
}
