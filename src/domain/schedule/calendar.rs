//! The five fields as sets, and the walk over local time from one match to the next.
//!
//! This is plain calendar arithmetic on what a wall clock reads: it knows no zone and no clock
//! change. The walk skips by month through bit masks, so the rarest expression (29 February) and
//! the impossible one (30 February) cost little more than `* * * * *`.

use chrono::{DateTime, Datelike, Months, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Timelike, Utc};

use super::part::Part;

/// The last year with slots. A rule of today says little about the next century, and the end bounds
/// every search.
pub const LAST_YEAR: i32 = 2100;

/// No local clock reads [`LAST_YEAR`] any more: its end in UTC plus a day, which covers the -12:00
/// of the latest zone.
pub(super) const END: DateTime<Utc> =
    DateTime::from_timestamp(4_134_067_200, 0).expect("2101-01-02T00:00:00Z is an instant");

/// Bits 0, 7, 14, 21 and 28: multiplied with a week's mask it lays five weeks side by side, enough
/// for 31 days.
const FIVE_WEEKS: u64 = 1 | 1 << 7 | 1 << 14 | 1 << 21 | 1 << 28;
const DAYS_PER_WEEK: u32 = 7;
const MONTHS_PER_YEAR: u32 = 12;

/// Bit *n* of a set is the value *n*; weekdays count from Sunday, 0. No set is empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Calendar {
    pub minutes: u64,
    pub hours: u64,
    pub days: u64,
    pub months: u64,
    pub weekdays: u64,
    /// Both day fields are restricted: a day matches when either does. Otherwise the unrestricted
    /// one matches every day, and both must.
    pub either_day: bool,
}

impl Calendar {
    /// The first matching reading at or after `from`.
    pub fn first_from(&self, from: NaiveDateTime) -> Option<NaiveDateTime> {
        let from = whole_minute_from(from)?;
        let date = self.date_from(from.date())?;
        if date > from.date() {
            return Some(date.and_time(self.time_from(NaiveTime::MIN)?));
        }
        if let Some(time) = self.time_from(from.time()) {
            return Some(date.and_time(time));
        }
        let date = self.date_from(date.succ_opt()?)?;
        Some(date.and_time(self.time_from(NaiveTime::MIN)?))
    }

    /// How many readings match from `from` until before `until`. Counted by whole days, so that a year costs what a
    /// month does.
    pub fn count(&self, from: NaiveDateTime, until: NaiveDateTime) -> u64 {
        let end = NaiveDate::from_ymd_opt(LAST_YEAR + 1, 1, 1).map_or(NaiveDateTime::MAX, NaiveDateTime::from);
        let until = until.min(end);
        if until <= from {
            return 0;
        }
        // Matches before a reading on its own day, if the day matches at all.
        let on_day =
            |at: NaiveDateTime| self.days_between(at.date(), at.date().succ_opt()) * self.times_before(at.time());
        let per_day = u64::from(self.hours.count_ones() * self.minutes.count_ones());
        per_day * self.days_between(from.date(), Some(until.date())) + on_day(until) - on_day(from)
    }

    /// How many days match from `from` until before `until`.
    fn days_between(&self, from: NaiveDate, until: Option<NaiveDate>) -> u64 {
        let until = until.unwrap_or(NaiveDate::MAX);
        let mut month = from.with_day(1);
        let mut days = 0;
        while let Some(first) = month.filter(|first| *first < until) {
            if self.months >> first.month() & 1 == 1 {
                let mut matching = self.days_of_month(first);
                if first.year() == from.year() && first.month() == from.month() {
                    matching &= u64::MAX << from.day();
                }
                if first.year() == until.year() && first.month() == until.month() {
                    matching &= (1 << until.day()) - 1;
                }
                days += u64::from(matching.count_ones());
            }
            month = first.checked_add_months(Months::new(1));
        }
        days
    }

    /// How many times of day match before `time`.
    fn times_before(&self, time: NaiveTime) -> u64 {
        let below = |number: u32| (1_u64 << number) - 1;
        // A minute that has begun counts: its reading is the whole minute.
        let minute = time.minute() + u32::from(time.second() > 0 || time.nanosecond() > 0);
        let hours_before = (self.hours & below(time.hour())).count_ones();
        let this_hour = u32::try_from(self.hours >> time.hour() & 1).unwrap_or(0);
        let minutes_before = (self.minutes & below(minute)).count_ones();
        u64::from(hours_before * self.minutes.count_ones() + this_hour * minutes_before)
    }

    fn date_from(&self, from: NaiveDate) -> Option<NaiveDate> {
        let (mut year, mut month, mut day) = (from.year(), from.month(), from.day());
        while year <= LAST_YEAR {
            if self.months >> month & 1 == 1 {
                let first = NaiveDate::from_ymd_opt(year, month, 1)?;
                if let Some(day) = lowest(self.days_of_month(first), day) {
                    return first.with_day(day);
                }
            }
            day = 1;
            month += 1;
            if month > MONTHS_PER_YEAR {
                (year, month) = (year + 1, 1);
            }
        }
        None
    }

    /// The matching days of the month that begins with `first`.
    fn days_of_month(&self, first: NaiveDate) -> u64 {
        let weekday = first.weekday().num_days_from_sunday();
        let week_from_first = self.weekdays >> weekday | self.weekdays << (DAYS_PER_WEEK - weekday);
        let by_weekday = ((week_from_first & Part::DayOfWeek.full()) * FIVE_WEEKS) << 1;
        let matching = if self.either_day { self.days | by_weekday } else { self.days & by_weekday };
        let length = u32::from(first.num_days_in_month());
        matching & ((1 << (length + 1)) - 1)
    }

    /// The first matching time of day at or after `from`.
    fn time_from(&self, from: NaiveTime) -> Option<NaiveTime> {
        let hour = lowest(self.hours, from.hour())?;
        if hour == from.hour()
            && let Some(minute) = lowest(self.minutes, from.minute())
        {
            return NaiveTime::from_hms_opt(hour, minute, 0);
        }
        let hour = if hour == from.hour() { lowest(self.hours, hour + 1)? } else { hour };
        NaiveTime::from_hms_opt(hour, lowest(self.minutes, 0)?, 0)
    }
}

/// The lowest value of `set` that is at least `from`.
fn lowest(set: u64, from: u32) -> Option<u32> {
    let rest = set & (u64::MAX << from);
    (rest != 0).then(|| rest.trailing_zeros())
}

fn whole_minute_from(at: NaiveDateTime) -> Option<NaiveDateTime> {
    let floor = at.with_second(0)?.with_nanosecond(0)?;
    if floor == at { Some(at) } else { floor.checked_add_signed(TimeDelta::minutes(1)) }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use proptest::prelude::*;

    use super::super::laws::{local, rule_text};
    use super::*;

    fn calendar(text: &str) -> Calendar {
        let mut sets = text.split(' ').zip(Part::ALL).map(|(field, part)| part.parse(field).unwrap());
        let mut next = || sets.next().unwrap();
        let (minutes, hours, days, months, weekdays) = (next(), next(), next(), next(), next());
        Calendar { minutes, hours, days, months, weekdays, either_day: false }
    }

    #[test]
    fn a_match_may_be_the_very_reading_asked_for_but_not_one_a_nanosecond_earlier() {
        let nine = calendar("0 9 * * *");
        assert_eq!(nine.first_from(local("2026-05-01T09:00:00")), Some(local("2026-05-01T09:00:00")));
        assert_eq!(nine.first_from(local("2026-05-01T09:00:00.000000001")), Some(local("2026-05-02T09:00:00")));
    }

    #[test]
    fn leap_days_are_found_over_a_century_without_one() {
        let leap_day = calendar("0 0 29 2 *");
        assert_eq!(leap_day.first_from(local("2024-03-01T00:00:00")), Some(local("2028-02-29T00:00:00")));
        assert_eq!(leap_day.first_from(local("2096-03-01T00:00:00")), None);
    }

    #[test]
    fn an_impossible_date_is_never_found() {
        assert_eq!(calendar("0 0 30 2 *").first_from(local("1970-01-01T00:00:00")), None);
        assert_eq!(calendar("0 0 31 4,6,9,11 *").first_from(local("1970-01-01T00:00:00")), None);
    }

    #[test]
    fn the_last_match_is_in_the_last_year() {
        let every_minute = calendar("* * * * *");
        assert_eq!(every_minute.first_from(local("2100-12-31T23:58:30")), Some(local("2100-12-31T23:59:00")));
        assert_eq!(every_minute.first_from(local("2100-12-31T23:59:01")), None);
        assert_eq!(END.naive_utc(), local("2101-01-02T00:00:00"));
    }

    #[test]
    fn either_day_matches_when_both_are_restricted() {
        let friday_the_13th = Calendar { either_day: true, ..calendar("0 0 13 * FRI") };
        let from = local("2026-02-07T00:00:00");
        let mut found = Vec::new();
        let mut at = from;
        while let Some(next) = friday_the_13th.first_from(at).filter(|_| found.len() < 4) {
            found.push(next.date().to_string());
            at = next + TimeDelta::minutes(1);
        }
        assert_eq!(found, ["2026-02-13", "2026-02-20", "2026-02-27", "2026-03-06"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// The `cron` crate walks in another way, with ordered sets of numbers; its weekdays count
        /// from Sunday, 1, and its two day fields are AND-ed.
        #[test]
        fn the_walk_agrees_with_the_cron_crate(
            rule in rule_text(),
            second in 0_i64..4_000_000_000,
        ) {
            let fields: Vec<String> = rule.sets.iter().enumerate().map(|(index, set)| {
                let shift = u32::from(index == 4);
                let values: Vec<_> = set.iter().map(|value| (value + shift).to_string()).collect();
                values.join(",")
            }).collect();
            let theirs = cron::Schedule::from_str(&format!("0 {}", fields.join(" "))).unwrap();
            let from = DateTime::from_timestamp(second, 0).unwrap();
            let expected = theirs.after(&(from - TimeDelta::nanoseconds(1))).next();
            let found = calendar(&rule.text).first_from(from.naive_utc());
            prop_assert_eq!(found, expected.map(|at| at.naive_utc()));
        }
    }
}
