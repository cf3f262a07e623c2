//! Sessions: their log, their effects, what the client is sent.

use serde_json::{Value, json};

use super::{
    after,
    tale::{SESSION, Tale, at, id_of},
};
use crate::log::{Answer, Asked, Kind, Pair, Reaction};

fn none() -> [&'static str; 0] {
    []
}

#[test]
fn a_log_has_no_gaps() {
    let gap = |tale: &mut Tale| {
        tale.event(30_000, 4, "tool_result");
        tale.log.end.tables.sessions[0]["last_seq"] = json!(4);
    };
    assert_eq!(after(gap), ["seq-gap"]);
    let none_missing = |tale: &mut Tale| {
        tale.event(30_000, 3, "tool_result");
        tale.log.end.tables.sessions[0]["last_seq"] = json!(3);
    };
    assert_eq!(after(none_missing), none());
}

#[test]
fn what_was_acknowledged_is_there() {
    let lost = |tale: &mut Tale| {
        let id = id_of("another");
        let asked =
            Asked::Event { session: SESSION.to_owned(), id, kind: "tool_result".to_owned(), payload: "{}".to_owned() };
        tale.done(30_000, asked, json!({"id": id, "seq": 3}));
    };
    assert_eq!(after(lost), ["event-lost"]);
    let unknown = |tale: &mut Tale| {
        lost(tale);
        tale.log.calls.last_mut().unwrap().answer = Answer::Unknown { why: String::new() };
    };
    assert_eq!(after(unknown), none());
    let checkpoint = |tale: &mut Tale| {
        tale.log.end.tables.checkpoints.pop();
    };
    assert_eq!(after(checkpoint), ["event-lost"]);
    let said_by_nobody = |tale: &mut Tale| {
        tale.event(30_000, 3, "tool_result");
        tale.log.calls.pop();
        tale.log.end.tables.sessions[0]["last_seq"] = json!(3);
    };
    assert_eq!(after(said_by_nobody), ["phantom"]);
}

#[test]
fn a_timer_is_promoted_once() {
    // The same timer, another event, another wake in the outbox.
    let twice = |tale: &mut Tale| {
        let count = tale.log.wakes.len();
        tale.promoted("tea", 3, 8000);
        tale.log.end.tables.alarms.pop();
        tale.log.end.tables.attempts.pop();
        tale.log.wakes.truncate(count);
        tale.log.end.tables.sessions[0]["last_seq"] = json!(3);
    };
    assert!(after(twice).contains(&"effect-twice"));
    let no_event = |tale: &mut Tale| {
        let wake = json!(id_of("wake 2"));
        tale.log.end.tables.effects.retain(|effect| effect["id"] != wake);
        tale.log.wakes.retain(|wake| !wake.kind.contains("session"));
    };
    assert_eq!(after(no_event), ["event-lost", "lost"]);
    let not_taken = |tale: &mut Tale| tale.log.wakes.retain(|wake| !wake.kind.contains("session"));
    assert_eq!(after(not_taken), ["lost"]);
    let nobody_spoke = |tale: &mut Tale| {
        let timer = json!({"timer_id": "cake", "fire_at": at(900_000)});
        tale.event(30_000, 3, "tool_result");
        tale.log.end.tables.sessions[0]["last_seq"] = json!(3);
        tale.checkpoint(31_000, 3, &[("schedule_timer", timer, "completed")]);
        let row = tale.row(id_of("cake"), "", "cancelled", at(900_000));
        (row["subject"], row["source"]) = (json!("session"), json!("session"));
        (row["session_key"], row["timer_id"]) = (json!(SESSION), json!("cake"));
    };
    assert_eq!(after(nobody_spoke), ["lost"]);
    let user_spoke = |tale: &mut Tale| {
        nobody_spoke(tale);
        tale.event(32_000, 4, "user_message");
        tale.log.end.tables.sessions[0]["last_seq"] = json!(4);
    };
    assert_eq!(after(user_spoke), none());
}

#[test]
fn a_wake_is_given_up_after_its_last_attempt() {
    let given_up = |failures: i64, answered: u16| {
        move |tale: &mut Tale| {
            let id = json!(id_of("wake 2"));
            let effect = tale.log.end.tables.effects.iter_mut().find(|effect| effect["id"] == id).unwrap();
            (effect["status"], effect["reason"]) = (json!("failed"), json!("HTTP 503"));
            effect["failure_count"] = json!(failures);
            let wake = tale.log.wakes.iter_mut().find(|wake| wake.kind.contains("session")).unwrap();
            wake.reaction = Some((Reaction::Status(answered), at(8040)));
            // There are faults in every run.
            tale.fault(Kind::Kill, Some("r3.1"), 8000, 9000);
        }
    };
    assert_eq!(after(given_up(6, 503)), none());
    assert_eq!(after(given_up(5, 503)), ["unjustified-failure"]);
    assert_eq!(after(given_up(6, 202)), ["unjustified-failure"], "the router took it");
    let lost = |tale: &mut Tale| {
        given_up(6, 202)(tale);
        tale.fault(Kind::ReplyLost(Pair::Router), Some("r1"), 8000, 8500);
    };
    assert_eq!(after(lost), none());
}

#[test]
fn an_effect_is_recorded_and_sent_once() {
    let same_key = |tale: &mut Tale| {
        let other = tale.effect(1, 0)["dedupe_key"].clone();
        tale.effect(2, 0)["dedupe_key"] = other;
    };
    assert_eq!(after(same_key), ["effect-twice"]);
    let frame = |seq: i64, connection: u64, when: i64| {
        move |tale: &mut Tale| {
            let id = id_of("effect 1.0");
            tale.frame(when, json!({"effect_id": id, "seq": seq, "content": "yes?"})).connection = connection;
        }
    };
    assert_eq!(after(frame(1, 1, 3900)), ["effect-twice"], "before anybody could acknowledge it");
    assert_eq!(after(frame(1, 1, 5600)), none(), "nobody did");
    assert_eq!(after(frame(1, 2, 3900)), none(), "over another connection");
    assert_eq!(after(frame(7, 2, 3900)), ["effect-twice"], "under another number");
    // The second send went out at 9.5 s: the first was over by then.
    assert_eq!(after(frame(1, 2, 10_600)), ["effect-twice"], "over for long");
    let held_up = |when: i64| {
        move |tale: &mut Tale| {
            frame(1, 2, when)(tale);
            tale.fault(Kind::Delay(Pair::Facade), Some("r2"), 9000, 25_000);
        }
    };
    assert_eq!(after(held_up(10_600)), none(), "it may have been under way");
    assert_eq!(after(held_up(20_000)), ["effect-twice"], "not for ever");
    let altered = |tale: &mut Tale| {
        tale.log.frames[0].frame["content"] = json!("no");
    };
    assert_eq!(after(altered), ["altered"]);
    let stuck = |tale: &mut Tale| {
        let id = json!(id_of("wake 2"));
        let effect = tale.log.end.tables.effects.iter_mut().find(|effect| effect["id"] == id).unwrap();
        effect["status"] = json!("executing");
    };
    assert_eq!(after(stuck), ["stuck"]);
    let not_acknowledged = |tale: &mut Tale| {
        tale.log.calls.retain(|call| !matches!(call.asked, Asked::Ack { .. }));
    };
    assert_eq!(after(not_acknowledged), ["uncounted"]);
    let revived = |tale: &mut Tale| {
        let ack = Asked::Ack { session: SESSION.to_owned(), effect_id: id_of("effect 1.0"), stream: false };
        tale.done(4000, ack, json!({"status": "completed"}));
        tale.effect(1, 0)["status"] = json!("pending");
    };
    assert_eq!(after(revived), ["revived"]);
}

/// More sends of the agent's own, so far apart, all for the timer's event.
fn chatty(tale: &mut Tale, count: i64, apart: i64) {
    for number in 1..=count {
        let (seq, when) = (2 + number, 9499 + number * apart);
        tale.event(when - 50, seq, "tool_result");
        tale.checkpoint(when - 30, seq, &[("send_message", json!({"content": "and"}), "completed")]);
        tale.sent(seq, 0, seq, when + 1);
        let effect = tale.effect(seq, 0);
        (effect["autonomous"], effect["counted_at"]) = (json!(true), json!(at(when)));
        let session = &mut tale.log.end.tables.sessions[0];
        (session["last_seq"], session["last_send_seq"]) = (json!(seq), json!(seq));
    }
}

#[test]
fn the_agent_restrains_itself() {
    assert_eq!(after(|tale| chatty(tale, 2, 1500)), none());
    assert_eq!(after(|tale| chatty(tale, 3, 1500)), ["cap"]);
    assert_eq!(after(|tale| chatty(tale, 2, 1499)), ["cooldown"]);
    let uncounted = |tale: &mut Tale| tale.effect(2, 0)["counted_at"] = Value::Null;
    assert_eq!(after(uncounted), ["cap"]);
    // The user speaks, and what had not gone out goes out.
    let spoken = |tale: &mut Tale| {
        tale.event(9200, 3, "user_message");
        tale.log.end.tables.sessions[0]["last_seq"] = json!(3);
    };
    assert_eq!(after(spoken), ["after-cancel"]);
}
