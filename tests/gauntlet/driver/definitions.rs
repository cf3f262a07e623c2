//! Alarms of every sort.

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use std::time::Duration;

use super::{dice::Dice, now};
use crate::log::{Definition, Schedule};

/// So long from now, to the millisecond: every layer can say that.
pub fn ahead(wait: Duration) -> DateTime<Utc> {
    let wait = TimeDelta::from_std(wait).expect("seconds, not ages");
    (now() + wait).trunc_subsecs(3)
}

pub fn once(dice: &mut Dice, label: &str, fire_at: DateTime<Utc>) -> Definition {
    let (misfire, max_lateness_seconds) = match dice.below(20) {
        0 => (Some("skip".to_owned()), Some(dice.number(3..20))),
        1 => (Some("fire_once".to_owned()), Some(dice.number(10..40))),
        2 => (Some("fire_all".to_owned()), None),
        _ => (None, None),
    };
    let max_failures = dice.percent(12).then(|| u32::try_from(dice.below(9)).expect("less than nine"));
    Definition {
        label: label.to_owned(),
        schedule: Schedule::At(fire_at),
        message: message(dice, label),
        payload: payload(dice, label),
        misfire,
        max_lateness_seconds,
        max_failures,
        spread_seconds: None,
    }
}

pub fn series(dice: &mut Dice, label: &str) -> Definition {
    let schedule = every(dice);
    let misfire = match dice.below(20) {
        0..=1 => Some("skip"),
        2..=4 => Some("fire_all"),
        5..=9 => Some("fire_once"),
        _ => None,
    };
    let spread_seconds = match schedule {
        Schedule::Every { seconds: seconds @ 3.., .. } if dice.percent(20) => Some(dice.number(1..seconds)),
        Schedule::Every { .. } | Schedule::At(_) | Schedule::EveryMinutes(_) => None,
    };
    Definition {
        label: label.to_owned(),
        schedule,
        message: message(dice, label),
        payload: payload(dice, label),
        misfire: misfire.map(str::to_owned),
        max_lateness_seconds: dice.percent(6).then(|| dice.number(5..30)),
        max_failures: dice.percent(12).then(|| u32::try_from(dice.below(4)).expect("less than four")),
        spread_seconds,
    }
}

/// `@every 1s` to `5s`; the short ones more often.
fn every(dice: &mut Dice) -> Schedule {
    let seconds = match dice.below(20) {
        0..=4 => 1,
        5..=10 => 2,
        11..=14 => 3,
        15..=16 => 4,
        _ => 5,
    };
    let starts_at = dice.percent(12).then(|| ahead(dice.millis(500..3000)));
    Schedule::Every { seconds, starts_at }
}

/// What is said, and nothing else, is another.
pub fn other_words(dice: &mut Dice, alarm: &Definition) -> Definition {
    Definition { message: message(dice, &alarm.label), payload: payload(dice, &alarm.label), ..alarm.clone() }
}

/// Everything is another.
pub fn other(dice: &mut Dice, alarm: &Definition) -> Definition {
    match alarm.schedule {
        Schedule::At(_) => {
            let fire_at = ahead(dice.millis(500..6000));
            once(dice, &alarm.label, fire_at)
        }
        Schedule::Every { .. } => series(dice, &alarm.label),
        Schedule::EveryMinutes(minutes) => {
            let schedule = Schedule::EveryMinutes(minutes);
            Definition { schedule, spread_seconds: None, ..series(dice, &alarm.label) }
        }
    }
}

fn message(dice: &mut Dice, label: &str) -> String {
    let salt = dice.number(0..1_000_000);
    match dice.below(8) {
        0 => format!("  {label} keeps its blanks, {salt}  "),
        1 => format!("{label}: za\u{17c}\u{f3}\u{142}\u{107} \u{2615} \u{1fad6} \u{202e}abc\u{202c} {salt}"),
        2 => format!("{label} says \"{salt}\"\nin\ttwo lines \\ and a slash/"),
        3 => format!("{label}: {{\"looks\": \"like JSON\"}} <b>{salt}</b> &amp; '; --"),
        _ => format!("wake up, {label} ({salt})"),
    }
}

/// JSON texts whose spelling is easily lost.
pub fn payload(dice: &mut Dice, label: &str) -> String {
    let salt = dice.number(0..1_000_000);
    match dice.below(12) {
        0 | 1 => "{}".to_owned(),
        2 => format!("{{ \"of\" : \"{label}\" ,\n\t\"salt\":{salt} , \"empty\" : [ ] }}"),
        3 => format!("{{\"big\":1234567890123456789012{salt},\"one\":1.0,\"e\":1E+2,\"neg\":-0.0,\"of\":\"{label}\"}}"),
        4 => format!("{{\"text\":\"\\u00e9 \u{e9} \u{2615}\\u2615 \\/ \\\\ \\\" \\n\",\"salt\":{salt}}}"),
        5 => format!("{{\"a\":{{\"b\":[1,[2,[3,{{\"c\":null,\"d\":[{salt}]}}]]]}},\"z\":1,\"y\":2}}"),
        6 => format!("[1, 2,  {salt}, \"{label}\"]"),
        7 => format!("\"only a text {salt}\""),
        8 => format!("{salt}.50"),
        9 => format!("{{\"twice\":1,\"twice\":{salt}}}"),
        10 if dice.percent(20) => format!("{{\"long\":\"{}\"}}", "\u{17c} .".repeat(700)),
        _ => format!("{{\"of\":\"{label}\",\"salt\":{salt}}}"),
    }
}
