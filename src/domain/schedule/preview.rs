//! The slots ahead, for people: what the clock on their wall shows then, and a word where a clock change has a hand in it.

use std::fmt;

use chrono::{DateTime, FixedOffset, NaiveDateTime, Utc};

use super::Schedule;
use super::calendar::Calendar;
use super::expression::Rule;
use super::recurrence::{INSTANT, Recurrence};

/// One slot ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fire {
    pub scheduled_for: DateTime<Utc>,
    /// As a clock in the schedule's zone shows it.
    pub local: DateTime<FixedOffset>,
    pub note: Option<Note>,
}

/// What a clock change does to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The clock leaps over the time that was meant; it fires when the leap is over.
    Skipped { meant: NaiveDateTime },
    /// The clock shows this time twice; it fires the first time only.
    FirstPass,
    /// The clock shows this time again; a rhythm fires both times.
    SecondPass,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Skipped { meant } => {
                write!(f, "the clock skips {}; fires when it has", meant.format("%H:%M"))
            }
            Self::FirstPass => f.write_str("the clock shows this time twice; fires the first time only"),
            Self::SecondPass => f.write_str("the clock shows this time twice; this is the second time"),
        }
    }
}

impl Schedule {
    /// The next `n` slots strictly later than `after`, with what people see of them.
    #[must_use]
    pub fn preview(&self, after: DateTime<Utc>, n: usize) -> Vec<Fire> {
        let fire = |scheduled_for: DateTime<Utc>| match self {
            Self::Once { .. } => Fire { scheduled_for, local: scheduled_for.fixed_offset(), note: None },
            Self::Cron(recurrence) => Fire {
                scheduled_for,
                local: recurrence.zone.local(scheduled_for),
                note: recurrence.note(scheduled_for),
            },
        };
        self.upcoming(after, n).into_iter().map(fire).collect()
    }
}

impl Recurrence {
    fn note(&self, slot: DateTime<Utc>) -> Option<Note> {
        match &self.rule {
            // Counts real time: no clock has a hand in it.
            Rule::Every(_) => None,
            Rule::Calendar { calendar, fixed } => self.note_by_calendar(calendar, *fixed, slot),
        }
    }

    fn note_by_calendar(&self, calendar: &Calendar, fixed: bool, slot: DateTime<Utc>) -> Option<Note> {
        let shown = self.zone.local(slot).naive_local();
        if calendar.count(shown, shown + INSTANT) == 0 {
            // Not a match itself, so a leap ended here, and a match within it was meant.
            let before = self.zone.local(slot - INSTANT).naive_local() + INSTANT;
            return calendar.first_from(before).map(|meant| Note::Skipped { meant });
        }
        if !self.zone.shows_twice(shown) {
            return None;
        }
        let first_pass = self.zone.first_reading(shown) == slot;
        match (fixed, first_pass) {
            (true, _) => Some(Note::FirstPass),
            (false, false) => Some(Note::SecondPass),
            (false, true) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::laws::at;
    use super::super::{Window, Zone};
    use super::*;

    fn preview(expression: &str, after: &str, n: usize) -> Vec<(String, String)> {
        let window = Window::new(at(after), None, None);
        let zone = Zone::parse("Europe/Berlin").unwrap();
        let schedule = Schedule::Cron(Recurrence::parse(expression, zone, window).unwrap());
        let told = |fire: Fire| {
            let note = fire.note.map(|note| note.to_string()).unwrap_or_default();
            (fire.local.format("%d. %H:%M %:z").to_string(), note)
        };
        schedule.preview(at(after), n).into_iter().map(told).collect()
    }

    fn told(local: &str, note: &str) -> (String, String) {
        (local.to_owned(), note.to_owned())
    }

    #[test]
    fn a_time_that_the_clock_leaps_over_says_so() {
        assert_eq!(
            preview("30 2 * * *", "2026-03-27T12:00:00Z", 3),
            [
                told("28. 02:30 +01:00", ""),
                told("29. 03:00 +02:00", "the clock skips 02:30; fires when it has"),
                told("30. 02:30 +02:00", ""),
            ]
        );
    }

    #[test]
    fn a_time_that_comes_twice_says_which_pass_fires() {
        assert_eq!(
            preview("30 2 * * *", "2026-10-24T12:00:00Z", 2),
            [
                told("25. 02:30 +02:00", "the clock shows this time twice; fires the first time only"),
                told("26. 02:30 +01:00", ""),
            ]
        );
        assert_eq!(
            preview("*/30 2 * * *", "2026-10-24T12:00:00Z", 4),
            [
                told("25. 02:00 +02:00", ""),
                told("25. 02:30 +02:00", ""),
                told("25. 02:00 +01:00", "the clock shows this time twice; this is the second time"),
                told("25. 02:30 +01:00", "the clock shows this time twice; this is the second time"),
            ]
        );
    }

    #[test]
    fn an_interval_and_an_instant_know_no_clock_changes() {
        let notes = preview("@every 30m", "2026-10-25T00:00:00Z", 6);
        assert!(notes.iter().all(|(_, note)| note.is_empty()), "{notes:?}");
        let once = Schedule::Once { fire_at: at("2026-10-25T00:30:00Z") };
        assert_eq!(once.preview(at("2026-10-25T00:00:00Z"), 5).len(), 1);
    }
}
