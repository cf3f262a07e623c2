//! A recurrence in words.
//!
//! The words are made from the sets, not from the text, so they say what will happen even where the
//! text misleads: `*/35` is "at minutes 0 and 35", not "every 35 minutes". Where words would turn
//! into a list of numbers, the expression stands for itself.

use chrono::{DateTime, SecondsFormat, Utc};

use super::calendar::Calendar;
use super::expression::Rule;
use super::part::Part;
use super::window::Window;
use super::zone::Zone;

/// More times of day than this are told as minutes and hours.
const MAX_TIMES: u32 = 4;
/// More items than this are no longer words. All odd hours are twelve.
const MAX_ITEMS: usize = 12;
/// From three neighbours on, "9 through 17" is shorter than the list.
const SHORTEST_RUN: u32 = 3;

const EVERY_DAY: &str = "every day";
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// RFC 3339 in UTC, a fraction only if there is one.
pub(super) fn instant(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

pub(super) fn recurrence(rule: &Rule, expression: &str, zone: &Zone, window: &Window) -> String {
    let mut phrases = match rule {
        Rule::Calendar { calendar, .. } => {
            let words = calendar_words(calendar);
            let words = words.unwrap_or_else(|| {
                // On one line, however it was written.
                let fields: Vec<&str> = expression.split_ascii_whitespace().collect();
                format!("by the cron expression {}", fields.join(" "))
            });
            vec![words, zone.name().to_owned()]
        }
        // Counts real time, so its zone says nothing.
        Rule::Every(interval) => {
            let (count, unit) = interval.in_words();
            vec![every(count, unit)]
        }
    };
    phrases.extend(window.starts_at().map(|start| format!("from {}", instant(start))));
    phrases.extend(window.ends_at().map(|end| format!("before {}", instant(end))));
    phrases.join(", ")
}

fn every(count: impl Into<i64>, unit: &str) -> String {
    match count.into() {
        1 => format!("every {unit}"),
        count => format!("every {count} {unit}s"),
    }
}

/// `None` when it takes too many numbers.
fn calendar_words(calendar: &Calendar) -> Option<String> {
    let mut words = vec![time_words(calendar)?];
    let days = day_words(calendar)?;
    // "at 09:00" needs it, "every 5 minutes" does not.
    if days != EVERY_DAY || rhythm(calendar.hours, 24).is_none() {
        words.push(days);
    }
    if calendar.months != Part::Month.full() {
        let months = items(calendar.months, |month| MONTHS[month as usize - 1].to_owned())?;
        words.push(format!("in {months}"));
    }
    Some(words.join(" "))
}

fn time_words(calendar: &Calendar) -> Option<String> {
    let (minutes, hours) = (calendar.minutes, calendar.hours);
    if minutes.count_ones() * hours.count_ones() <= MAX_TIMES {
        let times = values(hours).flat_map(|hour| values(minutes).map(move |minute| format!("{hour:02}:{minute:02}")));
        return Some(format!("at {}", list(&times.collect::<Vec<_>>())));
    }
    let minute_rhythm = rhythm(minutes, 60).map(|step| every(step, "minute"));
    let hour_rhythm = rhythm(hours, 24);
    Some(match (minute_rhythm, hour_rhythm) {
        (Some(minute_words), Some(1)) => minute_words,
        (Some(minute_words), Some(_) | None) => {
            format!("{minute_words} of {}", counted("hour", hours)?)
        }
        (None, Some(step)) => format!("{} at {}", every(step, "hour"), counted("minute", minutes)?),
        (None, None) => format!("at {} of {}", counted("minute", minutes)?, counted("hour", hours)?),
    })
}

fn day_words(calendar: &Calendar) -> Option<String> {
    let any_day = calendar.days == Part::DayOfMonth.full();
    let any_weekday = calendar.weekdays == Part::DayOfWeek.full();
    let days = || Some(format!("on {} of the month", counted("day", calendar.days)?));
    let weekdays = || {
        let names = items(monday_first(calendar.weekdays), |day| WEEKDAYS[day as usize].to_owned());
        Some(format!("on {}", names?))
    };
    match (any_day, any_weekday) {
        (true, true) => Some(EVERY_DAY.to_owned()),
        // Restricted in the text, yet to every value: with OR each day matches.
        (true, false) | (false, true) if calendar.either_day => Some(EVERY_DAY.to_owned()),
        (true, false) => weekdays(),
        (false, true) => days(),
        (false, false) => Some(format!("{} or {}", days()?, weekdays()?)),
    }
}

/// Bit 0 becomes Monday: people end their weeks with the weekend.
fn monday_first(weekdays: u64) -> u64 {
    weekdays >> 1 | (weekdays & 1) << 6
}

/// The step, if the set goes on evenly for ever: it starts at 0 and the step divides the circle. A
/// single value is no rhythm.
fn rhythm(set: u64, circle: u32) -> Option<u32> {
    let step = circle / set.count_ones();
    let even =
        circle.is_multiple_of(step) && (0..circle).all(|value| (set >> value & 1 == 1) == value.is_multiple_of(step));
    (even && step < circle).then_some(step)
}

/// "hour 9", "hours 9 through 17".
fn counted(noun: &str, set: u64) -> Option<String> {
    let plural = if set.count_ones() > 1 { "s" } else { "" };
    Some(format!("{noun}{plural} {}", items(set, |value| value.to_string())?))
}

fn values(set: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |value| set >> value & 1 == 1)
}

/// The values of a set, runs drawn together; `None` when they are too many to read.
fn items(set: u64, name: impl Fn(u32) -> String) -> Option<String> {
    let mut found = Vec::new();
    let mut rest = set;
    while rest != 0 {
        let first = rest.trailing_zeros();
        let length = (rest >> first).trailing_ones();
        let last = first + length - 1;
        if length >= SHORTEST_RUN {
            found.push(format!("{} through {}", name(first), name(last)));
        } else {
            found.extend((first..=last).map(&name));
        }
        // No set reaches bit 63, so the shift stays below the width.
        rest &= u64::MAX << (last + 1);
    }
    (found.len() <= MAX_ITEMS).then(|| list(&found))
}

fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [only] => only.clone(),
        [front @ .., last] => format!("{} and {last}", front.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::laws::at;
    use super::super::{Recurrence, Schedule};
    use super::*;

    fn words(expression: &str, zone: &str) -> String {
        let window = Window::new(at("2026-01-01T00:00:00Z"), None, None);
        Recurrence::parse(expression, Zone::parse(zone).unwrap(), window).unwrap().describe()
    }

    #[test]
    fn common_schedules_read_like_sentences() {
        for (expression, expected) in [
            ("0 9 * * MON-FRI", "at 09:00 on Monday through Friday, UTC"),
            ("@daily", "at 00:00 every day, UTC"),
            ("@hourly", "every hour at minute 0, UTC"),
            ("@weekly", "at 00:00 on Sunday, UTC"),
            ("@monthly", "at 00:00 on day 1 of the month, UTC"),
            ("@yearly", "at 00:00 on day 1 of the month in January, UTC"),
            ("* * * * *", "every minute, UTC"),
            ("*/5 * * * *", "every 5 minutes, UTC"),
            ("0,15,30,45 * * * *", "every 15 minutes, UTC"),
            ("30 */2 * * *", "every 2 hours at minute 30, UTC"),
            ("0 9,17 * * *", "at 09:00 and 17:00 every day, UTC"),
            ("*/10 9-17 * * 1-5", "every 10 minutes of hours 9 through 17 on Monday through Friday, UTC"),
            ("0 9-17 * * *", "at minute 0 of hours 9 through 17 every day, UTC"),
            ("0 0 1,15 * *", "at 00:00 on days 1 and 15 of the month, UTC"),
            ("0 8 13 * FRI", "at 08:00 on day 13 of the month or on Friday, UTC"),
            ("0 8 * 6-8 SAT,SUN", "at 08:00 on Saturday and Sunday in June through August, UTC"),
            ("@every 90s", "every 90 seconds"),
            ("@every 90m", "every 90 minutes"),
            ("@every 1h", "every hour"),
        ] {
            assert_eq!(words(expression, "UTC"), expected, "{expression}");
        }
        assert!(words("0 9 * * *", "America/New_York").ends_with(", America/New_York"));
    }

    #[test]
    fn a_step_that_does_not_divide_the_hour_is_not_called_a_rhythm() {
        assert_eq!(words("*/35 * * * *", "UTC"), "every hour at minutes 0 and 35, UTC");
        assert_eq!(words("0 */5 * * *", "UTC"), "at minute 0 of hours 0, 5, 10, 15 and 20 every day, UTC");
        assert_eq!(words("0 0 */1 * MON", "UTC"), "at 00:00 every day, UTC");
    }

    #[test]
    fn what_words_cannot_hold_is_told_by_its_expression() {
        let odd = "1-59/2 9 * * *";
        assert_eq!(words(odd, "Asia/Tokyo"), format!("by the cron expression {odd}, Asia/Tokyo"));
    }

    #[test]
    fn a_window_is_part_of_the_description() {
        let window = Window::new(
            at("2026-01-01T00:00:00Z"),
            Some(at("2026-02-01T00:00:00Z")),
            Some(at("2026-03-01T00:00:00.5Z")),
        );
        let daily = Recurrence::parse("0 9 * * *", Zone::utc(), window).unwrap();
        let expected = "at 09:00 every day, UTC, from 2026-02-01T00:00:00Z, before 2026-03-01T00:00:00.500Z";
        assert_eq!(Schedule::Cron(daily).describe(), expected);
    }
}
