//! Fire times, as `next` and `explain` show them: a line each for people, the facade's preview for programs.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::{
    domain::{
        rfc3339,
        schedule::{Fire, Schedule},
    },
    http::schedules::{Behind, views},
};

/// Local time with its offset, UTC, and a note where a clock change has a hand in it. Every column is as wide as its widest
/// entry.
pub fn lines(fires: &[Fire]) -> Vec<String> {
    let local: Vec<String> =
        fires.iter().map(|fire| fire.local.format("%a %Y-%m-%d %H:%M:%S%.f %:z").to_string()).collect();
    let utc: Vec<String> = fires.iter().map(|fire| rfc3339(fire.scheduled_for)).collect();
    let width = |column: &[String]| column.iter().map(String::len).max().unwrap_or_default();
    let (local_width, utc_width) = (width(&local), width(&utc));
    let line = |((fire, local), utc): ((&Fire, &String), &String)| {
        let note = fire.note.map(|note| note.to_string()).unwrap_or_default();
        format!("{local:local_width$}   {utc:utc_width$}   {note}").trim_end().to_owned()
    };
    fires.iter().zip(&local).zip(&utc).map(line).collect()
}

/// The `fires` of `POST /v1/schedules/preview`, by the same code. With a spread the exact instant follows from the id the alarm will get,
/// so only its bounds can be told.
pub fn json(fires: &[Fire], spread: TimeDelta) -> Value {
    let behind = if spread > TimeDelta::zero() { Behind::AtMost(spread) } else { Behind::Exactly(TimeDelta::zero()) };
    json!(views(fires, behind))
}

/// Whether it counts real time from an instant, instead of following a clock on the wall.
pub fn counts_from_anchor(schedule: &Schedule) -> bool {
    match schedule {
        Schedule::Once { .. } => false,
        Schedule::Cron(recurrence) => recurrence.is_interval(),
    }
}

/// The present, without its fraction: slots lie on whole seconds, and a fraction would only make an `@every` hard to read.
pub fn whole_second(now: DateTime<Utc>) -> DateTime<Utc> {
    now - TimeDelta::nanoseconds(i64::from(now.timestamp_subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use crate::domain::schedule::{Recurrence, Window, Zone};

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn fires(expression: &str, from: &str, n: usize) -> Vec<Fire> {
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        let recurrence = Recurrence::parse(expression, berlin, Window::new(at(from), None, None)).unwrap();
        Schedule::Cron(recurrence).preview(at(from), n)
    }

    #[test]
    fn a_fire_time_is_one_line_whose_columns_stand_under_each_other() {
        assert_eq!(
            lines(&fires("@every 1h", "2026-03-29T00:00:00.5Z", 1)),
            ["Sun 2026-03-29 03:00:00.500 +02:00   2026-03-29T01:00:00.500Z"]
        );
        assert_eq!(
            lines(&fires("30 2 * * *", "2026-03-28T00:00:00Z", 2)),
            [
                "Sat 2026-03-28 02:30:00 +01:00   2026-03-28T01:30:00Z",
                "Sun 2026-03-29 03:00:00 +02:00   2026-03-29T01:00:00Z   the clock skips 02:30; fires when it has",
            ]
        );
        assert!(lines(&[]).is_empty());
    }

    #[test]
    fn programs_get_what_the_facade_would_tell_them() {
        let fires = fires("0 9 * * *", "2026-03-28T00:00:00Z", 1);
        let sharp = json!([{
            "scheduled_for": "2026-03-28T08:00:00Z", "local": "2026-03-28T09:00:00+01:00", "note": null,
            "effective_at": "2026-03-28T08:00:00Z"
        }]);
        assert_eq!(json(&fires, TimeDelta::zero()), sharp);
        let spread = json!([{
            "scheduled_for": "2026-03-28T08:00:00Z", "local": "2026-03-28T09:00:00+01:00", "note": null,
            "effective_from": "2026-03-28T08:00:00Z", "effective_until": "2026-03-28T08:05:00Z"
        }]);
        assert_eq!(json(&fires, TimeDelta::minutes(5)), spread);
    }

    #[test]
    fn the_present_loses_its_fraction_only() {
        assert_eq!(whole_second(at("2026-03-28T08:00:00.999999999Z")), at("2026-03-28T08:00:00Z"));
        assert_eq!(whole_second(at("2026-03-28T08:00:00Z")), at("2026-03-28T08:00:00Z"));
    }
}
