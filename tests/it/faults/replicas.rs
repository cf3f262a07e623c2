//! Several replicas at once.

use std::{collections::BTreeSet, time::Duration};

use super::{QUICK, all, each_was_woken, every_promise_was_kept};
use crate::{
    gauntlet::{Gauntlet, Replica, driver::NOW, sink::Reply},
    support::Namespace,
};

/// Few enough that nobody can take all the work: who is full has to wait until the others are.
const ROOM: usize = 7;
const FEW: &[(&str, &str)] = &[("CHRONOS_CONCURRENCY", "7")];

#[tokio::test]
async fn two_active_replicas_deliver_every_alarm_once() {
    every_alarm_is_delivered_once(2, 2, &[]).await;
}

#[tokio::test]
async fn three_active_replicas_deliver_every_alarm_once() {
    every_alarm_is_delivered_once(3, 3, &[]).await;
}

#[tokio::test]
async fn of_two_replicas_that_elect_a_leader_one_delivers_every_alarm_once() {
    elected(2).await;
}

#[tokio::test]
async fn of_three_replicas_that_elect_a_leader_one_delivers_every_alarm_once() {
    elected(3).await;
}

async fn elected(replicas: usize) {
    let namespace = Namespace::fresh().await;
    let kubeconfig = namespace.kubeconfig.to_str().unwrap();
    let mode = [
        ("CHRONOS_DISPATCH_MODE", "leader"),
        ("KUBECONFIG", kubeconfig),
        ("CHRONOS_NAMESPACE", namespace.name.as_str()),
    ];
    every_alarm_is_delivered_once(replicas, 1, &mode).await;
}

/// Once alarms, a series, and some that are cancelled in time. `mode` says how replicas share the work, `at_work` how many
/// of them claim.
async fn every_alarm_is_delivered_once(replicas: usize, at_work: usize, mode: &[(&str, &str)]) {
    let gauntlet = Gauntlet::open().await;
    let alarms = gauntlet.driver.many(100, NOW).await;
    let later = gauntlet.driver.many(50, Duration::from_secs(3)).await;
    let cancelled = gauntlet.driver.many(10, Duration::from_secs(3600)).await;
    gauntlet.sink().reply((0..at_work * ROOM).map(|_| Reply::Hold));
    let replicas = start(&gauntlet, replicas, &all(&[QUICK, FEW, mode])).await;

    // Each takes as many as it has room for; when all are full, the rest is let through.
    let held = gauntlet.sink().wakes(at_work * ROOM).await;
    let senders: BTreeSet<_> = held.iter().map(|wake| wake.replica.as_str()).collect();
    assert_eq!(senders.len(), at_work);
    gauntlet.sink().release();
    let series = gauntlet.driver.every("tick", Duration::from_secs(1)).await;
    for alarm in &cancelled {
        assert!(!gauntlet.driver.cancel(*alarm).await, "nothing of it is in flight");
    }
    gauntlet.settled(&alarms, "fired").await;
    gauntlet.settled(&later, "fired").await;
    gauntlet.driver.cancel(series).await;

    each_was_woken(&gauntlet, &[alarms, later].concat(), 1);
    each_was_woken(&gauntlet, &cancelled, 0);
    every_promise_was_kept(gauntlet, replicas).await;
}

async fn start(gauntlet: &Gauntlet, count: usize, settings: &[(&str, &str)]) -> Vec<Replica> {
    let names = ["first", "second", "third"];
    let starts = names.iter().take(count).map(|name| gauntlet.replica(name, settings));
    futures::future::join_all(starts).await
}

#[tokio::test]
async fn replicas_that_come_and_go_under_load_lose_and_repeat_nothing() {
    let gauntlet = Gauntlet::open().await;
    gauntlet.sink().always(Reply::Slow(Duration::from_millis(50)));
    let mut at_work = gauntlet.replica("first", FEW).await;
    let alarms = gauntlet.driver.many(150, NOW).await;
    for (name, wakes) in [("second", 30), ("third", 70), ("fourth", 110)] {
        gauntlet.sink().wakes(wakes).await;
        let next = gauntlet.replica(name, FEW).await;
        assert!(at_work.daemon.terminate().await.success());
        at_work = next;
    }
    gauntlet.settled(&alarms, "fired").await;
    each_was_woken(&gauntlet, &alarms, 1);
    every_promise_was_kept(gauntlet, [at_work]).await;
}
