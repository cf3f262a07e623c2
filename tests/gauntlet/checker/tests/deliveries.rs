//! Wakes and attempts, and the faults that explain them.

use serde_json::{Value, json};

use super::{
    after,
    tale::{Tale, at, delivery, id_of},
};
use crate::log::{Kind, Pair, Point, Reaction};

fn none() -> [&'static str; 0] {
    []
}

#[test]
fn no_wake_is_early() {
    assert_eq!(after(|tale| tale.wake_of("c1", 10_000).arrived_at = at(9_999)), ["early"]);
    let spread = |tale: &mut Tale| tale.of(id_of("k1"))["spread_offset"] = json!("00:00:00.500000");
    assert_eq!(after(spread), ["early"]);
    let attempt = |tale: &mut Tale| tale.attempts_of(id_of("c1"))[0]["started_at"] = json!(at(9_990));
    assert_eq!(after(attempt), ["early"]);
}

#[test]
fn message_and_payload_arrive_to_the_byte() {
    let rewritten = |tale: &mut Tale| {
        let wake = tale.wake_of("c1", 10_000);
        wake.body = wake.body.replace("1e2,  ", "1e2, ");
    };
    assert_eq!(after(rewritten), ["altered"]);
    let unreadable = |tale: &mut Tale| tale.wake_of("c1", 10_000).body.truncate(20);
    assert!(after(unreadable).contains(&"altered"));
}

#[test]
fn an_occurrence_has_one_id_and_an_id_one_occurrence() {
    let another = |tale: &mut Tale| {
        let (old, new) = (delivery(id_of("c1"), 0, at(10_000)).to_string(), id_of("x").to_string());
        let wake = tale.wake_of("c1", 10_000);
        wake.body = wake.body.replace(&old, &new);
        wake.delivery_header = new.clone();
        tale.attempts_of(id_of("c1"))[0]["delivery_id"] = json!(new);
    };
    assert_eq!(after(another), ["split-id"]);
    assert_eq!(after(|tale| tale.wake_of("c1", 10_000).delivery_header = "x".to_owned()), ["split-id"]);
    // Two occurrences of the series under the id of the first: that the second is not its own is seen as well.
    let shared = |tale: &mut Tale| {
        let (first, second) = (delivery(id_of("k1"), 0, at(5000)), delivery(id_of("k1"), 0, at(15_000)));
        tale.attempts_of(id_of("k1"))[1]["delivery_id"] = json!(first);
        let wake = tale.wake_of("k1", 15_000);
        wake.body = wake.body.replace(&second.to_string(), &first.to_string());
        wake.delivery_header = first.to_string();
    };
    assert!(after(shared).contains(&"shared-id"));
}

/// The same attempt once more, by another replica.
fn repeated(tale: &mut Tale, when: i64) {
    tale.wake("c1", at(10_000), 1, when).replica = "r2.1".to_owned();
    tale.attempt(id_of("c1"), at(10_000), 1, when - 5, "fenced");
}

#[test]
fn a_repeat_has_a_fault_to_explain_it() {
    assert_eq!(after(|tale| repeated(tale, 11_000)), ["repeat"]);
    let with = |kind: Kind, target: Option<&'static str>, from: i64, until: i64| {
        after(move |tale| {
            repeated(tale, 11_000);
            tale.fault(kind, target, from, until);
        })
    };
    assert_eq!(with(Kind::Kill, Some("r1.1"), 10_021, 10_022), none());
    assert_eq!(with(Kind::KillAt(Point::Sent), Some("r1.1"), 9000, 10_500), none());
    assert_eq!(with(Kind::Kill, Some("r2.1"), 10_021, 10_022), ["repeat"], "whoever sent it again was not hit");
    assert_eq!(with(Kind::Kill, Some("r1.2"), 10_021, 10_022), ["repeat"], "another process");
    assert_eq!(with(Kind::Kill, Some("r1.1"), 30_000, 30_001), ["repeat"], "long after");
    assert_eq!(with(Kind::Freeze, Some("r2.1"), 9900, 10_900), none(), "awake again it sends what was taken from it");
    assert_eq!(with(Kind::Terminate, Some("r1.1"), 10_000, 13_000), ["repeat"], "it finishes what it sent");
    assert_eq!(with(Kind::Delay(Pair::Postgres), Some("r1"), 9900, 11_000), none());
    assert_eq!(with(Kind::Delay(Pair::Postgres), Some("r1"), 9900, 10_200), ["repeat"], "shorter than two beats");
    assert_eq!(with(Kind::Delay(Pair::Router), Some("r1"), 9900, 11_000), ["repeat"], "the next has the next number");
    assert_eq!(with(Kind::Partition, Some("r1"), 9900, 11_000), none());
    assert_eq!(with(Kind::PostgresKill, None, 9900, 11_000), none());
    assert_eq!(with(Kind::LeaseStolen, None, 9900, 11_000), ["repeat"]);
    assert_eq!(
        with(Kind::Kill, Some("r1.1"), 7000, 8021),
        none(),
        "over half a second before it was claimed, and what comes of it"
    );
    assert_eq!(with(Kind::Kill, Some("r1.1"), 7000, 8019), ["repeat"], "long over");
    assert_eq!(with(Kind::Partition, Some("r1"), 5000, 7021), none(), "what was lost on the line comes later");
    assert_eq!(with(Kind::Partition, Some("r1"), 5000, 7019), ["repeat"]);
    // A lease later, by another; and a third is frozen meanwhile.
    let another = |tale: &mut Tale| {
        repeated(tale, 13_100);
        tale.fault(Kind::Freeze, Some("r3.1"), 9900, 12_900);
    };
    assert_eq!(after(another), ["repeat"], "nobody waits for a row that somebody else holds");
    // A crash long after the first is no reason to send what was settled.
    let late = |tale: &mut Tale| {
        repeated(tale, 40_100);
        tale.fault(Kind::Kill, Some("r1.1"), 40_000, 40_001);
    };
    assert_eq!(after(late), ["repeat"]);
    let undone = |tale: &mut Tale| {
        repeated(tale, 14_000);
        tale.fault(Kind::FailoverAsync, None, 10_100, 13_000).undoes_from = Some(at(10_010));
    };
    assert_eq!(after(undone), none());
}

/// The first was taken, its answer lost; the second has the next number.
fn taken_twice(tale: &mut Tale) {
    let id = id_of("c1");
    let first = tale.attempts_of(id).remove(0);
    (first["outcome"], first["http_status"], first["duration_ms"]) = (json!("retrying"), Value::Null, json!(1000));
    tale.attempt(id, at(10_000), 2, 11_300, "delivered");
    tale.wake("c1", at(10_000), 2, 11_310);
}

#[test]
fn an_answer_that_is_lost_explains_the_next_attempt() {
    assert_eq!(after(taken_twice), ["repeat", "unjustified-failure"]);
    let lost = |tale: &mut Tale| {
        taken_twice(tale);
        tale.fault(Kind::ReplyLost(Pair::Router), Some("r1"), 10_010, 11_100);
    };
    assert_eq!(after(lost), none());
    let slow = |tale: &mut Tale| {
        taken_twice(tale);
        tale.fault(Kind::RouterSlow, None, 9000, 11_100);
    };
    assert_eq!(after(slow), none());
    let huge = |tale: &mut Tale| {
        taken_twice(tale);
        tale.fault(Kind::RouterHuge, None, 9000, 11_100);
    };
    assert_eq!(after(huge), ["repeat", "unjustified-failure"]);
}

#[test]
fn attempts_are_numbered_without_gaps() {
    let third = |tale: &mut Tale| {
        let wake = tale.wake_of("c1", 10_000);
        wake.body = wake.body.replace("\"attempt\":1", "\"attempt\":2");
        tale.attempts_of(id_of("c1"))[0]["attempt"] = json!(2);
    };
    assert_eq!(after(third), ["numbering"]);
}

#[test]
fn every_wake_is_recorded() {
    let fenced = |tale: &mut Tale| {
        let wake = tale.wake("c1", at(10_000), 2, 12_000);
        wake.reaction = Some((Reaction::Status(503), at(12_005)));
    };
    // The router had taken the first: the second should not have been, whatever was answered.
    assert_eq!(after(fenced), ["repeat", "unrecorded"]);
    let killed = |tale: &mut Tale| {
        fenced(tale);
        tale.fault(Kind::Kill, Some("r1.1"), 12_010, 12_011);
    };
    assert_eq!(after(killed), ["repeat"], "which came too late for the first");
}

#[test]
fn what_came_too_late_to_count_is_recorded_as_well() {
    let slept = |tale: &mut Tale| {
        repeated(tale, 11_000);
        tale.fault(Kind::Freeze, Some("r1.1"), 9900, 10_900);
    };
    assert_eq!(after(slept), none());
    let unrecorded = |tale: &mut Tale| {
        slept(tale);
        tale.log.end.tables.attempts.pop();
    };
    assert_eq!(after(unrecorded), ["unrecorded"]);
}

#[test]
fn a_failure_is_one_that_the_router_answered() {
    let refused = |answered: u16| {
        move |tale: &mut Tale| {
            tale.wake_of("c1", 10_000).reaction = Some((Reaction::Status(answered), at(10_025)));
            let first = tale.attempts_of(id_of("c1")).remove(0);
            (first["outcome"], first["http_status"]) = (json!("retrying"), json!(503));
            tale.attempt(id_of("c1"), at(10_000), 2, 11_300, "delivered");
            tale.wake("c1", at(10_000), 2, 11_310);
        }
    };
    assert_eq!(after(refused(503)), none());
    assert_eq!(after(refused(500)), ["unjustified-failure"]);
    let too_soon = |tale: &mut Tale| {
        tale.wake_of("c1", 10_000).reaction = Some((Reaction::Status(503), at(10_025)));
        let first = tale.attempts_of(id_of("c1")).remove(0);
        (first["outcome"], first["http_status"]) = (json!("exhausted"), json!(503));
        let row = tale.of(id_of("c1"));
        (row["status"], row["last_error"], row["fired_count"]) = (json!("failed"), json!("HTTP 503"), json!(0));
    };
    assert_eq!(after(too_soon), ["unjustified-failure"]);
}
