//! A small run, written by hand.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::log::{
    Answer, Asked, Call, Definition, End, Fault, Frame, Kind, Log, Reaction, Run, Schedule, Tables, Wake,
};

pub const OWNER: &str = "did:matrix:ann:d75a980182b10ab7";
pub const OTHER: &str = "did:matrix:bob:d75a980182b10ab8";
pub const SESSION: &str = "ann:agent:thread";

/// Milliseconds into the run.
pub fn at(milliseconds: i64) -> DateTime<Utc> {
    "2026-11-17T10:00:00Z".parse::<DateTime<Utc>>().unwrap() + TimeDelta::milliseconds(milliseconds)
}

pub fn id_of(name: &str) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes())
}

/// As every receiver may compute it.
pub fn delivery(alarm: Uuid, epoch: i64, due: DateTime<Utc>) -> Uuid {
    let mut name = alarm.as_bytes().to_vec();
    name.extend(epoch.to_be_bytes());
    name.extend(due.timestamp_micros().to_be_bytes());
    Uuid::new_v5(&Uuid::from_bytes(*b"chronos_delivery"), &name)
}

pub fn definition(label: &str, schedule: Schedule) -> Definition {
    Definition {
        label: label.to_owned(),
        schedule,
        message: format!("wake up, {label}"),
        payload: "{\"b\": 1e2,  \"a\":1.0}".to_owned(),
        misfire: None,
        max_lateness_seconds: None,
        max_failures: None,
        spread_seconds: None,
    }
}

pub struct Tale {
    pub log: Log,
}

/// A quiet run of 200 s with one of everything.
pub fn honest() -> Tale {
    let mut tale = Tale::new();
    tale.fired("c1", 10_000);
    tale.series("k1", 10, 5);
    tale.resource("r-1");
    tale.service_call("call-1", 20_000);
    tale.session();
    tale
}

impl Tale {
    pub fn new() -> Self {
        let run = Run {
            seed: 1,
            faults: 0,
            kinds: vec![],
            mode: "active".to_owned(),
            mutant: None,
            builds: vec![],
            lease_ms: 3000,
            beat_ms: 200,
            wake_timeout_ms: 1000,
            max_failures: 5,
            autonomy_max_consecutive: 3,
            autonomy_cooldown_ms: 1500,
            started_at: at(0),
        };
        let end = End { healed_at: at(100_000), read_at: at(200_000), tables: Tables::default(), resources: vec![] };
        Self { log: Log { run, calls: vec![], frames: vec![], wakes: vec![], faults: vec![], end } }
    }

    pub fn asked(&mut self, when: i64, asked: Asked, answer: Answer) -> usize {
        let number = self.log.calls.len() as u64 + 1;
        let answered_at = Some(at(when + 5));
        let call = Call {
            number,
            owner: OWNER.to_owned(),
            via: "r1".to_owned(),
            asked_at: at(when),
            asked,
            answered_at,
            answer,
        };
        self.log.calls.push(call);
        self.log.calls.len() - 1
    }

    pub fn done(&mut self, when: i64, asked: Asked, body: Value) -> usize {
        self.asked(when, asked, Answer::Done { status: 200, body })
    }

    pub fn unknown(&mut self, when: i64, asked: Asked) -> usize {
        self.asked(when, asked, Answer::Unknown { why: "no answer".to_owned() })
    }

    pub fn created(&mut self, when: i64, definition: Definition) -> Uuid {
        let id = id_of(&definition.label);
        self.done(when, Asked::Create { key: None, alarm: definition }, json!({"id": id, "status": "active"}));
        id
    }

    pub fn row(&mut self, id: Uuid, label: &str, status: &str, due: DateTime<Utc>) -> &mut Value {
        let definition = definition(label, Schedule::At(due));
        let payload: Value = serde_json::from_str(&definition.payload).unwrap();
        self.log.end.tables.alarms.push(json!({
            "cron_expr": "", "fire_at": due, "wake_message": definition.message, "payload": payload, "id": id, "subject": "agent", "owner_did": OWNER, "user_id": "ann", "label": label, "kind": "once",
            "service_call_id": null, "session_key": null, "timer_id": null,
            "spread_offset": "00:00:00", "status": status, "scheduled_for": due, "series_at": null, "next_fire_at": due,
            "schedule_epoch": 0, "last_error": "", "fired_count": 0, "missed_count": 0, "failure_count": 0,
            "claim_token": null, "claimed_until": null, "source": "api", "idempotency_key": "",
            "resource_uid": null, "resource_name": null, "created_at": at(1002),
        }));
        self.log.end.tables.alarms.last_mut().unwrap()
    }

    /// The row of an alarm.
    pub fn of(&mut self, id: Uuid) -> &mut Value {
        let id = json!(id);
        self.log.end.tables.alarms.iter_mut().find(|row| row["id"] == id).unwrap()
    }

    pub fn attempts_of(&mut self, id: Uuid) -> Vec<&mut Value> {
        let id = json!(id);
        self.log.end.tables.attempts.iter_mut().filter(|row| row["alarm_id"] == id).collect()
    }

    pub fn attempt(&mut self, id: Uuid, due: DateTime<Utc>, number: i64, when: i64, outcome: &str) -> &mut Value {
        let status = if outcome == "delivered" { json!(202) } else { Value::Null };
        self.log.end.tables.attempts.push(json!({
            "alarm_id": id, "owner_did": OWNER, "delivery_id": delivery(id, 0, due), "scheduled_for": due,
            "attempt": number, "started_at": at(when), "duration_ms": 10, "outcome": outcome, "http_status": status,
            "error": "", "worker": id_of("r1.1"), "first_at": null, "last_at": null, "slots": null, "reason": null,
        }));
        self.log.end.tables.attempts.last_mut().unwrap()
    }

    /// A run of slots that did not fire.
    pub fn run(&mut self, id: Uuid, slots: [i64; 2], count: i64, outcome: &str, reason: &str) -> &mut Value {
        let [first, last] = slots.map(at);
        let row = self.attempt(id, last, 0, slots[1] + 200, outcome);
        row["http_status"] = Value::Null;
        (row["first_at"], row["last_at"]) = (json!(first), json!(last));
        (row["slots"], row["reason"]) = (json!(count), json!(reason));
        row
    }

    /// Sent by `r1.1`, and taken.
    pub fn wake(&mut self, label: &str, due: DateTime<Utc>, number: i64, when: i64) -> &mut Wake {
        let id = id_of(label);
        let definition = definition(label, Schedule::At(due));
        let delivery = delivery(id, 0, due);
        let body = format!(
            "{{\"user_id\":\"ann\",\"message\":{},\"payload\":{},\"alarm_id\":\"{id}\",\"origin\":\"chronos\",\"delivery_id\":\"{delivery}\",\
             \"scheduled_for\":{},\"attempt\":{number},\"kind\":\"once\",\"label\":\"{label}\",\"owner_did\":\"{OWNER}\",\
             \"correlation_id\":\"x\",\"missed\":0}}",
            json!(definition.message),
            definition.payload,
            json!(due)
        );
        self.arrived("dev.chronos.alarm.fired", delivery, body, when)
    }

    pub fn arrived(&mut self, kind: &str, delivery: Uuid, body: String, when: i64) -> &mut Wake {
        let number = self.log.wakes.len() as u64 + 1;
        self.log.wakes.push(Wake {
            number,
            arrived_at: at(when),
            replica: "r1.1".to_owned(),
            kind: kind.to_owned(),
            delivery_header: delivery.to_string(),
            body,
            reaction: Some((Reaction::Status(202), at(when + 5))),
        });
        self.log.wakes.last_mut().unwrap()
    }

    /// A once alarm, made at 1 s, and fired.
    pub fn fired(&mut self, label: &str, due: i64) -> Uuid {
        let id = self.created(1000, definition(label, Schedule::At(at(due))));
        self.row(id, label, "fired", at(due))["fired_count"] = json!(1);
        self.attempt(id, at(due), 1, due + 15, "delivered");
        self.wake(label, at(due), 1, due + 20);
        id
    }

    /// A series that fired so often, and is cancelled at 150 s, with the next slot far ahead of that or behind.
    pub fn series(&mut self, label: &str, seconds: i64, fires: i64) -> Uuid {
        let schedule = Schedule::Every { seconds: u64::try_from(seconds).unwrap(), starts_at: Some(at(5000)) };
        let id = self.created(1000, definition(label, schedule));
        for slot in 0..fires {
            let due = 5000 + slot * seconds * 1000;
            self.attempt(id, at(due), 1, due + 15, "delivered");
            self.wake(label, at(due), 1, due + 20);
        }
        let next = 5000 + fires * seconds * 1000;
        let row = self.row(id, label, "cancelled", at(next));
        (row["kind"], row["fired_count"]) = (json!("cron"), json!(fires));
        (row["cron_expr"], row["fire_at"]) = (json!(format!("@every {seconds}s")), Value::Null);
        self.done(next - 1000, Asked::Cancel { id }, json!({"id": id, "status": "cancelled", "in_flight": false}));
        id
    }

    /// A resource of a once alarm that fired.
    pub fn resource(&mut self, name: &str) -> Uuid {
        let (id, uid, due) = (id_of(name), id_of(&format!("uid of {name}")), at(30_000));
        let alarm = definition(name, Schedule::At(due));
        let (message, payload) = (alarm.message.clone(), alarm.payload.clone());
        self.done(1000, Asked::Apply { name: name.to_owned(), suspend: false, alarm }, json!({}));
        let row = self.row(id, name, "fired", due);
        (row["source"], row["resource_uid"], row["resource_name"]) = (json!("kubernetes"), json!(uid), json!(name));
        row["fired_count"] = json!(1);
        self.attempt(id, due, 1, 30_015, "delivered");
        self.wake(name, due, 1, 30_020);
        self.log.end.resources.push(json!({
            "metadata": {"name": name, "uid": uid, "generation": 1},
            "spec": {"owner": OWNER, "fireAt": due, "wakeMessage": message, "payloadJson": payload},
            "status": {"phase": "Fired", "firedCount": 1, "missedCount": 0, "observedGeneration": 1},
        }));
        id
    }

    /// A service call whose timer was reached.
    pub fn service_call(&mut self, name: &str, due: i64) -> Uuid {
        let id = id_of(name);
        self.done(1000, Asked::Register { call: name.to_owned() }, json!({}));
        let payload = "{\"n\": 1.50}".to_owned();
        self.done(1500, Asked::Timer { call: name.to_owned(), due_at: at(due), payload: payload.clone() }, json!({}));
        let row = self.row(id, "", "fired", at(due));
        (row["subject"], row["service_call_id"], row["fired_count"]) = (json!("service_call"), json!(name), json!(1));
        self.log.end.tables.service_calls.push(json!({"tenant_id": OWNER, "service_call_id": name}));
        self.attempt(id, at(due), 1, due + 15, "delivered");
        self.reached(name, due, due + 20);
        id
    }

    /// The event of a service call's timer.
    pub fn reached(&mut self, name: &str, due: i64, when: i64) -> &mut Wake {
        let delivery = delivery(id_of(name), 0, at(due));
        let body = format!(
            "{{\"tenant_id\":\"{OWNER}\",\"service_call_id\":\"{name}\",\"correlation_id\":\"x\",\"due_at\":{},\"reached_at\":{},\
             \"payload\":{{\"n\": 1.50}},\"delivery_id\":\"{delivery}\"}}",
            json!(at(due)),
            json!(at(when))
        );
        self.arrived("dev.chronos.timer.due-time-reached", delivery, body, when)
    }

    /// A session in which the user speaks, the agent sets a timer, which is promoted, and says something by itself.
    pub fn session(&mut self) {
        self.log
            .end
            .tables
            .sessions
            .push(json!({"session_key": SESSION, "owner_did": OWNER, "last_seq": 2, "last_send_seq": 2}));
        self.event(2000, 1, "user_message");
        let timer = json!({"timer_id": "tea", "fire_at": at(8000), "payload": {"n": 1}});
        self.checkpoint(
            3000,
            1,
            &[("send_message", json!({"content": "yes?"}), "completed"), ("schedule_timer", timer, "completed")],
        );
        self.promoted("tea", 2, 8000);
        self.checkpoint(9000, 2, &[("send_message", json!({"content": "tea!"}), "completed")]);
        self.sent(1, 0, 1, 3500);
        self.sent(2, 0, 2, 9500);
        self.effect(2, 0)["autonomous"] = json!(true);
        self.effect(2, 0)["counted_at"] = json!(at(9499));
    }

    pub fn event(&mut self, when: i64, seq: i64, kind: &str) -> Uuid {
        let id = id_of(&format!("event {seq}"));
        let payload = json!({"text": seq});
        self.done(
            when,
            Asked::Event { session: SESSION.to_owned(), id, kind: kind.to_owned(), payload: payload.to_string() },
            json!({"id": id, "seq": seq}),
        );
        self.log.end.tables.events.push(json!({
            "id": id, "session_key": SESSION, "seq": seq, "type": kind, "payload": payload, "created_at": at(when + 2),
        }));
        id
    }

    /// Effects of type, payload and status.
    pub fn checkpoint(&mut self, when: i64, event_seq: i64, effects: &[(&str, Value, &str)]) {
        let name = format!("cp-{event_seq}");
        let mut born = vec![];
        for (position, (kind, payload, status)) in effects.iter().enumerate() {
            let id = id_of(&format!("effect {event_seq}.{position}"));
            let dedupe_key = key(&name, kind, position, payload);
            born.push(json!({"id": id, "type": kind, "status": status, "dedupe_key": dedupe_key}));
            self.log.end.tables.effects.push(json!({
                "id": id, "session_key": SESSION, "checkpoint_id": name, "event_seq": event_seq, "position": position, "type": kind,
                "payload": payload, "dedupe_key": dedupe_key, "autonomous": false, "status": status, "reason": null,
                "failure_count": 0, "send_seq": null, "counted_at": null, "claimed_until": null, "created_at": at(when + 2),
            }));
        }
        self.log
            .end
            .tables
            .checkpoints
            .push(json!({"session_key": SESSION, "checkpoint_id": name, "event_seq": event_seq}));
        let asked = effects.iter().map(|(kind, payload, _)| json!({"type": kind, "payload": payload})).collect();
        let session = SESSION.to_owned();
        self.done(
            when,
            Asked::Checkpoint { session, checkpoint_id: name, event_seq, effects: asked },
            json!({"event_seq": event_seq, "effects": born}),
        );
    }

    pub fn effect(&mut self, event_seq: i64, position: usize) -> &mut Value {
        let id = json!(id_of(&format!("effect {event_seq}.{position}")));
        self.log.end.tables.effects.iter_mut().find(|effect| effect["id"] == id).unwrap()
    }

    /// A timer of the session becomes an event, with its wake.
    pub fn promoted(&mut self, timer: &str, seq: i64, due: i64) {
        let (id, event) = (id_of(timer), id_of(&format!("event {seq}")));
        let row = self.row(id, "", "fired", at(due));
        (row["subject"], row["source"], row["fired_count"]) = (json!("session"), json!("session"), json!(1));
        (row["session_key"], row["timer_id"]) = (json!(SESSION), json!(timer));
        self.attempt(id, at(due), 1, due + 10, "delivered")["http_status"] = Value::Null;
        self.log.end.tables.events.push(json!({
            "id": event, "session_key": SESSION, "seq": seq, "type": "timer",
            "payload": {"timer_id": timer, "payload": {"n": 1}}, "created_at": at(due + 12),
        }));
        let delivery = delivery(id, 0, at(due));
        let told = json!({"alarm_id": id, "delivery_id": delivery, "scheduled_for": at(due), "timer_id": timer, "correlation_id": SESSION});
        let checkpoint = format!("timer:{event}");
        self.log.end.tables.effects.push(json!({
            "id": id_of(&format!("wake {seq}")), "session_key": SESSION, "checkpoint_id": checkpoint, "event_seq": seq, "position": 0,
            "type": "wake", "payload": told, "dedupe_key": key(&checkpoint, "wake", 0, &told), "autonomous": false,
            "status": "completed", "reason": null, "failure_count": 0, "send_seq": null, "counted_at": null, "claimed_until": null, "created_at": at(due + 12),
        }));
        let body = format!(
            "{{\"user_id\":\"ann\",\"conversation_id\":\"thread\",\"message\":\"\",\"payload\":{{\"n\": 1}},\"alarm_id\":\"{id}\",\
             \"origin\":\"chronos\",\"delivery_id\":\"{delivery}\",\"scheduled_for\":{},\"attempt\":1,\"kind\":\"once\",\"label\":\"\",\
             \"owner_did\":\"{OWNER}\",\"correlation_id\":\"{SESSION}\",\"missed\":0,\"session_key\":\"{SESSION}\",\
             \"timer_id\":\"{timer}\",\"event_seq\":{seq}}}",
            json!(at(due))
        );
        self.arrived("dev.chronos.session.timer-promoted", delivery, body, due + 30);
    }

    /// An effect goes out over the stream, and is acknowledged.
    pub fn sent(&mut self, event_seq: i64, position: usize, seq: i64, when: i64) {
        let effect = self.effect(event_seq, position);
        effect["send_seq"] = json!(seq);
        let id: Uuid = serde_json::from_value(effect["id"].clone()).unwrap();
        let content = effect["payload"]["content"].clone();
        self.frame(when, json!({"effect_id": id, "seq": seq, "content": content}));
        self.done(when + 20, Asked::Ack { session: SESSION.to_owned(), effect_id: id, stream: true }, Value::Null);
    }

    pub fn frame(&mut self, when: i64, frame: Value) -> &mut Frame {
        self.log.frames.push(Frame { at: at(when), session: SESSION.to_owned(), connection: 1, frame });
        self.log.frames.last_mut().unwrap()
    }

    pub fn fault(&mut self, kind: Kind, target: Option<&str>, from: i64, until: i64) -> &mut Fault {
        let number = self.log.faults.len() as u64 + 1;
        self.log.faults.push(Fault {
            number,
            kind,
            target: target.map(str::to_owned),
            planned_at: at(from),
            struck_at: Some(at(from + 1)),
            undoes_from: None,
            detail: String::new(),
            over_at: Some(at(until)),
        });
        self.log.faults.last_mut().unwrap()
    }

    /// The wakes of an occurrence.
    pub fn wake_of(&mut self, label: &str, due: i64) -> &mut Wake {
        let delivery = delivery(id_of(label), 0, at(due)).to_string();
        self.log.wakes.iter_mut().find(|wake| wake.delivery_header == delivery).unwrap()
    }
}

/// SHA-256 over five texts, each preceded by its length.
pub fn key(checkpoint: &str, kind: &str, position: usize, payload: &Value) -> String {
    let mut hash = Sha256::new();
    for text in [SESSION, checkpoint, kind, &position.to_string(), &payload.to_string()] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hex::encode(hash.finalize())
}
