//! What the driver asked for, and what it was told.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

/// A line of `calls.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum CallLine {
    /// Written before the call goes out.
    Asked {
        number: u64,
        at: DateTime<Utc>,
        /// The owner's DID.
        owner: String,
        /// The replica slot that was asked (`r1`), or `apiserver`.
        via: String,
        asked: Asked,
    },
    /// Written when the answer is here, or will not come.
    Answered { number: u64, at: DateTime<Utc>, answer: Answer },
    /// What a session's stream said.
    Heard(Frame),
}

/// A call, and what came of it.
#[derive(Clone, Debug)]
pub struct Call {
    pub number: u64,
    pub owner: String,
    pub via: String,
    pub asked_at: DateTime<Utc>,
    pub asked: Asked,
    /// `None`: the run ended before an answer came. What was asked for may have been done, at any time since.
    pub answered_at: Option<DateTime<Utc>>,
    pub answer: Answer,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// 2xx. For the facade what stands under `data`; for the API server the object.
    Done { status: u16, body: Value },
    /// 4xx: certainly not done.
    Refused { status: u16, body: Value },
    /// 5xx, a broken connection, no answer in time: done or not, nobody knows.
    Unknown { why: String },
}

/// What was asked for. `number` of the call is in the label of whatever it makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Asked {
    /// `POST /v1/agent/auth/verify`. The same nonce twice is asked on purpose: it must be taken at most once.
    Verify {
        nonce: String,
    },
    /// `POST /v1/alarms`
    Create {
        key: Option<String>,
        alarm: Definition,
    },
    /// `PUT /v1/alarms/by-key/{key}`
    Put {
        key: String,
        alarm: Definition,
    },
    /// `PATCH /v1/alarms/{id}`; `alarm` is the whole definition as it stands if it is done.
    Patch {
        id: Uuid,
        alarm: Definition,
    },
    /// `DELETE /v1/alarms/{id}`
    Cancel {
        id: Uuid,
    },
    Pause {
        id: Uuid,
    },
    Resume {
        id: Uuid,
    },
    /// `POST /v1/alarms/{id}/rearm {fire_at}`
    Rearm {
        id: Uuid,
        fire_at: DateTime<Utc>,
    },
    /// Of somebody else's alarm, or session: must be refused with 404.
    Trespass {
        on: String,
        how: Trespass,
    },
    /// Server-side apply of an Alarm resource.
    Apply {
        name: String,
        suspend: bool,
        alarm: Definition,
    },
    /// Deletes it, and waits until it is gone: `Done` means that the API server answers 404 for it.
    Delete {
        name: String,
    },
    /// `PUT /v1/service-calls/{call}`
    Register {
        call: String,
    },
    /// `PUT /v1/service-calls/{call}/timer`
    Timer {
        call: String,
        due_at: DateTime<Utc>,
        payload: String,
    },
    /// `DELETE /v1/service-calls/{call}`
    Deregister {
        call: String,
    },
    /// `POST /v1/sessions/{session}/events`; `kind` is `user_message` or `tool_result`.
    Event {
        session: String,
        id: Uuid,
        kind: String,
        payload: String,
    },
    /// `POST /v1/sessions/{session}/checkpoints`
    Checkpoint {
        session: String,
        checkpoint_id: String,
        event_seq: i64,
        effects: Vec<Value>,
    },
    /// An acknowledgement, over the stream (answered as soon as it is written) or by `POST …/effects/{id}/ack`.
    Ack {
        session: String,
        effect_id: Uuid,
        stream: bool,
    },
}

/// What nobody may do to what belongs to somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trespass {
    Look,
    Attempts,
    Edit,
    Cancel,
    Pause,
    Fire,
    /// An event into a session.
    Speak,
    LookAtSession,
}

impl Trespass {
    pub const ON_ALARMS: [Self; 6] = [Self::Look, Self::Attempts, Self::Edit, Self::Cancel, Self::Pause, Self::Fire];
    pub const ON_SESSIONS: [Self; 2] = [Self::Speak, Self::LookAtSession];
}

/// An alarm as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// Unique for each alarm ever asked for, and kept by its edits: `c17`, `k4`, the resource's name.
    pub label: String,
    pub schedule: Schedule,
    pub message: String,
    /// To the byte, as it must arrive. `{}` is left out of a wake.
    pub payload: String,
    /// `fire_once` if not given.
    pub misfire: Option<String>,
    pub max_lateness_seconds: Option<u64>,
    pub max_failures: Option<u32>,
    pub spread_seconds: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    At(DateTime<Utc>),
    /// `@every Ns`, anchored at `starts_at`, else at the row's `created_at` (HTTP) or the resource's `creationTimestamp`.
    Every {
        seconds: u64,
        starts_at: Option<DateTime<Utc>>,
    },
    /// `*/N * * * *` in UTC.
    EveryMinutes(u32),
}

/// A frame of a session's stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Frame {
    pub at: DateTime<Utc>,
    pub session: String,
    /// Counts the driver's connections.
    pub connection: u64,
    pub frame: Value,
}

/// What belongs together, in the order in which it was asked.
pub fn assemble(lines: Vec<CallLine>) -> (Vec<Call>, Vec<Frame>) {
    let (mut calls, mut frames) = (BTreeMap::new(), Vec::new());
    for line in lines {
        match line {
            CallLine::Asked { number, at, owner, via, asked } => {
                let answer = Answer::Unknown { why: "the run ended first".to_owned() };
                calls.insert(number, Call { number, owner, via, asked_at: at, asked, answered_at: None, answer });
            }
            CallLine::Answered { number, at, answer } => {
                if let Some(call) = calls.get_mut(&number) {
                    (call.answered_at, call.answer) = (Some(at), answer);
                }
            }
            CallLine::Heard(frame) => frames.push(frame),
        }
    }
    (calls.into_values().collect(), frames)
}
