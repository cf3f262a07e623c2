//! What became of alarms, resources and service calls.

use serde_json::{Value, json};

use super::{
    after, rules,
    tale::{OTHER, Tale, at, definition, delivery, honest, id_of},
};
use crate::log::{Answer, Asked, Kind, Schedule, Trespass};

fn none() -> [&'static str; 0] {
    []
}

#[test]
fn an_alarm_without_a_row_is_lost() {
    let drop_row = |tale: &mut Tale| {
        tale.log.end.tables.alarms.retain(|row| row["label"] != "c1");
    };
    assert_eq!(after(drop_row), ["lost"]);
    // Made by a call that nobody answered, it may never have been.
    let unknown = |tale: &mut Tale| {
        tale.unknown(1000, Asked::Create { key: None, alarm: definition("c2", Schedule::At(at(10_000))) });
    };
    assert_eq!(after(unknown), none());
    // A failover may have taken it back.
    let undone = |tale: &mut Tale| {
        tale.log.end.tables.alarms.retain(|row| row["label"] != "c1");
        tale.log.end.tables.attempts.retain(|one| one["alarm_id"] != json!(id_of("c1")));
        tale.fault(Kind::FailoverAsync, None, 2500, 12_000).undoes_from = Some(at(2000));
    };
    assert_eq!(after(undone), none());
}

#[test]
fn what_is_said_to_be_delivered_was_taken() {
    let never_sent = |tale: &mut Tale| {
        let header = delivery(id_of("c1"), 0, at(10_000)).to_string();
        tale.log.wakes.retain(|wake| wake.delivery_header != header);
    };
    assert_eq!(after(never_sent), ["lost"]);
}

#[test]
fn what_arrived_is_not_told_as_too_late() {
    let denied = |tale: &mut Tale| {
        let row = tale.of(id_of("c1"));
        (row["status"], row["fired_count"], row["missed_count"]) = (json!("failed"), json!(0), json!(1));
        row["last_error"] = json!("missed: paused");
        tale.log.end.tables.attempts.retain(|one| one["alarm_id"] != json!(id_of("c1")));
        tale.run(id_of("c1"), [10_000, 10_000], 1, "missed", "paused");
        // Whoever sent it has left no row: it died.
        tale.fault(Kind::Kill, Some("r1.1"), 10_030, 12_000);
    };
    assert_eq!(after(denied), ["denied"]);
    let undone = |tale: &mut Tale| {
        denied(tale);
        tale.fault(Kind::FailoverAsync, None, 10_500, 12_000).undoes_from = Some(at(9_900));
    };
    assert_eq!(after(undone), none());
}

#[test]
fn what_is_over_says_why() {
    let failed = |tale: &mut Tale| {
        let row = tale.of(id_of("c1"));
        (row["status"], row["last_error"], row["fired_count"]) = (json!("failed"), json!("HTTP 503"), json!(0));
        tale.log.end.tables.attempts.retain(|one| one["alarm_id"] != json!(id_of("c1")));
        tale.log.wakes.retain(|wake| !wake.body.contains("\"c1\""));
    };
    assert_eq!(after(failed), ["lost"]);
    let missed = |tale: &mut Tale| {
        failed(tale);
        tale.run(id_of("c1"), [10_000, 10_000], 1, "missed", "late")["started_at"] = json!(at(80_000));
        tale.of(id_of("c1"))["missed_count"] = json!(1);
        if let Asked::Create { alarm, .. } = &mut tale.log.calls[0].asked {
            alarm.max_lateness_seconds = Some(60);
        }
    };
    assert_eq!(after(missed), none());
    // Given up though there was time.
    let in_time = |tale: &mut Tale| {
        missed(tale);
        tale.attempts_of(id_of("c1"))[0]["started_at"] = json!(at(11_000));
    };
    assert_eq!(after(in_time), ["lost"]);
    let nobody_cancelled = |tale: &mut Tale| {
        tale.fired("c2", 40_000);
        tale.of(id_of("c2"))["status"] = json!("cancelled");
    };
    assert_eq!(after(nobody_cancelled), ["lost"]);
}

#[test]
fn every_slot_of_a_series_is_told_once() {
    let id = id_of("k1");
    let untold = |tale: &mut Tale| {
        // The third slot, at 25 s.
        tale.log.end.tables.attempts.retain(|one| one["delivery_id"] != json!(delivery(id, 0, at(25_000))));
        let header = delivery(id, 0, at(25_000)).to_string();
        tale.log.wakes.retain(|wake| wake.delivery_header != header);
        tale.of(id)["fired_count"] = json!(4);
    };
    assert_eq!(after(untold), ["lost"]);
    let folded = |tale: &mut Tale| {
        untold(tale);
        tale.run(id, [25_000, 25_000], 1, "missed", "folded");
        tale.of(id)["missed_count"] = json!(1);
    };
    assert_eq!(after(folded), none());
    let twice = |tale: &mut Tale| {
        tale.run(id, [25_000, 25_000], 1, "missed", "folded");
        tale.of(id)["missed_count"] = json!(1);
    };
    assert_eq!(after(twice), ["denied", "numbering"]);
    let beside_the_grid = |tale: &mut Tale| tale.of(id)["scheduled_for"] = json!(at(56_000));
    assert_eq!(after(beside_the_grid), ["phantom"]);
    // Without the last slots, and it stands where they should be.
    let behind = |tale: &mut Tale| tale.of(id)["scheduled_for"] = json!(at(75_000));
    assert_eq!(after(behind), ["lost"]);
}

/// Every 10 s from 5 s on; every 20 s from 7 s on since 32 s.
fn edited(tale: &mut Tale, answer: Answer) {
    let id = tale.created(1000, definition("k9", Schedule::Every { seconds: 10, starts_at: Some(at(5000)) }));
    for due in [5000, 15_000, 25_000] {
        tale.attempt(id, at(due), 1, due + 15, "delivered");
        tale.wake("k9", at(due), 1, due + 20);
    }
    let alarm = definition("k9", Schedule::Every { seconds: 20, starts_at: Some(at(7000)) });
    tale.asked(32_000, Asked::Patch { id, alarm }, answer);
    for due in [47_000, 67_000] {
        let new = delivery(id, 1, at(due)).to_string();
        tale.attempt(id, at(due), 1, due + 15, "delivered")["delivery_id"] = json!(new);
        let wake = tale.wake("k9", at(due), 1, due + 20);
        wake.body = wake.body.replace(&wake.delivery_header, &new);
        wake.delivery_header = new;
    }
    let row = tale.row(id, "k9", "active", at(207_000));
    (row["kind"], row["fired_count"], row["schedule_epoch"]) = (json!("cron"), json!(5), json!(1));
    (row["scheduled_for"], row["next_fire_at"]) = (json!(at(87_000)), json!(at(87_000)));
    tale.log.end.read_at = at(120_000); // before it is late
    let row = tale.of(id);
    (row["cron_expr"], row["fire_at"]) = (json!("@every 20s"), Value::Null);
}

#[test]
fn an_edit_begins_a_new_series() {
    for answer in [Answer::Done { status: 200, body: json!({}) }, Answer::Unknown { why: String::new() }] {
        assert_eq!(after(|tale| edited(tale, answer)), none());
    }
    let done = || Answer::Done { status: 200, body: json!({}) };
    // Done before it was answered: a slot in between is one of the new plan.
    let slow = |tale: &mut Tale| {
        edited(tale, done());
        let call = tale.log.calls.iter_mut().find(|call| matches!(call.asked, Asked::Patch { .. })).unwrap();
        call.answered_at = Some(at(48_000));
    };
    assert_eq!(after(slow), none());
    // The slot of 25 s, which has a spread of 10 s, was not due yet when it was planned anew.
    let spread = |tale: &mut Tale| {
        edited(tale, done());
        let header = delivery(id_of("k9"), 0, at(25_000)).to_string();
        tale.log.end.tables.attempts.retain(|one| one["delivery_id"] != json!(header));
        tale.log.wakes.retain(|wake| wake.delivery_header != header);
        tale.of(id_of("k9"))["fired_count"] = json!(4);
        for call in &mut tale.log.calls {
            if let Asked::Create { alarm, .. } = &mut call.asked {
                alarm.spread_seconds = Some(10);
            }
        }
    };
    assert_eq!(after(spread), none());
    // A slot of the old plan that nobody told, and nothing was tried.
    let untold = |tale: &mut Tale| {
        edited(tale, done());
        let (id, header) = (id_of("k9"), delivery(id_of("k9"), 0, at(15_000)).to_string());
        tale.log.end.tables.attempts.retain(|one| one["delivery_id"] != json!(header));
        tale.log.wakes.retain(|wake| wake.delivery_header != header);
        tale.of(id)["fired_count"] = json!(4);
    };
    assert_eq!(after(untold), ["lost"]);
    // The last one, in flight when its dispatcher died: the edit tells of it.
    let in_flight = |tale: &mut Tale| {
        edited(tale, done());
        let (id, header) = (id_of("k9"), delivery(id_of("k9"), 0, at(25_000)).to_string());
        tale.log.end.tables.attempts.retain(|one| one["delivery_id"] != json!(header));
        tale.of(id)["fired_count"] = json!(4);
        tale.fault(Kind::Kill, Some("r1.1"), 25_010, 26_000);
    };
    assert_eq!(after(in_flight), ["lost"]);
    let told = |tale: &mut Tale| {
        in_flight(tale);
        tale.run(id_of("k9"), [25_000, 25_000], 1, "fenced", "replanned");
    };
    assert_eq!(after(told), none());
    // A single instant before, which had passed when it became a series.
    let single = |tale: &mut Tale| {
        edited(tale, done());
        let id = id_of("k9");
        for call in &mut tale.log.calls {
            if let Asked::Create { alarm, .. } = &mut call.asked
                && alarm.label == "k9"
            {
                alarm.schedule = Schedule::At(at(25_500));
            }
        }
        let before = |due: i64| delivery(id, 0, at(due)).to_string();
        let headers = [5000, 15_000, 25_000].map(before);
        tale.log.end.tables.attempts.retain(|one| !headers.iter().any(|header| one["delivery_id"] == json!(header)));
        tale.log.wakes.retain(|wake| !headers.contains(&wake.delivery_header));
        tale.run(id, [25_500, 25_500], 1, "skipped", "replanned");
        (tale.of(id)["fired_count"], tale.of(id)["missed_count"]) = (json!(2), json!(1));
    };
    assert_eq!(after(single), none());
    // One of the old plan, long after.
    let old = |tale: &mut Tale| {
        edited(tale, done());
        tale.attempt(id_of("k9"), at(35_000), 1, 40_000, "fenced");
        tale.wake("k9", at(35_000), 1, 40_000);
    };
    assert_eq!(after(old), ["after-cancel"]);
    let held_up = |tale: &mut Tale| {
        old(tale);
        tale.fault(Kind::Freeze, Some("r1.1"), 31_900, 39_900);
    };
    assert_eq!(after(held_up), none());
}

#[test]
fn the_instant_that_an_edit_takes_away_from_a_once_alarm_is_told() {
    // Due at 10 s, and at 40 s since an edit at 12 s; nothing came of the first.
    let overtaken = |tale: &mut Tale| {
        let id = tale.created(1000, definition("c9", Schedule::At(at(10_000))));
        let alarm = definition("c9", Schedule::At(at(40_000)));
        tale.done(12_000, Asked::Patch { id, alarm }, json!({"id": id, "status": "active"}));
        let row = tale.row(id, "c9", "fired", at(40_000));
        (row["fired_count"], row["schedule_epoch"]) = (json!(1), json!(1));
        let new = delivery(id, 1, at(40_000)).to_string();
        tale.attempt(id, at(40_000), 1, 40_015, "delivered")["delivery_id"] = json!(new);
        let wake = tale.wake("c9", at(40_000), 1, 40_020);
        wake.body = wake.body.replace(&wake.delivery_header, &new);
        wake.delivery_header = new;
    };
    assert_eq!(after(overtaken), ["lost"]);
    let told = |tale: &mut Tale| {
        overtaken(tale);
        tale.run(id_of("c9"), [10_000, 10_000], 1, "fenced", "replanned");
    };
    assert_eq!(after(told), none());
}

#[test]
fn counts_and_records_agree() {
    assert_eq!(after(|tale| tale.of(id_of("c1"))["fired_count"] = json!(2)), ["uncounted"]);
    assert_eq!(after(|tale| tale.of(id_of("k1"))["missed_count"] = json!(2)), ["uncounted"]);
    // A failure that counts as fired.
    let failed = |tale: &mut Tale| {
        tale.attempts_of(id_of("c1"))[0]["http_status"] = json!(503);
    };
    assert_eq!(after(failed), ["uncounted"]);
}

#[test]
fn nothing_is_due_and_forgotten_or_taken_late() {
    let forgotten = |tale: &mut Tale| {
        let id = tale.created(1000, definition("c2", Schedule::At(at(50_000))));
        tale.row(id, "c2", "active", at(50_000));
    };
    assert_eq!(after(forgotten), ["late"]);
    let ahead = |tale: &mut Tale| {
        let id = tale.created(1000, definition("c2", Schedule::At(at(900_000))));
        tale.row(id, "c2", "active", at(900_000));
    };
    assert_eq!(after(ahead), none());
    let taken = |when: i64| {
        move |tale: &mut Tale| {
            tale.fired("c2", 90_000);
            tale.wake_of("c2", 90_000).arrived_at = at(when);
        }
    };
    assert_eq!(after(taken(124_000)), none());
    assert_eq!(after(taken(126_000)), ["late"]);
}

#[test]
fn what_lives_stands_where_it_should() {
    let standing = |at_: i64, planned: i64| {
        move |tale: &mut Tale| {
            let id = tale.created(1000, definition("c2", Schedule::At(at(900_000))));
            let row = tale.row(id, "c2", "active", at(900_000));
            (row["scheduled_for"], row["next_fire_at"]) = (json!(at(at_)), json!(at(planned)));
        }
    };
    assert_eq!(after(standing(900_000, 903_000)), none(), "on its ladder");
    assert_eq!(after(standing(900_000, 903_001)), ["lost"]);
    assert_eq!(after(standing(900_001, 900_001)), ["lost"], "nobody asked for it");
    let slept = |tale: &mut Tale| {
        standing(900_000, 990_000)(tale);
        tale.done(987_000, Asked::Resume { id: id_of("c2") }, json!({}));
        tale.log.end.read_at = at(988_000);
    };
    assert_eq!(after(slept), none(), "resumed late");
    let paused = |tale: &mut Tale| {
        standing(900_000, 990_000)(tale);
        tale.of(id_of("c2"))["status"] = json!("paused");
        tale.done(2000, Asked::Pause { id: id_of("c2") }, json!({"status": "paused"}));
    };
    assert_eq!(after(paused), ["lost"]);
}

#[test]
fn a_row_is_what_the_last_edit_made_it() {
    let edited = |column: &'static str, value: Value| {
        move |tale: &mut Tale| {
            let id = tale.created(1000, definition("c2", Schedule::At(at(900_000))));
            let mut alarm = definition("c2", Schedule::At(at(910_000)));
            alarm.message = "up".to_owned();
            tale.done(20_000, Asked::Patch { id, alarm }, json!({}));
            let row = tale.row(id, "c2", "active", at(910_000));
            row["wake_message"] = json!("up");
            row[column] = value;
        }
    };
    assert_eq!(after(edited("wake_message", json!("up"))), none());
    assert_eq!(after(edited("wake_message", json!("wake up, c2"))), ["altered"]);
    assert_eq!(after(edited("payload", json!({}))), ["altered"]);
    assert_eq!(after(edited("fire_at", json!(at(900_000)))), ["altered"]);
    // One that nobody answered may have come after it, within 13 s.
    let unknown = |when: i64| {
        move |tale: &mut Tale| {
            edited("wake_message", json!("what"))(tale);
            let mut alarm = definition("c2", Schedule::At(at(910_000)));
            alarm.message = "what".to_owned();
            tale.unknown(when, Asked::Patch { id: id_of("c2"), alarm });
        }
    };
    assert_eq!(after(unknown(8000)), none());
    assert_eq!(after(unknown(6999)), ["altered"]);
}

#[test]
fn nothing_is_claimed_at_rest() {
    let claimed = |tale: &mut Tale| tale.of(id_of("c1"))["claim_token"] = json!(id_of("token"));
    assert_eq!(after(claimed), ["stuck"]);
}

#[test]
fn nobody_is_woken_who_made_no_alarm() {
    let stranger = |tale: &mut Tale| {
        tale.wake("c7", at(10_000), 1, 10_020);
    };
    assert_eq!(after(stranger), ["phantom"]);
    let row = |tale: &mut Tale| {
        tale.row(id_of("c7"), "c7", "active", at(900_000));
    };
    assert_eq!(after(row), ["phantom"]);
}

#[test]
fn what_is_cancelled_stays_so() {
    // The series is cancelled at 54.005 s; one wake more.
    let wake = |in_flight: bool| {
        move |tale: &mut Tale| {
            for call in &mut tale.log.calls {
                if let (Asked::Cancel { .. }, Answer::Done { body, .. }) = (&call.asked, &mut call.answer) {
                    body["in_flight"] = json!(in_flight);
                }
            }
            tale.attempt(id_of("k1"), at(55_000), 1, 55_015, "cancelled");
            tale.wake("k1", at(55_000), 1, 55_020);
        }
    };
    assert_eq!(after(wake(false)), ["after-cancel"]);
    assert_eq!(after(wake(true)), none());
    // Asked once more, the cancel finds nothing in flight; that was said to the first.
    let again = |tale: &mut Tale| {
        wake(true)(tale);
        let id = id_of("k1");
        tale.done(54_500, Asked::Cancel { id }, json!({"id": id, "status": "cancelled", "in_flight": false}));
    };
    assert_eq!(after(again), none());
    let counted = |tale: &mut Tale| {
        wake(true)(tale);
        tale.attempts_of(id_of("k1"))[5]["outcome"] = json!("retrying");
        tale.attempts_of(id_of("k1"))[5]["http_status"] = json!(202);
    };
    assert!(after(counted).contains(&"after-cancel"));
    let revived = |tale: &mut Tale| {
        let row = tale.of(id_of("k1"));
        row["status"] = json!("active");
        tale.log.end.read_at = at(120_000); // before it is late
    };
    assert_eq!(after(revived), ["revived"]);
    let put = |tale: &mut Tale| {
        revived(tale);
        let alarm = definition("k1", Schedule::Every { seconds: 10, starts_at: Some(at(5000)) });
        tale.unknown(54_500, Asked::Put { key: "k1".to_owned(), alarm });
    };
    assert_eq!(after(put), none());
}

#[test]
fn nothing_comes_while_paused() {
    let paused = |resumed_at: i64| {
        move |tale: &mut Tale| {
            let id = tale.fired("c2", 40_000);
            tale.done(30_000, Asked::Pause { id }, json!({"id": id, "status": "paused"}));
            tale.unknown(resumed_at, Asked::Resume { id });
        }
    };
    assert_eq!(after(paused(39_000)), none());
    assert_eq!(after(paused(41_000)), ["after-pause"]);
}

#[test]
fn one_key_is_one_alarm() {
    let twice = |tale: &mut Tale| {
        let alarm = definition("k2", Schedule::At(at(900_000)));
        for (when, id) in [(1000, "a"), (2000, "b")] {
            let body = json!({"id": id_of(id), "status": "active"});
            tale.done(when, Asked::Create { key: Some("k2".to_owned()), alarm: alarm.clone() }, body);
            tale.row(id_of(id), "k2", "active", at(900_000))["idempotency_key"] = json!("k2");
        }
    };
    assert_eq!(after(twice), ["key-twice"]);
    let once = |tale: &mut Tale| {
        twice(tale);
        tale.log.end.tables.alarms.retain(|row| row["id"] != json!(id_of("b")));
        let last = tale.log.calls.last_mut().unwrap();
        last.answer = Answer::Unknown { why: String::new() };
    };
    assert_eq!(after(once), none());
}

#[test]
fn nobody_sees_or_takes_what_is_not_theirs() {
    for how in Trespass::ON_ALARMS.into_iter().chain(Trespass::ON_SESSIONS) {
        let done = |tale: &mut Tale| {
            tale.done(5000, Asked::Trespass { on: id_of("c1").to_string(), how }, json!({"id": id_of("c1")}));
        };
        assert_eq!(after(done), ["foreign"], "{how:?}");
    }
    let refused = |status: u16| {
        move |tale: &mut Tale| {
            let asked = Asked::Trespass { on: id_of("c1").to_string(), how: Trespass::Cancel };
            tale.asked(5000, asked, Answer::Refused { status, body: Value::Null });
        }
    };
    assert_eq!(after(refused(404)), none());
    assert_eq!(after(refused(403)), ["foreign"], "that it is there is not theirs to know");
    let woken = |tale: &mut Tale| {
        let wake = tale.wake_of("c1", 10_000);
        wake.body = wake.body.replace(super::tale::OWNER, OTHER);
    };
    assert_eq!(after(woken), ["foreign"]);
    let signed_in = |times: usize| {
        move |tale: &mut Tale| {
            for _ in 0..times {
                tale.done(5000, Asked::Verify { nonce: "n".to_owned() }, Value::Null);
            }
        }
    };
    assert_eq!(after(signed_in(1)), none());
    assert_eq!(after(signed_in(2)), ["nonce-twice"]);
}

#[test]
fn a_status_says_what_the_row_says() {
    let spoil = |pointer: &'static str, value: Value| {
        move |tale: &mut Tale| *tale.log.end.resources[0].pointer_mut(pointer).unwrap() = value
    };
    assert_eq!(after(spoil("/status/phase", json!("Active"))), ["status"]);
    assert_eq!(after(spoil("/status/firedCount", json!(0))), ["status"]);
    assert_eq!(after(spoil("/status/observedGeneration", json!(0))), ["status"]);
    // Seen, and not stored.
    assert_eq!(after(spoil("/spec/wakeMessage", json!("up"))), ["status"]);
    assert_eq!(after(spoil("/spec/payloadJson", json!("{}"))), ["status"]);
    assert_eq!(after(spoil("/spec/fireAt", json!(at(31_000)))), ["status"]);
    assert_eq!(after(spoil("/spec/owner", json!(OTHER))), ["status"]);
    assert_eq!(after(|tale| tale.log.end.resources[0]["spec"]["cronExpr"] = json!("@every 5s")), ["status"]);
    assert_eq!(after(|tale| tale.log.end.resources[0]["status"]["nextFireTime"] = json!(at(0))), ["status"]);
}

#[test]
fn a_resource_that_is_gone_has_no_living_row() {
    let gone = |status: &'static str| {
        move |tale: &mut Tale| {
            let (name, uid) = ("r-2", id_of("uid"));
            let alarm = definition(name, Schedule::At(at(900_000)));
            tale.done(1000, Asked::Apply { name: name.to_owned(), suspend: false, alarm }, json!({}));
            let row = tale.row(id_of(name), name, status, at(900_000));
            (row["source"], row["resource_uid"], row["resource_name"]) = (json!("kubernetes"), json!(uid), json!(name));
            tale.done(5000, Asked::Delete { name: name.to_owned() }, json!({}));
        }
    };
    assert_eq!(after(gone("active")), ["orphan"]);
    assert_eq!(after(gone("cancelled")), none());
    let woken = |tale: &mut Tale| {
        gone("cancelled")(tale);
        tale.of(id_of("r-2"))["scheduled_for"] = json!(at(9000));
        if let Asked::Apply { alarm, .. } = &mut tale.log.calls.iter_mut().rev().nth(1).unwrap().asked {
            alarm.schedule = Schedule::At(at(9000));
        }
        tale.attempt(id_of("r-2"), at(9000), 1, 9015, "cancelled");
        tale.wake("r-2", at(9000), 1, 9020);
    };
    assert_eq!(after(woken), ["after-cancel"]);
}

#[test]
fn a_service_calls_timer_reaches_its_end() {
    let id = id_of("call-1");
    let gone = |tale: &mut Tale| {
        tale.log.end.tables.alarms.retain(|row| row["id"] != json!(id));
    };
    assert_eq!(after(gone), ["timer"]);
    let deregistered = |tale: &mut Tale| {
        gone(tale);
        tale.log.end.tables.service_calls.clear();
        tale.done(
            25_000,
            Asked::Deregister { call: "call-1".to_owned() },
            json!({"deleted": true, "in_flight": false}),
        );
    };
    assert_eq!(after(deregistered), none());
    let too_late = |tale: &mut Tale| {
        deregistered(tale);
        let last = tale.log.calls.last_mut().unwrap();
        (last.asked_at, last.answered_at) = (at(19_000), Some(at(19_005)));
    };
    assert_eq!(after(too_late), ["after-cancel"]);
    // Asked once more, it finds nothing in flight; that was said to the first.
    let again = |in_flight: bool| {
        move |tale: &mut Tale| {
            too_late(tale);
            let body = json!({"deleted": true, "in_flight": in_flight});
            tale.done(18_990, Asked::Deregister { call: "call-1".to_owned() }, body);
        }
    };
    assert_eq!(after(again(false)), ["after-cancel"]);
    assert_eq!(after(again(true)), none());
    let set_anew = |tale: &mut Tale| {
        let payload = "{\"n\": 1.50}".to_owned();
        tale.done(22_000, Asked::Timer { call: "call-1".to_owned(), due_at: at(60_000), payload }, json!({}));
    };
    // It stands where it stood before.
    assert_eq!(after(set_anew), ["timer"]);
    let given_up = |tale: &mut Tale| {
        tale.attempts_of(id)[0]["outcome"] = json!("exhausted");
        tale.attempts_of(id)[0]["http_status"] = json!(202);
    };
    assert!(after(given_up).contains(&"timer"));
}

#[test]
fn the_ledger_adds_up() {
    // Delivered, and told as overtaken as well: each rule by itself is content with what it sees.
    let both = |tale: &mut Tale| {
        tale.run(id_of("c1"), [10_000, 10_000], 1, "fenced", "replanned");
    };
    assert_eq!(after(both), ["ledger"]);
    assert_eq!(rules(&honest()), none());
}
