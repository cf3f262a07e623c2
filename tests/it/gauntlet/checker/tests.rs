//! The checker, on made-up histories: an honest one passes, and every lie is named.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::{
    super::history::{Alarm, Attempt, Fault, History, Kind, Operation, Reaction, Wake, What},
    deliveries::delivery_id,
    violations,
};

const ID: Uuid = Uuid::from_u128(7);
const PERIOD: Duration = Duration::from_secs(1);

/// Seconds into the made-up test.
fn at(seconds: f64) -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap() + Duration::from_secs_f64(seconds)
}

fn wake(scheduled_for: f64, attempt: i32, replica: &str, arrived_at: f64, status: u16) -> Wake {
    Wake {
        alarm_id: ID,
        delivery_id: delivery_id(ID, 0, at(scheduled_for)),
        scheduled_for: at(scheduled_for),
        attempt,
        replica: replica.to_owned(),
        arrived_at: at(arrived_at),
        reaction: Some((Reaction::Status(status), at(arrived_at + 0.1))),
    }
}

fn attempt(scheduled_for: f64, number: i32, started_at: f64, outcome: &str, http_status: Option<i32>) -> Attempt {
    Attempt {
        alarm_id: ID,
        delivery_id: Some(delivery_id(ID, 0, at(scheduled_for))),
        scheduled_for: at(scheduled_for),
        attempt: number,
        started_at: at(started_at),
        duration_ms: 100,
        outcome: outcome.to_owned(),
        http_status,
        first_at: None,
        last_at: None,
        slots: None,
    }
}

fn run(first: f64, last: f64, slots: i64) -> Attempt {
    let span = (Some(at(first)), Some(at(last)), Some(slots));
    Attempt { first_at: span.0, last_at: span.1, slots: span.2, ..attempt(last, 0, last, "missed", None) }
}

fn fault(what: What, replica: &str, began_at: f64, ended_at: f64) -> Fault {
    Fault { what, replica: Some(replica.to_owned()), began_at: at(began_at), ended_at: Some(at(ended_at)) }
}

fn cancelled(answered_at: f64, in_flight: bool) -> Operation {
    Operation::Cancelled { alarm_id: ID, answered_at: at(answered_at), in_flight }
}

/// A once alarm, refused and then taken.
fn honest() -> History {
    History {
        operations: vec![Operation::Created { alarm_id: ID, kind: Kind::Once }],
        wakes: vec![wake(1.0, 1, "a", 1.1, 503), wake(1.0, 2, "b", 2.0, 202)],
        faults: vec![],
        alarms: vec![Alarm {
            id: ID,
            status: "fired".to_owned(),
            scheduled_for: at(1.0),
            next_fire_at: at(1.0),
            spread_offset_micros: 0,
            schedule_epoch: 0,
            fired_count: 1,
            last_error: String::new(),
            claim_token: None,
            created_at: at(0.0),
        }],
        attempts: vec![attempt(1.0, 1, 1.05, "retrying", Some(503)), attempt(1.0, 2, 1.9, "delivered", Some(202))],
        read_at: at(60.0),
    }
}

/// Slots 1 and 4 went out, 2 and 3 are one run, 5 is next.
fn series() -> History {
    let mut series = honest();
    series.operations = vec![Operation::Created { alarm_id: ID, kind: Kind::Every(PERIOD) }];
    series.wakes = vec![wake(1.0, 1, "a", 1.1, 202), wake(4.0, 1, "a", 4.1, 202)];
    series.attempts = vec![
        attempt(1.0, 1, 1.05, "delivered", Some(202)),
        run(2.0, 3.0, 2),
        attempt(4.0, 1, 4.05, "delivered", Some(202)),
    ];
    let alarm = &mut series.alarms[0];
    (alarm.status, alarm.fired_count) = ("active".to_owned(), 2);
    (alarm.scheduled_for, alarm.next_fire_at) = (at(5.0), at(5.0));
    series.read_at = at(4.5);
    series
}

fn changed(mut history: History, change: impl FnOnce(&mut History)) -> Vec<String> {
    change(&mut history);
    violations(&history)
}

/// That the history is told to be wrong, in these words and no others.
#[track_caller]
fn told(found: &[String], expected: &[&str]) {
    let all = found.iter().zip(expected).all(|(found, expected)| found.contains(expected));
    assert!(found.len() == expected.len() && all, "expected {expected:#?}, found {found:#?}");
}

#[test]
fn an_honest_history_passes() {
    told(&violations(&honest()), &[]);
    told(&violations(&series()), &[]);
}

#[test]
fn an_alarm_of_which_nothing_became_is_named() {
    let found =
        changed(honest(), |history| (history.alarms, history.attempts, history.wakes) = (vec![], vec![], vec![]));
    told(&found, &["was accepted, and no row tells of it"]);

    let with_status = |status: &str, error: &str, attempts: Vec<Attempt>| {
        changed(honest(), |history| {
            (history.alarms[0].status, history.alarms[0].last_error) = (status.to_owned(), error.to_owned());
            history.alarms[0].fired_count = 0;
            history.wakes.truncate(attempts.len());
            history.attempts = attempts;
        })
    };
    told(&with_status("active", "", vec![]), &["was due at 2027-01-15 08:00:01 UTC and nothing became of it"]);
    told(&with_status("fired", "", vec![]), &["is fired, and no attempt delivered it"]);
    told(&with_status("cancelled", "", vec![]), &["is cancelled, and nobody did"]);
    told(&with_status("asleep", "", vec![]), &["has a status that nobody knows: asleep"]);
    told(&with_status("failed", "HTTP 503", vec![]), &["is failed, and no attempt says why"]);
    let given_up = || vec![attempt(1.0, 1, 1.05, "exhausted", Some(503))];
    told(&with_status("failed", "", given_up()), &["is failed without a reason"]);
    told(&with_status("failed", "HTTP 503", given_up()), &[]);
}

#[test]
fn a_delivery_that_the_router_never_saw_is_named() {
    let found = changed(honest(), |history| history.wakes[1].reaction = None);
    told(
        &found,
        &[
            "is fired, and the router took no wake of it",
            "attempt 2 is recorded as delivered with HTTP 202, which the router never answered",
        ],
    );
    let found = changed(honest(), |history| history.attempts[1].http_status = None);
    told(&found, &["attempt 2 is recorded as delivered without an answer"]);
    let found = changed(honest(), |history| {
        history.attempts[1].http_status = Some(500);
    });
    told(&found, &["attempt 2 is recorded as delivered with HTTP 500"]);
}

#[test]
fn slots_that_are_untold_told_twice_or_made_up_are_named() {
    told(
        &changed(series(), |history| drop(history.attempts.remove(1))),
        &["slot 2 left no trace", "slot 3 left no trace"],
    );
    told(&changed(series(), |history| history.attempts.push(run(3.0, 3.0, 1))), &["slot 3 is told 2 times"]);
    let found = changed(series(), |history| history.attempts[1] = run(2.0, 3.0, 5));
    told(&found, &["a run from slot 2 to 3 counts Some(5) slots"]);
    let found = changed(series(), |history| history.attempts.push(run(3.5, 3.5, 1)));
    told(&found, &["no slot lies at"]);
    // Cancelled: up to the last one told.
    let found = changed(series(), |history| {
        history.alarms[0].status = "cancelled".to_owned();
        history.operations.push(cancelled(4.4, false));
    });
    told(&found, &[]);
}

#[test]
fn a_wrong_count_is_named() {
    told(&changed(honest(), |history| history.alarms[0].fired_count = 2), &["counts 2 deliveries, and 1 are recorded"]);
}

#[test]
fn a_claim_that_nobody_gave_back_is_named() {
    let found = changed(honest(), |history| history.alarms[0].claim_token = Some(Uuid::from_u128(1)));
    told(&found, &["is still claimed at rest"]);
}

#[test]
fn a_wake_for_an_alarm_that_nobody_made_is_named() {
    let found = changed(honest(), |history| {
        let mut stranger = wake(1.0, 1, "a", 1.1, 202);
        stranger.alarm_id = Uuid::from_u128(8);
        stranger.delivery_id = delivery_id(stranger.alarm_id, 0, at(1.0));
        history.wakes.push(stranger);
    });
    told(
        &found,
        &["was woken, and nobody made it", "attempt 1 was sent at 2027-01-15 08:00:01.100 UTC, and no row tells"],
    );
}

#[test]
fn an_early_wake_is_named_with_its_spread() {
    let found = changed(honest(), |history| history.wakes[0].arrived_at = at(0.999));
    told(&found, &["was due at 2027-01-15 08:00:01 UTC and woke the router at 2027-01-15 08:00:00.999 UTC"]);
    let found = changed(honest(), |history| history.attempts[0].started_at = at(0.5));
    told(&found, &["an attempt began at 2027-01-15 08:00:00.500 UTC"]);
    let spread = TimeDelta::milliseconds(95).num_microseconds().unwrap();
    let found = changed(honest(), |history| history.alarms[0].spread_offset_micros = spread);
    told(&found, &["was due at 2027-01-15 08:00:01.095 UTC and an attempt began at 2027-01-15 08:00:01.050 UTC"]);
}

#[test]
fn a_delivery_id_that_does_not_belong_is_named() {
    // A retry under an id of its own.
    let found = changed(honest(), |history| {
        let other = delivery_id(ID, 1, at(1.0));
        history.wakes[1].delivery_id = other;
        history.attempts[1].delivery_id = Some(other);
    });
    told(&found, &["is not the id of alarm", "went out under 2 delivery ids", "are numbered [2]"]);
    // Two slots under one.
    let found = changed(series(), |history| {
        history.wakes[1].delivery_id = history.wakes[0].delivery_id;
        history.attempts[2].delivery_id = history.attempts[0].delivery_id;
    });
    told(
        &found,
        &[
            "is not the id of alarm",
            "stands for 2 occurrences",
            "attempt 1 of delivery",
            "are numbered [1, 1]",
            "was delivered, and there was another after it",
        ],
    );
}

#[test]
fn a_re_planned_occurrence_is_another_one() {
    let found = changed(honest(), |history| {
        history.alarms[0].schedule_epoch = 1;
        let other = delivery_id(ID, 1, at(1.0));
        history.wakes[1] = Wake { delivery_id: other, attempt: 1, ..history.wakes[1].clone() };
        history.attempts[1] = Attempt { delivery_id: Some(other), attempt: 1, ..history.attempts[1].clone() };
    });
    told(&found, &[]);
}

#[test]
fn a_repeat_is_named_unless_its_sender_was_killed_frozen_or_cut_short_or_its_lease_had_ended() {
    let repeated = || {
        let mut history = honest();
        history.wakes.insert(1, wake(1.0, 1, "b", 1.6, 503));
        history
    };
    let named = ["attempt 1 of delivery"];
    told(&violations(&repeated()), &named);
    for (replica, from, until, expected) in [
        ("a", 1.3, 1.4, &[][..]),
        ("b", 1.3, 1.4, &named[..]),   // another replica's death explains nothing
        ("a", 10.0, 11.0, &named[..]), // nor one that came later
    ] {
        told(&changed(repeated(), |history| history.faults.push(fault(What::Killed, replica, from, until))), expected);
    }
    // Both the one that was frozen and the one that took over may be first.
    for replica in ["a", "b"] {
        told(&changed(repeated(), |history| history.faults.push(fault(What::Frozen, replica, 1.0, 1.5))), &[]);
    }
    for what in [What::CutShort, What::LeaseOutlasted] {
        told(&changed(repeated(), |history| history.faults.push(fault(what, "a", 1.3, 1.4))), &[]);
        told(&changed(repeated(), |history| history.faults.push(fault(what, "b", 1.3, 1.4))), &named);
    }
    for what in [What::DatabaseAway, What::ConnectionsCut, What::RouterFails, What::AnswersLost] {
        told(&changed(repeated(), |history| history.faults.push(fault(what, "a", 1.3, 1.4))), &named);
    }
}

#[test]
fn a_second_acceptance_is_named_unless_an_answer_was_lost() {
    let twice = || {
        let mut history = honest();
        // Taken, though something else was heard.
        history.wakes[0] = wake(1.0, 1, "a", 1.1, 200);
        history.attempts[0].http_status = Some(200);
        history
    };
    let named = ["the router took delivery"];
    told(&violations(&twice()), &named);
    for (what, expected) in [
        (What::AnswersLost, &[][..]),
        (What::Killed, &[][..]),
        (What::RouterFails, &named[..]),
        (What::DatabaseAway, &named[..]),
    ] {
        told(&changed(twice(), |history| history.faults.push(fault(what, "a", 1.3, 1.4))), expected);
    }
}

#[test]
fn a_failure_without_an_answer_is_named_unless_the_router_failed() {
    let silent = || {
        let mut history = honest();
        history.wakes[0].reaction = Some((Reaction::Reset, at(1.15)));
        history.attempts[0].http_status = None;
        history
    };
    let named = ["attempt 1 failed without an answer, and no fault explains it"];
    told(&violations(&silent()), &named);
    for (what, expected) in [
        (What::RouterFails, &[][..]),
        (What::AnswersLost, &[][..]),
        (What::Frozen, &[][..]),
        (What::Killed, &named[..]),
        (What::ConnectionsCut, &named[..]),
    ] {
        told(&changed(silent(), |history| history.faults.push(fault(what, "a", 1.0, 1.1))), expected);
    }
}

#[test]
fn a_gap_in_the_numbers_and_a_try_after_the_last_are_named() {
    told(
        &changed(honest(), |history| {
            history.attempts[1].attempt = 3;
            history.wakes[1].attempt = 3;
        }),
        &["are numbered [1, 3]"],
    );
    let found = changed(honest(), |history| {
        (history.attempts[0].outcome, history.attempts[0].http_status) = ("exhausted".to_owned(), Some(503));
    });
    told(&found, &["attempt 1 of delivery"]);
}

#[test]
fn what_was_fenced_may_repeat_a_number() {
    let found = changed(honest(), |history| {
        history.faults.push(fault(What::Frozen, "a", 1.15, 1.7));
        history.wakes.insert(1, wake(1.0, 1, "b", 1.6, 503));
        history.attempts.push(attempt(1.0, 1, 1.05, "fenced", Some(503)));
    });
    told(&found, &[]);
}

#[test]
fn a_wake_without_a_row_is_named_unless_its_sender_was_killed() {
    let lost = || {
        let mut history = honest();
        history.operations.push(cancelled(1.5, true));
        history.alarms[0].status = "cancelled".to_owned();
        history.alarms[0].fired_count = 0;
        (history.wakes, history.attempts) = (vec![wake(1.0, 1, "a", 1.1, 202)], vec![]);
        history
    };
    told(&violations(&lost()), &["attempt 1 was sent at 2027-01-15 08:00:01.100 UTC, and no row tells of it"]);
    told(&changed(lost(), |history| history.faults.push(fault(What::Killed, "a", 1.3, 1.4))), &[]);
    let found = changed(lost(), |history| history.faults.push(fault(What::Killed, "b", 1.3, 1.4)));
    told(&found, &["and no row tells of it"]);
}

#[test]
fn a_cancelled_alarm_that_is_revived_is_named() {
    let cancelled_while = |in_flight: bool, outcome: &str, wakes: Vec<Wake>| {
        changed(honest(), |history| {
            history.operations.push(cancelled(1.15, in_flight));
            history.alarms[0].status = "cancelled".to_owned();
            history.alarms[0].fired_count = i64::from(outcome == "delivered");
            history.wakes = wakes;
            history.attempts = vec![attempt(1.0, 1, 1.05, outcome, Some(202))];
        })
    };
    // Sent before the cancel, answered after it: recorded, not counted.
    let in_flight = || vec![wake(1.0, 1, "a", 1.1, 202)];
    told(&cancelled_while(true, "cancelled", in_flight()), &[]);
    let found = cancelled_while(true, "delivered", in_flight());
    told(&found, &["attempt 1 counted as delivered all the same"]);
    // On its way when the cancel came: one, and only if the answer said so.
    let after = || vec![wake(1.0, 1, "a", 1.2, 202)];
    told(&cancelled_while(true, "cancelled", after()), &[]);
    told(&cancelled_while(false, "cancelled", after()), &["with nothing in flight, and 1 wakes came after"]);
    let again = vec![wake(1.0, 1, "a", 1.2, 202), wake(1.0, 1, "b", 2.0, 202)];
    told(
        &cancelled_while(true, "cancelled", again),
        &["attempt 1 of delivery", "with one wake in flight, and 2 wakes came after"],
    );

    let found = changed(honest(), |history| history.operations.push(cancelled(1.15, true)));
    told(
        &found,
        &["and is fired", "attempt 1 counted as retrying all the same", "attempt 2 counted as delivered all the same"],
    );
}
