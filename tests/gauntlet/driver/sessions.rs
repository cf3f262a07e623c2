//! Sessions: a user who speaks, an agent who answers and sets itself timers, and a client who listens.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    caller::{Caller, data, is_open},
    definitions,
    dice::Dice,
    now,
    owners::Owner,
    requests::rfc3339,
};
use crate::log::{Answer, Asked};

pub struct Session {
    pub caller: Arc<Caller>,
    pub owner: Arc<Owner>,
    pub key: String,
}

/// The user and the tools.
pub async fn speak(session: Arc<Session>, mut dice: Dice) {
    let dice = &mut dice;
    let Session { caller, owner, .. } = &*session;
    let first = event(&session, dice, true);
    caller.insist(owner, dice, first, None).await;
    let mut silent_until = Instant::now() + dice.millis(7000..22_000);
    while caller.rest(dice.millis(1200..5000)).await {
        // Between two words of the user's there is time for more sends than the cap allows.
        let from_user = Instant::now() > silent_until;
        if from_user {
            silent_until = Instant::now() + dice.millis(7000..22_000);
        }
        let told = event(&session, dice, from_user);
        match dice.below(10) {
            // The same one twice at once.
            0 | 1 => {
                let (here, there) = caller.two_slots(dice);
                let both = tokio::join!(caller.ask(owner, here, told.clone()), caller.ask(owner, there, told.clone()));
                if is_open(&both.0) && is_open(&both.1) {
                    caller.insist(owner, dice, told, None).await;
                }
            }
            // Two at once.
            2..=4 => {
                let (here, there) = caller.two_slots(dice);
                let other = event(&session, dice, false);
                tokio::join!(caller.ask(owner, here, told), caller.ask(owner, there, other));
            }
            // Again, later.
            5 => {
                caller.insist(owner, dice, told.clone(), None).await;
                caller.rest(dice.millis(0..3000)).await;
                caller.ask(owner, dice.below(caller.slots()), told).await;
            }
            _ => {
                caller.insist(owner, dice, told, None).await;
            }
        }
    }
}

fn event(session: &Session, dice: &mut Dice, from_user: bool) -> Asked {
    let id = dice.uuid();
    let (kind, payload) = if from_user {
        ("user_message", format!("{{\"text\": \"I said {id}, \u{2615}\", \"n\":1.0}}"))
    } else {
        ("tool_result", format!("{{\"tool_id\":\"{id}\",\"payload\": {} }}", definitions::payload(dice, "tool")))
    };
    Asked::Event { session: session.key.clone(), id, kind: kind.to_owned(), payload }
}

/// The agent: a checkpoint for each event, in order.
pub async fn think(session: Arc<Session>, mut dice: Dice) {
    let dice = &mut dice;
    let Session { caller, owner, key } = &*session;
    let (mut at, mut read_again) = (0, Instant::now());
    while caller.rest(dice.millis(300..700)).await {
        // What is known here may be undone there, by a failover.
        if Instant::now() > read_again {
            at = processed(&session, dice).await.unwrap_or(at);
            read_again = Instant::now() + Duration::from_secs(5);
        }
        let path = format!("/v1/sessions/{key}/events?after={at}&limit=20");
        let found = caller.look(owner, dice.below(caller.slots()), &path).await;
        let events = data(&found).and_then(|data| data["events"].as_array()).cloned().unwrap_or_default();
        for event in events {
            let Some(seq) = event["seq"].as_i64() else { break };
            let kind = event["type"].as_str().unwrap_or_default();
            match checkpoint(&session, dice, seq, kind).await {
                Answer::Done { .. } => at = seq,
                Answer::Refused { .. } | Answer::Unknown { .. } => {
                    at = processed(&session, dice).await.unwrap_or(at);
                    break;
                }
            }
            if caller.is_stopping() {
                return;
            }
        }
    }
}

/// How far the session is, by its own word.
async fn processed(session: &Session, dice: &mut Dice) -> Option<i64> {
    let slot = dice.below(session.caller.slots());
    let found = session.caller.look(&session.owner, slot, &format!("/v1/sessions/{}", session.key)).await;
    data(&found)?["event_seq"].as_i64()
}

async fn checkpoint(session: &Session, dice: &mut Dice, seq: i64, kind: &str) -> Answer {
    let Session { caller, owner, .. } = session;
    let wanted = checkpoint_of(session, dice, seq, kind);
    match dice.below(10) {
        // Two writers: one of them is refused.
        0 => {
            let (here, there) = caller.two_slots(dice);
            let other = checkpoint_of(session, dice, seq, kind);
            let both = tokio::join!(caller.ask(owner, here, wanted.clone()), caller.ask(owner, there, other));
            match both {
                (done @ Answer::Done { .. }, _) | (_, done @ Answer::Done { .. }) => done,
                (Answer::Refused { .. } | Answer::Unknown { .. }, _) => caller.insist(owner, dice, wanted, None).await,
            }
        }
        // One writer, twice at once.
        1 => {
            let (here, there) = caller.two_slots(dice);
            let both = tokio::join!(caller.ask(owner, here, wanted.clone()), caller.ask(owner, there, wanted.clone()));
            match both {
                (done @ Answer::Done { .. }, _) | (_, done @ Answer::Done { .. }) => done,
                (Answer::Refused { .. } | Answer::Unknown { .. }, _) => caller.insist(owner, dice, wanted, None).await,
            }
        }
        _ => caller.insist(owner, dice, wanted, None).await,
    }
}

fn checkpoint_of(session: &Session, dice: &mut Dice, event_seq: i64, kind: &str) -> Asked {
    let checkpoint_id = session.caller.name("p");
    let (sends, timers) = match kind {
        "user_message" => (u32::from(dice.percent(80)), 1 + u32::from(dice.percent(25))),
        "timer" => (u32::from(dice.percent(90)) + u32::from(dice.percent(20)), u32::from(dice.percent(93))),
        _ => (u32::from(dice.percent(40)), u32::from(dice.percent(35))),
    };
    let mut effects = Vec::new();
    for place in 0..sends {
        let content = format!("{checkpoint_id}.{place} \u{2615} about {event_seq}");
        effects.push(json!({ "type": "send_message", "payload": { "content": content } }));
    }
    for place in 0..timers {
        effects.push(timer(dice, &checkpoint_id, place));
    }
    if dice.percent(30) {
        effects.reverse();
    }
    Asked::Checkpoint { session: session.key.clone(), checkpoint_id, event_seq, effects }
}

/// Some have a name that is used again, and so are replaced.
fn timer(dice: &mut Dice, checkpoint_id: &str, place: u32) -> Value {
    let timer_id = if dice.percent(12) { "again".to_owned() } else { format!("{checkpoint_id}-t{place}") };
    let fire_at = rfc3339(definitions::ahead(dice.millis(500..4000)));
    let mut payload = json!({ "timer_id": timer_id, "fire_at": fire_at });
    if dice.percent(60) {
        payload["payload"] = json!({ "of": checkpoint_id, "at": now().timestamp_millis() });
    }
    json!({ "type": "schedule_timer", "payload": payload })
}
