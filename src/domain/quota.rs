//! How much an agent may ask for. The same for every door; the counting is done where the alarms are.

use chrono::{DateTime, TimeDelta, Utc};
use thiserror::Error;

use super::schedule::Schedule;

/// `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// How many alarms may be active or paused at once. A paused one keeps its place: resuming is never refused.
    pub max_active_alarms: Option<u32>,
    /// The least time between two slots of a series.
    pub min_interval_seconds: Option<u32>,
}

/// What was asked for is more than the agent may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Exceeded {
    #[error(
        "the agent may have {limit} alarms that are active or paused, and has {used}; cancel one, or ask whoever enrolled the agent for more"
    )]
    ActiveAlarms { limit: u32, used: u64 },
    #[error(
        "the schedule fires every {found} s at its fastest, and the agent's alarms may fire every {limit} s at most; make it slower, or ask whoever enrolled the agent for a shorter interval"
    )]
    Interval { limit: u32, found: i64 },
}

impl Quotas {
    /// Whether one alarm more may be active, beside `used` others.
    pub fn admit_one_more(&self, used: u64) -> Result<(), Exceeded> {
        match self.max_active_alarms {
            Some(limit) if used >= u64::from(limit) => Err(Exceeded::ActiveAlarms { limit, used }),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether the schedule is slow enough from `now` on. One instant is no series.
    pub fn admit_schedule(&self, schedule: &Schedule, now: DateTime<Utc>) -> Result<(), Exceeded> {
        let (Some(limit), Some(period)) = (self.min_interval_seconds, schedule.period(now)) else { return Ok(()) };
        if period >= TimeDelta::seconds(i64::from(limit)) {
            return Ok(());
        }
        Err(Exceeded::Interval { limit, found: period.num_seconds() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::schedule::{Recurrence, Window, Zone};

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn the_last_place_can_be_had_and_no_more() {
        let quotas = Quotas { max_active_alarms: Some(3), min_interval_seconds: None };
        assert_eq!(quotas.admit_one_more(2), Ok(()));
        assert_eq!(quotas.admit_one_more(3), Err(Exceeded::ActiveAlarms { limit: 3, used: 3 }));
        // A limit lowered later: what is there stays.
        assert_eq!(quotas.admit_one_more(5), Err(Exceeded::ActiveAlarms { limit: 3, used: 5 }));
        assert_eq!(Quotas::default().admit_one_more(u64::MAX), Ok(()));
        let none = Quotas { max_active_alarms: Some(0), ..quotas };
        assert_eq!(none.admit_one_more(0), Err(Exceeded::ActiveAlarms { limit: 0, used: 0 }));
    }

    #[test]
    fn a_series_may_be_as_fast_as_its_fastest_two_slots_allow() {
        let quotas = Quotas { max_active_alarms: None, min_interval_seconds: Some(300) };
        let now = at("2026-11-16T12:00:00Z");
        let cron = |expression: &str| {
            Schedule::Cron(Recurrence::parse(expression, Zone::utc(), Window::new(now, None, None)).unwrap())
        };
        assert_eq!(quotas.admit_schedule(&cron("*/5 * * * *"), now), Ok(()));
        let found = quotas.admit_schedule(&cron("0,4 9 * * *"), now);
        assert_eq!(found, Err(Exceeded::Interval { limit: 300, found: 240 }));
        assert_eq!(quotas.admit_schedule(&Schedule::Once { fire_at: now }, now), Ok(()));
        assert_eq!(Quotas::default().admit_schedule(&cron("@every 1s"), now), Ok(()));
    }
}
