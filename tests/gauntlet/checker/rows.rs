//! Rows of the tables, as far as they matter here.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use uuid::Uuid;

/// Of `alarms`.
#[derive(Clone, Debug, Deserialize)]
pub struct Row {
    pub id: Uuid,
    pub subject: String,
    pub owner_did: String,
    pub label: String,
    pub service_call_id: Option<String>,
    pub session_key: Option<String>,
    pub timer_id: Option<String>,
    pub kind: String,
    pub cron_expr: String,
    pub fire_at: Option<DateTime<Utc>>,
    pub wake_message: String,
    pub payload: Value,
    #[serde(deserialize_with = "interval")]
    pub spread_offset: TimeDelta,
    pub status: String,
    pub scheduled_for: DateTime<Utc>,
    pub series_at: Option<DateTime<Utc>>,
    pub next_fire_at: DateTime<Utc>,
    pub schedule_epoch: i64,
    pub last_error: String,
    pub fired_count: i64,
    pub missed_count: i64,
    pub claim_token: Option<Uuid>,
    pub claimed_until: Option<DateTime<Utc>>,
    pub source: String,
    pub idempotency_key: String,
    pub resource_uid: Option<Uuid>,
    pub resource_name: Option<String>,
    pub created_at: DateTime<Utc>,
}

impl Row {
    pub fn is_living(&self) -> bool {
        ["active", "paused"].contains(&self.status.as_str())
    }

    pub fn is_series(&self) -> bool {
        self.kind == "cron"
    }
}

/// Of `attempts`.
#[derive(Clone, Debug, Deserialize)]
pub struct Attempt {
    pub alarm_id: Uuid,
    pub owner_did: String,
    pub delivery_id: Option<Uuid>,
    pub scheduled_for: DateTime<Utc>,
    /// 0: a run of slots.
    pub attempt: i64,
    pub started_at: DateTime<Utc>,
    pub duration_ms: i64,
    pub outcome: String,
    pub http_status: Option<u16>,
    pub error: String,
    pub worker: Option<Uuid>,
    pub first_at: Option<DateTime<Utc>>,
    pub last_at: Option<DateTime<Utc>>,
    pub slots: Option<i64>,
    pub reason: Option<String>,
}

impl Attempt {
    /// Something was sent, or was to be.
    pub fn is_try(&self) -> bool {
        self.attempt > 0
    }

    /// What was fenced or cancelled stands beside; these moved the alarm.
    pub fn counted(&self) -> bool {
        self.is_try() && ["delivered", "retrying", "exhausted"].contains(&self.outcome.as_str())
    }

    pub fn ended_at(&self) -> DateTime<Utc> {
        self.started_at + TimeDelta::milliseconds(self.duration_ms)
    }

    /// The slots it tells the end of; `None`: it tells of a try that was not the last, or did not count.
    pub fn told(&self) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
        match self.outcome.as_str() {
            "delivered" | "exhausted" => Some((self.scheduled_for, self.scheduled_for)),
            // An occurrence that an edit overtook: a run of one, beside its attempt if that came to an end.
            "fenced" if self.is_try() => None,
            "missed" | "skipped" | "fenced" => {
                Some((self.first_at.unwrap_or(self.scheduled_for), self.last_at.unwrap_or(self.scheduled_for)))
            }
            _ => None,
        }
    }
}

/// Of `sessions`.
#[derive(Clone, Debug, Deserialize)]
pub struct Session {
    pub session_key: String,
    pub owner_did: String,
    pub last_seq: i64,
    pub last_send_seq: i64,
}

/// Of `events`.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    pub id: Uuid,
    pub session_key: String,
    pub seq: i64,
    pub r#type: String,
    pub payload: Value,
    pub created_at: DateTime<Utc>,
}

/// Of `checkpoints`.
#[derive(Clone, Debug, Deserialize)]
pub struct Checkpoint {
    pub session_key: String,
    pub checkpoint_id: String,
    pub event_seq: i64,
}

/// Of `effects`.
#[derive(Clone, Debug, Deserialize)]
pub struct Effect {
    pub id: Uuid,
    pub session_key: String,
    pub checkpoint_id: String,
    pub event_seq: i64,
    pub position: i64,
    pub r#type: String,
    pub payload: Value,
    pub dedupe_key: String,
    pub autonomous: bool,
    pub status: String,
    pub reason: Option<String>,
    pub failure_count: i64,
    pub send_seq: Option<i64>,
    pub counted_at: Option<DateTime<Utc>>,
    pub claimed_until: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
}

/// Of `service_calls`.
#[derive(Clone, Debug, Deserialize)]
pub struct ServiceCall {
    pub tenant_id: String,
    pub service_call_id: String,
}

/// `1 day 02:03:04.5`, as Postgres writes an interval.
fn interval<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TimeDelta, D::Error> {
    let text = String::deserialize(deserializer)?;
    read_interval(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is no interval")))
}

fn read_interval(text: &str) -> Option<TimeDelta> {
    let mut words = text.split_whitespace().peekable();
    let mut total = TimeDelta::zero();
    while let Some(word) = words.next() {
        if word.contains(':') {
            let mut parts = word.split(':');
            let (hours, minutes) = (parts.next()?.parse::<i64>().ok()?, parts.next()?.parse::<i64>().ok()?);
            let (seconds, fraction) = parts.next()?.split_once('.').unwrap_or((word.rsplit(':').next()?, "0"));
            let micros: i64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
            total += TimeDelta::hours(hours) + TimeDelta::minutes(minutes);
            total += TimeDelta::seconds(seconds.parse().ok()?) + TimeDelta::microseconds(micros);
        } else if words.next()?.starts_with("day") {
            total += TimeDelta::days(word.parse().ok()?);
        } else {
            return None;
        }
    }
    Some(total)
}
