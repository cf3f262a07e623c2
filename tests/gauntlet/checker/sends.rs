//! Checkpoints, their effects, and what a client is sent.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{
    book::{About, Book, Found},
    faults::Undoes,
    rows::{Effect, Event},
    stories::body,
};
use crate::log::{Answer, Asked, Fault, Frame, Kind, Pair};

/// `CHRONOS_AUTONOMY_ACK_MS` of a run: for so long a send is not sent again over the same connection.
const ACK: TimeDelta = TimeDelta::milliseconds(2000);
/// A frame is a little older when it is read than when it was written; two frames may come closer together than they went out.
const CLOSER: TimeDelta = TimeDelta::milliseconds(300);

fn session(key: &str) -> About {
    About::Session(key.to_owned())
}

/// What a checkpoint's answer promised is there, once; repeated, it says the same.
pub fn checkpoints_are_there(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let effects: HashMap<Uuid, &Effect> = book.effects.iter().map(|effect| (effect.id, effect)).collect();
    let stored: BTreeMap<(&str, &str), i64> = book
        .checkpoints
        .iter()
        .map(|one| ((one.session_key.as_str(), one.checkpoint_id.as_str()), one.event_seq))
        .collect();
    let mut answers: BTreeMap<(&str, &str), Vec<Option<&str>>> = BTreeMap::new();
    for call in &book.log.calls {
        let Asked::Checkpoint { session: key, checkpoint_id, event_seq, effects: asked } = &call.asked else {
            continue;
        };
        let Some(body) = body(call) else { continue };
        let about = session(key);
        if book.call_undone(Undoes::Rows, call) {
            continue;
        }
        if stored.get(&(key.as_str(), checkpoint_id.as_str())) != Some(event_seq) {
            let what = format!(
                "checkpoint {checkpoint_id} of event {event_seq} was acknowledged (call {}), and is not there",
                call.number
            );
            found.push(Found { rule: "event-lost", about, what });
            continue;
        }
        let born: Vec<&Value> = body.get("effects").and_then(Value::as_array).into_iter().flatten().collect();
        let ids: Vec<Option<&str>> = born.iter().map(|one| one.get("id").and_then(Value::as_str)).collect();
        if let Some(before) = answers.insert((key, checkpoint_id), ids.clone())
            && before != ids
        {
            let what = format!("checkpoint {checkpoint_id} was answered with {before:?} and then with {ids:?}");
            found.push(Found { rule: "effect-twice", about: about.clone(), what });
        }
        for (place, one) in born.iter().enumerate() {
            let effect = ids[place].and_then(|id| id.parse().ok()).and_then(|id: Uuid| effects.get(&id));
            let key_told = one.get("dedupe_key").and_then(Value::as_str);
            let payload = asked.get(place).and_then(|asked| asked.get("payload"));
            let what = match effect {
                None => Some(("event-lost", format!("effect {:?} was promised, and is not there", ids[place]))),
                Some(effect) if Some(effect.dedupe_key.as_str()) != key_told => Some((
                    "effect-twice",
                    format!("effect {} has the key {}, and was promised {key_told:?}", effect.id, effect.dedupe_key),
                )),
                Some(effect) if payload.is_some_and(|payload| *payload != effect.payload) => {
                    Some(("altered", format!("effect {} carries {}", effect.id, effect.payload)))
                }
                Some(_) => None,
            };
            found.extend(what.map(|(rule, what)| Found {
                rule,
                about: about.clone(),
                what: format!("checkpoint {checkpoint_id}: {what}"),
            }));
        }
    }
    found
}

/// Recorded once per key, the key is what it must be, and each place of a checkpoint has one effect. Of the table alone.
pub fn effects_are_recorded_once(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let (mut keys, mut places) = (BTreeSet::new(), BTreeSet::new());
    for effect in &book.effects {
        let about = || session(&effect.session_key);
        if !keys.insert(effect.dedupe_key.as_str()) {
            let what = format!("two effects have the key {}", effect.dedupe_key);
            found.push(Found { rule: "effect-twice", about: about(), what });
        } else if !places.insert((&effect.session_key, &effect.checkpoint_id, effect.position)) {
            let what = format!("place {} of checkpoint {} has two effects", effect.position, effect.checkpoint_id);
            found.push(Found { rule: "effect-twice", about: about(), what });
        } else if dedupe_key(effect) != effect.dedupe_key {
            let what = format!("effect {} has the key {}, and not its own", effect.id, effect.dedupe_key);
            found.push(Found { rule: "effect-twice", about: about(), what });
        }
    }
    found
}

/// SHA-256 over session, checkpoint, type, place and canonical payload, each preceded by its length.
pub fn dedupe_key(effect: &Effect) -> String {
    let mut hash = Sha256::new();
    let (place, payload) = (effect.position.to_string(), effect.payload.to_string());
    for text in [&effect.session_key, &effect.checkpoint_id, &effect.r#type, &place, &payload] {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    hash.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// At most so many sends of the agent's own in a row, and a cooldown between them. All of it happens under the session's lock, and the
/// table has the instants: exactly, and nothing excuses it.
pub fn the_agent_restrains_itself(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let mut by_session: BTreeMap<&str, (Vec<&Event>, Vec<&Effect>)> = BTreeMap::new();
    for event in &book.events {
        by_session.entry(&event.session_key).or_default().0.push(event);
    }
    for effect in book.effects.iter().filter(|effect| effect.r#type == "send_message") {
        by_session.entry(&effect.session_key).or_default().1.push(effect);
    }
    let cooldown = TimeDelta::milliseconds(i64::try_from(book.log.run.autonomy_cooldown_ms).unwrap_or(i64::MAX / 1000));
    let most = usize::try_from(book.log.run.autonomy_max_consecutive).unwrap_or(usize::MAX);
    for (key, (events, sends)) in &by_session {
        let mut say = |rule: &'static str, what: String| found.push(Found { rule, about: session(key), what });
        for send in sends.iter().filter(|send| send.autonomous != is_autonomous(events, send.event_seq)) {
            say(
                "cap",
                format!(
                    "send {} for event {} is {}",
                    send.id,
                    send.event_seq,
                    if send.autonomous {
                        "autonomous, and answers the user"
                    } else {
                        "not autonomous, and answers nobody"
                    }
                ),
            );
        }
        for send in sends.iter().filter(|send| send.autonomous && send.send_seq.is_some() && send.counted_at.is_none())
        {
            say(
                "cap",
                format!("send {} is the agent's own, went out as {:?}, and was not counted", send.id, send.send_seq),
            );
        }
        let spoken: Vec<(i64, DateTime<Utc>)> = events
            .iter()
            .filter(|event| event.r#type == "user_message")
            .map(|event| (event.seq, event.created_at))
            .collect();
        let mut counted: Vec<(DateTime<Utc>, &Effect)> =
            sends.iter().filter_map(|send| Some((send.counted_at?, *send))).collect();
        counted.sort_by_key(|(at, _)| *at);
        // What had not gone out when the user spoke is cancelled.
        for (at, send) in &counted {
            let before =
                spoken.iter().find(|(seq, spoken)| send.event_seq < *seq && send.created_at < *spoken && at > spoken);
            if let Some((seq, spoken)) = before {
                say(
                    "after-cancel",
                    format!(
                        "send {} was the agent's own of event {}; the user spoke at {spoken} ({seq}), and it went out at {at}",
                        send.id, send.event_seq
                    ),
                );
            }
        }
        let stretch = |at: DateTime<Utc>| spoken.partition_point(|(_, spoken)| *spoken <= at);
        let mut in_a_row = 0;
        for (place, (at, send)) in counted.iter().enumerate() {
            let before = place
                .checked_sub(1)
                .map(|before| counted[before])
                .filter(|(before, _)| stretch(*before) == stretch(*at));
            in_a_row = if before.is_some() { in_a_row + 1 } else { 1 };
            if in_a_row > most {
                say("cap", format!("send {} at {at} is the {in_a_row}th in a row of the agent's own", send.id));
            }
            if let Some((before, _)) = before.filter(|(before, _)| *at - *before < cooldown) {
                say("cooldown", format!("send {} at {at} came {} after the one before", send.id, *at - before));
            }
        }
    }
    found
}

/// A send is the agent's own idea, unless the last event at or before it that is no tool's is the user's.
fn is_autonomous(events: &[&Event], event_seq: i64) -> bool {
    let before = events.iter().rev().filter(|event| event.seq <= event_seq);
    before.into_iter().find(|event| event.r#type != "tool_result").is_none_or(|event| event.r#type != "user_message")
}

/// A frame that carries a send.
struct Delivery<'a> {
    frame: &'a Frame,
    effect: Uuid,
    seq: i64,
}

fn deliveries<'a>(book: &Book<'a>) -> (BTreeMap<&'a str, Vec<Delivery<'a>>>, Vec<Found>) {
    let mut by_session: BTreeMap<&str, Vec<Delivery<'_>>> = BTreeMap::new();
    let mut found = Vec::new();
    for frame in &book.log.frames {
        let Some(effect) = frame.frame.get("effect_id") else { continue }; // an error, or a hello of the driver's own
        let seq = frame.frame.get("seq").and_then(Value::as_i64);
        match (effect.as_str().and_then(|id| id.parse().ok()), seq) {
            (Some(effect), Some(seq)) => {
                by_session.entry(&frame.session).or_default().push(Delivery { frame, effect, seq });
            }
            _ => found.push(Found {
                rule: "altered",
                about: session(&frame.session),
                what: format!("a frame that nobody can read: {}", frame.frame),
            }),
        }
    }
    for deliveries in by_session.values_mut() {
        deliveries.sort_by_key(|one| one.frame.at);
    }
    (by_session, found)
}

/// One send, one number; the same one again only over another connection, or when nobody acknowledged it in time.
pub fn sends_are_sent_once(book: &Book<'_>) -> Vec<Found> {
    let effects: HashMap<Uuid, &Effect> = book.effects.iter().map(|effect| (effect.id, effect)).collect();
    let mut acknowledged: HashMap<Uuid, DateTime<Utc>> = HashMap::new();
    for call in &book.log.calls {
        // Over a stream nobody answers an acknowledgement: it may be lost.
        if let (Asked::Ack { effect_id, stream: false, .. }, Some(body), Some(at)) =
            (&call.asked, body(call), call.answered_at)
            && body.get("status").and_then(Value::as_str) == Some("completed")
        {
            let first = acknowledged.entry(*effect_id).or_insert(at);
            *first = at.min(*first);
        }
    }
    let (by_session, mut found) = deliveries(book);
    for (key, deliveries) in by_session {
        let about = session(key);
        // What was taken back while it was under way.
        let undone = |one: &Delivery<'_>| book.is_undone(Undoes::Rows, one.frame.at, one.frame.at);
        let mut say = |rule: &'static str, what: String| found.push(Found { rule, about: about.clone(), what });
        let (mut by_effect, mut by_seq) =
            (BTreeMap::<Uuid, Vec<&Delivery<'_>>>::new(), BTreeMap::<i64, BTreeSet<Uuid>>::new());
        for one in &deliveries {
            by_effect.entry(one.effect).or_default().push(one);
            by_seq.entry(one.seq).or_default().insert(one.effect);
        }
        for (seq, ids) in by_seq.iter().filter(|(_, ids)| ids.len() > 1) {
            if !deliveries.iter().any(|one| one.seq == *seq && undone(one)) {
                say("effect-twice", format!("{} sends went out as number {seq}: {ids:?}", ids.len()));
            }
        }
        for (id, frames) in &by_effect {
            let Some(effect) = effects.get(id) else {
                if !frames.iter().any(|one| undone(one)) {
                    say("phantom", format!("effect {id} was sent, and is not there"));
                }
                continue;
            };
            if effect.session_key != key {
                say("foreign", format!("effect {id} of {} was sent to {key}", effect.session_key));
            }
            let content = effect.payload.get("content");
            if let Some(other) = frames.iter().find(|one| one.frame.frame.get("content") != content) {
                say(
                    "altered",
                    format!("effect {id} says {content:?}, and {:?} was sent", other.frame.frame.get("content")),
                );
            }
            if let Some(other) = frames.iter().find(|one| Some(one.seq) != effect.send_seq).filter(|one| !undone(one)) {
                say(
                    "effect-twice",
                    format!("effect {id} is send {:?}, and went out as {}", effect.send_seq, other.seq),
                );
            }
            for pair in frames.windows(2).filter(|pair| pair[0].frame.connection == pair[1].frame.connection) {
                let apart = pair[1].frame.at - pair[0].frame.at;
                if apart < ACK - CLOSER && !undone(pair[0]) {
                    say(
                        "effect-twice",
                        format!(
                            "effect {id} was sent at {} and again over the same connection {apart} later",
                            pair[0].frame.at
                        ),
                    );
                }
            }
            // A send goes out when the one before is over: that tells of an acknowledgement over the stream, too.
            let followed = frames.first().and_then(|first| deliveries.iter().find(|one| one.seq > first.seq));
            let over_at = acknowledged.get(id).copied().into_iter().chain(followed.map(|one| one.frame.at)).min();
            let Some(over_at) = over_at.filter(|at| !book.is_undone(Undoes::Rows, *at, *at)) else { continue };
            let late = frames.iter().map(|one| one.frame.at).filter(|at| *at > over_at + TimeDelta::seconds(1));
            if let Some(at) = late.filter(|at| !held_up(book, over_at, *at)).min() {
                say("effect-twice", format!("effect {id} was over at {over_at}, and sent again at {at}"));
            }
        }
    }
    found
}

/// A frame may lie in a line, or in a process that is frozen; which one a stream goes by the log does not say. Not for longer than faults
/// last, and packets are sent again.
fn held_up(book: &Book<'_>, since: DateTime<Utc>, at: DateTime<Utc>) -> bool {
    let holds = |fault: &Fault| {
        matches!(
            fault.kind,
            Kind::Freeze
                | Kind::FreezeAt(_)
                | Kind::Partition
                | Kind::PartitionIn
                | Kind::PartitionOut
                | Kind::Delay(Pair::Facade)
                | Kind::BlackHole(Pair::Facade)
                | Kind::ReplyLost(Pair::Facade)
        )
    };
    at - since < TimeDelta::seconds(10) && book.faults.within(since - TimeDelta::seconds(5), at).any(holds)
}

/// What the client acknowledged is completed; and nothing that nobody acknowledged.
pub fn what_is_acknowledged_is_completed(book: &Book<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    let effects: HashMap<Uuid, &Effect> = book.effects.iter().map(|effect| (effect.id, effect)).collect();
    let mut acknowledged = BTreeSet::new();
    for call in &book.log.calls {
        let Asked::Ack { session: key, effect_id, .. } = &call.asked else { continue };
        if !matches!(call.answer, Answer::Refused { .. }) {
            acknowledged.insert(*effect_id);
        }
        let told = body(call).and_then(|body| body.get("status")).and_then(Value::as_str);
        let status = effects.get(effect_id).map_or("gone", |effect| effect.status.as_str());
        let about = session(key);
        if told.is_some_and(|told| ["completed", "cancelled", "suppressed"].contains(&told) && told != status)
            && !book.call_undone(Undoes::Rows, call)
        {
            let what =
                format!("effect {effect_id} was {} (call {}), and is {status}", told.unwrap_or_default(), call.number);
            found.push(Found { rule: "revived", about, what });
        }
    }
    for effect in book.effects.iter().filter(|effect| effect.r#type == "send_message" && effect.status == "completed") {
        if !acknowledged.contains(&effect.id) {
            let what = format!("effect {} is completed, and nobody acknowledged it", effect.id);
            found.push(Found { rule: "uncounted", about: session(&effect.session_key), what });
        }
    }
    found
}
