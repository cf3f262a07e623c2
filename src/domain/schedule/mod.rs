//! Schedules: at which instants an alarm is due.
//!
//! ```text
//! "0 9 * * MON-FRI" ──expression──▶ Rule ─┐
//! "America/New_York" ────zone────▶ Zone ──┼─▶ Recurrence ──next_after(t)──▶ the next slot
//! created, starts, ends ─────────▶ Window ┘
//! ```
//!
//! Words: a *slot* is a nominal instant at which a recurrence is due. A rule lives on the *local
//! clock*: the reading a wall clock in the zone shows, which may skip readings (a *gap*) or show
//! them twice (an *overlap*, in two *passes*). `recurrence` holds the rules for both; they are the
//! only subtle part, and its front page states them.
//!
//! Everything is parsed once and is pure afterwards: nobody's clock and nobody's time zone is
//! asked. All work is bounded, because slots exist only from 1970 to [`LAST_YEAR`]; an expression
//! such as `0 0 30 2 *` parses and never fires, and callers refuse it at creation with
//! [`Error::NoFutureInstant`].
//!
//! Files: `expression` (text to rule), `part` (one of the five fields), `calendar` (their walk over
//! local time), `interval` (`@every`), `zone` (the bundled time zone database; the only user of
//! jiff), `window`, `recurrence`, `passed` (slots that lie behind), `preview` (those ahead, for people), `describe` (in words), `error`; `laws` tests them together.

mod calendar;
mod describe;
mod error;
mod expression;
mod interval;
#[cfg(test)]
mod laws;
mod part;
mod passed;
mod preview;
mod recurrence;
mod window;
mod zone;

use std::iter;

use chrono::{DateTime, TimeDelta, Utc};

pub use calendar::LAST_YEAR;
pub use error::{Error, Field};
pub use expression::MAX_EXPRESSION_BYTES;
pub use interval::seconds_in;
pub use part::Part;
pub use passed::Run;
pub use preview::{Fire, Note};
pub use recurrence::Recurrence;
pub use window::Window;
pub use zone::{MAX_ZONE_BYTES, Zone};

use super::alarm::Kind;

/// When an alarm is due: at one instant, or again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    Once { fire_at: DateTime<Utc> },
    Cron(Recurrence),
}

impl Schedule {
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Once { .. } => Kind::Once,
            Self::Cron(_) => Kind::Cron,
        }
    }

    /// The first slot strictly later than `after`; `None` when the schedule has run out.
    #[must_use]
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        match self {
            Self::Once { fire_at } => (*fire_at > after).then_some(*fire_at),
            Self::Cron(recurrence) => recurrence.next_after(after),
        }
    }

    /// The next `n` slots strictly later than `after`, fewer if the schedule runs out.
    #[must_use]
    pub fn upcoming(&self, after: DateTime<Utc>, n: usize) -> Vec<DateTime<Utc>> {
        iter::successors(self.next_after(after), |slot| self.next_after(*slot)).take(n).collect()
    }

    /// How often it fires at most: the smallest distance between neighbours among the next slots. `None` when fewer than two
    /// are left. What a limit on the frequency of alarms is held against.
    #[must_use]
    pub fn period(&self, after: DateTime<Utc>) -> Option<TimeDelta> {
        match self {
            Self::Once { .. } => None,
            Self::Cron(recurrence) => recurrence.smallest_gap(after),
        }
    }

    /// The schedule in words, for people: "at 09:00 on Monday through Friday, Europe/Berlin".
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Once { fire_at } => format!("once at {}", describe::instant(*fire_at)),
            Self::Cron(recurrence) => recurrence.describe(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn cron(expression: &str, window: Window) -> Schedule {
        Schedule::Cron(Recurrence::parse(expression, Zone::utc(), window).unwrap())
    }

    #[test]
    fn a_once_schedule_is_due_once() {
        let once = Schedule::Once { fire_at: at("2026-03-01T12:00:00Z") };
        assert_eq!(once.upcoming(at("2026-03-01T11:59:59.999999Z"), 5), [at("2026-03-01T12:00:00Z")]);
        assert_eq!(once.next_after(at("2026-03-01T12:00:00Z")), None);
        assert_eq!(once.describe(), "once at 2026-03-01T12:00:00Z");
    }

    #[test]
    fn upcoming_stops_where_the_series_ends() {
        let created = at("2026-01-01T00:00:00Z");
        let daily = cron("0 0 * * *", Window::new(created, None, Some(at("2026-01-04T00:00:00Z"))));
        assert_eq!(daily.upcoming(created, 10), [at("2026-01-02T00:00:00Z"), at("2026-01-03T00:00:00Z")]);
        assert!(daily.upcoming(created, 0).is_empty());
    }

    #[test]
    fn the_period_is_the_shortest_time_between_two_slots() {
        let window = Window::new(at("2026-01-01T00:00:00Z"), None, None);
        let period = |schedule: &Schedule| schedule.period(at("2026-01-01T00:00:00Z")).map(|gap| gap.num_minutes());
        assert_eq!(period(&cron("0,5,30 * * * *", window)), Some(5));
        assert_eq!(period(&cron("@every 1h30m", window)), Some(90));
        assert_eq!(period(&Schedule::Once { fire_at: at("2026-03-01T12:00:00Z") }), None);
    }

    #[test]
    fn schedules_are_equal_when_text_zone_and_window_are() {
        let window = Window::new(at("2026-01-01T00:00:00Z"), None, None);
        let daily = cron("0 9 * * *", window);
        assert_eq!(daily, cron(" 0 9 * * *\n", window));
        assert_ne!(daily, cron("5 9 * * *", window));
        assert_ne!(
            daily,
            cron("0 9 * * *", Window::new(at("2026-01-01T00:00:00Z"), None, Some(at("2027-01-01T00:00:00Z"))))
        );
        let london = Recurrence::parse("0 9 * * *", Zone::parse("Europe/London").unwrap(), window).unwrap();
        assert_ne!(daily, Schedule::Cron(london));
        assert_ne!(daily, Schedule::Once { fire_at: at("2026-01-02T09:00:00Z") });
    }

    #[test]
    fn schedules_can_be_shared_between_tasks() {
        fn shared<T: Send + Sync + Clone + std::fmt::Debug + 'static>() {}
        shared::<Schedule>();
        shared::<Error>();
    }
}
