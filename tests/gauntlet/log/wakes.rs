//! What came to the router.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// A line of `wakes.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum WakeLine {
    /// On disk before anything is answered.
    Arrived {
        number: u64,
        at: DateTime<Utc>,
        /// The incarnation that sent it: `r1.4` is the fourth process in slot `r1`.
        replica: String,
        /// `ce-type`
        kind: String,
        /// `Idempotency-Key` or whichever header carries the delivery id; must equal the body's.
        delivery_header: String,
        /// The very bytes.
        body: String,
    },
    Reacted {
        number: u64,
        at: DateTime<Utc>,
        reaction: Reaction,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reaction {
    Status(u16),
    /// The connection was torn down.
    Reset,
}

#[derive(Clone, Debug)]
pub struct Wake {
    pub number: u64,
    pub arrived_at: DateTime<Utc>,
    pub replica: String,
    pub kind: String,
    pub delivery_header: String,
    pub body: String,
    /// `None`: nothing was answered.
    pub reaction: Option<(Reaction, DateTime<Utc>)>,
}

impl Wake {
    pub fn was_taken(&self) -> bool {
        self.reaction.is_some_and(|(reaction, _)| matches!(reaction, Reaction::Status(200..=299)))
    }
}

pub fn assemble(lines: Vec<WakeLine>) -> Vec<Wake> {
    let mut wakes = BTreeMap::new();
    for line in lines {
        match line {
            WakeLine::Arrived { number, at, replica, kind, delivery_header, body } => {
                let wake = Wake { number, arrived_at: at, replica, kind, delivery_header, body, reaction: None };
                wakes.insert(number, wake);
            }
            WakeLine::Reacted { number, at, reaction } => {
                if let Some(wake) = wakes.get_mut(&number) {
                    wake.reaction = Some((reaction, at));
                }
            }
        }
    }
    wakes.into_values().collect()
}
