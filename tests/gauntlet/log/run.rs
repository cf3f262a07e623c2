//! What a run was, and how it stood at its end.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Kind;

/// `run.json`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    pub seed: u64,
    pub faults: usize,
    /// Each of these must strike, or the run is invalid.
    pub kinds: Vec<Kind>,
    /// `leader` or `active`.
    pub mode: String,
    pub mutant: Option<String>,
    pub builds: Vec<String>,
    pub lease_ms: u64,
    pub beat_ms: u64,
    pub wake_timeout_ms: u64,
    pub max_failures: u32,
    pub autonomy_max_consecutive: u32,
    pub autonomy_cooldown_ms: u64,
    pub started_at: DateTime<Utc>,
}

/// `end.json`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct End {
    /// When the last fault was over and all replicas ran.
    pub healed_at: DateTime<Utc>,
    /// When tables and resources were read. No replica ran any more.
    pub read_at: DateTime<Utc>,
    pub tables: Tables,
    /// The Alarm resources, whole.
    pub resources: Vec<Value>,
}

/// Rows as `row_to_json` writes them, all columns.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Tables {
    pub alarms: Vec<Value>,
    pub attempts: Vec<Value>,
    pub agents: Vec<Value>,
    pub service_calls: Vec<Value>,
    pub sessions: Vec<Value>,
    pub events: Vec<Value>,
    pub checkpoints: Vec<Value>,
    pub effects: Vec<Value>,
}
