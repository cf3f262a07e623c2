//! The run as a whole: whether it says anything, how it recovers, how long the check takes.

use std::time::{Duration, Instant};

use super::{
    rules,
    tale::{Tale, at, honest, id_of},
};
use crate::{
    checker::check,
    log::{Kind, Pair},
};

#[test]
fn a_run_in_which_a_kind_never_struck_says_nothing() {
    let mut tale = honest();
    tale.log.run.kinds = vec![Kind::Kill, Kind::Freeze];
    tale.fault(Kind::Kill, Some("r3.1"), 50_000, 51_000);
    tale.fault(Kind::Freeze, Some("r3.2"), 60_000, 61_000).struck_at = None;
    tale.fault(Kind::Delay(Pair::Facade), Some("r2"), 70_000, 71_000).over_at = None;
    let verdict = check(&tale.log);
    assert_eq!(verdict.invalid, ["no fault of kind freeze ever struck", "fault 3 (delay-facade) was never over"]);
    assert!(verdict.violations.is_empty() && !verdict.holds());
    assert_eq!(check(&Tale::new().log).invalid, ["nothing fired"]);
}

#[test]
fn a_run_in_which_a_fault_is_at_hand_for_everything_says_nothing() {
    let mut tale = honest();
    assert_eq!(check(&tale.log).counts.judged, tale.log.wakes.len());
    tale.fault(Kind::PostgresFreeze, None, 9000, 200_000);
    let verdict = check(&tale.log);
    // Those of 5 s and 8 s came before it.
    assert_eq!(verdict.counts.judged, 2);
    assert_eq!(verdict.invalid, ["faults are too dense: of 9 wakes only 2 are judged"]);
}

#[test]
fn recovery_is_counted_from_the_end_of_a_fault_and_of_a_kill_from_its_blow_until_wakes_are_on_time_again() {
    let mut tale = honest();
    // Ten a second; those of the first three seconds come late.
    for due in (40_000..60_000).step_by(100) {
        let label = format!("s{due}");
        tale.fired(&label, due);
        if due < 43_000 {
            tale.wake_of(&label, due).arrived_at = at(due + 2500);
        }
    }
    let with = |faults: &[(Kind, i64, i64)]| {
        let mut tale = Tale { log: tale.log.clone() };
        for (kind, from, until) in faults {
            tale.fault(*kind, None, *from, *until);
        }
        let told = check(&tale.log).recovery;
        told.into_iter().map(|one| (one.kind, one.again.0, one.among_others)).collect::<Vec<_>>()
    };
    let milliseconds = |number| vec![Duration::from_millis(number)];
    // One of ten may be late: the last of the late ones was due at 42.9 s.
    let freeze = (Kind::PostgresFreeze, 40_000, 42_000);
    assert_eq!(with(&[freeze]), [(Kind::PostgresFreeze, milliseconds(850), 0)]);
    let kill = (Kind::Kill, 40_000, 42_500);
    assert_eq!(with(&[kill]), [(Kind::Kill, milliseconds(2800), 0)]);
    // On time when it is over, whatever else there was.
    let terminate = (Kind::Terminate, 50_000, 52_500);
    assert_eq!(with(&[kill, terminate])[1], (Kind::Terminate, milliseconds(0), 0));
    // Both at once: whose time it was nobody can say. What wakes do not notice does not matter.
    assert_eq!(with(&[kill, freeze]), [(Kind::Kill, vec![], 1), (Kind::PostgresFreeze, vec![], 1)]);
    let etcd = (Kind::EtcdKill, 40_000, 42_000);
    assert_eq!(with(&[freeze, etcd])[0], (Kind::PostgresFreeze, milliseconds(850), 0));
}

#[test]
fn the_latest_wake_is_one_that_was_due_while_a_fault_lasted_or_under_way_when_it_struck() {
    let latest = |due: i64, arrived: i64| {
        let mut tale = honest();
        for due in (40_000..60_000).step_by(100) {
            tale.fired(&format!("s{due}"), due);
        }
        tale.wake_of(&format!("s{due}"), due).arrived_at = at(arrived);
        tale.fault(Kind::Kill, None, 45_000, 47_000);
        check(&tale.log).recovery[0].latest.median()
    };
    // One in ten does not make wakes late; it is late all the same.
    assert_eq!(latest(44_900, 46_400), Duration::from_millis(1500));
    assert_eq!(latest(45_500, 46_400), Duration::from_millis(20), "due when it had struck: of no concern to the dead");
    assert_eq!(latest(44_900, 44_990), Duration::from_millis(20), "it had come");
    assert_eq!(latest(43_900, 46_400), Duration::from_millis(20), "late before");
}

#[test]
fn wakes_need_no_cluster() {
    // The one of 10 s is late, and nothing is broken but the cluster, or something else is, too.
    let late = |mode: &str, late: i64, kind: Kind, other: Option<Kind>| {
        let mut tale = honest();
        tale.log.run.mode = mode.to_owned();
        tale.wake_of("c1", 10_000).arrived_at = at(10_000 + late);
        tale.attempts_of(id_of("c1"))[0]["started_at"] = serde_json::json!(at(9995 + late));
        tale.fault(kind, None, 9000, 24_000);
        if let Some(other) = other {
            tale.fault(other, Some("r2"), 9500, 11_000);
        }
        (rules(&tale), check(&tale.log).counts.without_cluster)
    };
    let named = (vec!["late"], 3);
    assert_eq!(late("active", 4900, Kind::ApiserverKill, None), (vec![], 3), "of 10 s, 15 s and 20 s");
    assert_eq!(late("active", 5100, Kind::ApiserverKill, None), named);
    assert_eq!(late("active", 5100, Kind::EtcdFreeze, Some(Kind::Delay(Pair::Facade))), named);
    assert_eq!(late("leader", 9900, Kind::EtcdKill, None), (vec![], 3));
    assert_eq!(late("leader", 10_100, Kind::EtcdKill, None), named);
    // Somebody else may have the Lease that was restored.
    assert_eq!(late("active", 5100, Kind::EtcdRestore, None), named);
    assert_eq!(late("leader", 10_100, Kind::EtcdRestore, None), (vec![], 0));
    assert_eq!(late("active", 5100, Kind::ApiserverKill, Some(Kind::Delay(Pair::Postgres))).0, [""; 0]);
    // Late before it began: others are being caught up with.
    let mut tale = honest();
    tale.wake_of("k1", 5000).arrived_at = at(11_000);
    tale.fault(Kind::ApiserverKill, None, 9000, 25_000);
    assert_eq!(check(&tale.log).counts.without_cluster, 0);
}

#[test]
fn a_violation_tells_the_whole_story() {
    let mut tale = honest();
    tale.fault(Kind::Kill, Some("r2.1"), 12_000, 13_000);
    tale.wake("c1", at(10_000), 1, 11_000);
    tale.attempt(id_of("c1"), at(10_000), 1, 10_995, "fenced");
    let verdict = check(&tale.log);
    let text = verdict.violations[0].print();
    for part in
        ["repeat: ", "call 1 by", "wake 1 from r1.1", "attempt 1 for", "row Row", "fault 1 kill on r2.1: struck"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(verdict.print().contains("occurrences"));
}

#[test]
fn a_long_run_is_checked_in_seconds() {
    let mut tale = honest();
    for number in 0..15_000 {
        tale.fired(&format!("c{}", number + 10), 2000 + number * 10);
    }
    for number in 0..250 {
        tale.fault(Kind::Kill, Some("r3.1"), number * 600, number * 600 + 500);
    }
    let began = Instant::now();
    assert!(rules(&tale).is_empty());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
