//! Hints to dispatchers: an alarm is due sooner than they would look. A dispatcher sleeps until the earliest instant it has seen,
//! at most a tick. So a hint is sent only for an alarm that is due within a tick, and only if none was sent for an earlier
//! instant still ahead: whoever wakes for that one sees this one. A NOTIFY with every insert would let inserts queue up for
//! Postgres' one notification lock.
//!
//! Sent after the commit, in a statement of its own, and not again if it fails: a hint carries no truth.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::PgConnection;
use tracing::debug;

/// Channel of the hints. The payload is the wait in microseconds, from when it was sent.
pub const ALARM_DUE: &str = "chronos_alarm_due";

/// What was written at `now` may be committed this much later, and is not seen by who wakes before that.
const COMMIT_MICROS: i64 = 50_000;

/// What this process has hinted at.
#[derive(Clone, Debug)]
pub(super) struct Horizon {
    /// A dispatcher's longest sleep; `None`: no hints.
    tick: Option<TimeDelta>,
    /// The instant of the last hint, in microseconds.
    hinted: Arc<AtomicI64>,
}

impl Horizon {
    pub(super) fn new(tick: Option<Duration>) -> Self {
        let tick = tick.map(|tick| TimeDelta::from_std(tick).unwrap_or(TimeDelta::MAX));
        Self { tick, hinted: Arc::new(AtomicI64::new(i64::MIN)) }
    }

    /// Whether to send a hint for an alarm due at `due_at`, decided at about `now`; if so, it counts as sent.
    fn wants(&self, due_at: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        let Some(tick) = self.tick else { return false };
        if due_at - now > tick {
            return false;
        }
        let (due, now) = (due_at.timestamp_micros(), now.timestamp_micros());
        let hinted = self.hinted.load(Ordering::Relaxed);
        let waits_for_it = hinted > now + COMMIT_MICROS && hinted <= due;
        // Two at once may both send: one hint too many.
        if !waits_for_it {
            self.hinted.store(due, Ordering::Relaxed);
        }
        !waits_for_it
    }

    /// Says that an alarm is due at `due_at`, if nobody would look by then. `now` is about when it was written.
    pub(super) async fn hint(&self, db: &mut PgConnection, due_at: DateTime<Utc>, now: DateTime<Utc>) {
        if !self.wants(due_at, now) {
            return;
        }
        let sent =
            sqlx::query("SELECT pg_notify($1, (extract(epoch FROM $2 - clock_timestamp()) * 1000000)::bigint::text)")
                .bind(ALARM_DUE)
                .bind(due_at)
                .execute(db)
                .await;
        if let Err(error) = sent {
            debug!(%error, "a hint was not sent; the tick finds the alarm");
        }
    }
}

/// How long from now, as a hint's payload says. What is overdue is due at once.
pub fn parse(payload: &str) -> Option<Duration> {
    payload.parse::<i64>().ok().map(|micros| Duration::from_micros(micros.max(0).unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    #[test]
    fn only_what_is_due_before_anybody_would_look_is_hinted_at() {
        let horizon = Horizon::new(Some(Duration::from_secs(10)));
        assert!(!horizon.wants(at(11), at(0)), "the tick finds it");
        assert!(horizon.wants(at(5), at(0)));
        assert!(!horizon.wants(at(5), at(0)), "whoever wakes for the other sees it");
        assert!(!horizon.wants(at(7), at(1)), "and this one too");
        assert!(horizon.wants(at(3), at(1)), "sooner");
        assert!(horizon.wants(at(8), at(3)), "nobody is known to wake any more");
    }

    #[test]
    fn without_a_tick_there_are_no_hints() {
        assert!(!Horizon::new(None).wants(at(0), at(0)));
    }

    #[test]
    fn a_payload_is_a_wait_and_anything_else_is_nothing() {
        assert_eq!(parse("1500"), Some(Duration::from_micros(1500)));
        assert_eq!(parse("-7"), Some(Duration::ZERO));
        assert_eq!(parse("soon"), None);
    }
}
