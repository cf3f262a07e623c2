//! Schedules and delivery ids, computed once more and not by the code that is judged.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::log::Schedule;

/// The name space of delivery ids, spelt out.
const DELIVERIES: &[u8; 16] = b"chronos_delivery";

/// A version 5 UUID over alarm, epoch and the nominal instant in microseconds.
pub fn delivery_id(alarm: Uuid, epoch: i64, scheduled_for: DateTime<Utc>) -> Uuid {
    let name = [&alarm.as_bytes()[..], &epoch.to_be_bytes(), &scheduled_for.timestamp_micros().to_be_bytes()].concat();
    Uuid::new_v5(&Uuid::from_bytes(*DELIVERIES), &name)
}

/// As an instant is stored: rounded up to the microsecond, never early.
pub fn stored(at: DateTime<Utc>) -> DateTime<Utc> {
    let cut = DateTime::from_timestamp_micros(at.timestamp_micros()).unwrap_or(at);
    if cut < at { cut + TimeDelta::microseconds(1) } else { cut }
}

/// The slots of a series: every `step` from `anchor` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    anchor: i64,
    step: i64,
    /// Whether the anchor is a slot: of `starts_at` it is, of a creation it is not.
    starts: bool,
}

const MINUTE: i64 = 60_000_000;

impl Grid {
    /// `born_at`: the row's `created_at`. `None`: it is no series.
    pub fn of(schedule: &Schedule, born_at: DateTime<Utc>) -> Option<Self> {
        match *schedule {
            Schedule::At(_) => None,
            Schedule::Every { seconds, starts_at } => Some(Self {
                anchor: stored(starts_at.unwrap_or(born_at)).timestamp_micros(),
                step: i64::try_from(seconds).ok()?.checked_mul(1_000_000)?.max(1),
                starts: starts_at.is_some(),
            }),
            // `*/N` counts anew each hour; the drivers' N divide 60, so that it is a grid of the epoch.
            Schedule::EveryMinutes(minutes) => {
                Some(Self { anchor: 0, step: i64::from(minutes.max(1)) * MINUTE, starts: true })
            }
        }
    }

    /// The number of a slot; `None`: there is none at this instant.
    pub fn number(&self, at: DateTime<Utc>) -> Option<i64> {
        let since = at.timestamp_micros() - self.anchor;
        let first = i64::from(!self.starts);
        (since % self.step == 0 && since / self.step >= first).then_some(since / self.step)
    }

    /// The number of the first slot later than this.
    pub fn after(&self, at: DateTime<Utc>) -> i64 {
        let since = at.timestamp_micros() - self.anchor;
        (since.div_euclid(self.step) + 1).max(i64::from(!self.starts))
    }

    pub fn at(&self, number: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_micros(self.anchor + number * self.step).unwrap_or_default()
    }
}
