//! `chronosd next`: when would this expression fire? Offline, by the same rules as everywhere.

use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;

use super::fires;
use crate::domain::{
    invalid::{Invalid, parse_instant},
    rfc3339,
    schedule::{self, Fire, Recurrence, Schedule, Window, Zone},
};

#[derive(Args)]
#[command(after_help = "\
Prints the schedule in words, then one line per fire: local time, UTC, and a note where a clock
change has a hand in it. With --json: a list of {scheduled_for, local, note, effective_at}.

Examples:
  chronosd next \"0 9 * * MON-FRI\" --tz America/New_York
  chronosd next \"30 2 * * *\" --tz Europe/Berlin --from 2026-03-28T00:00:00Z -n 2
  chronosd next \"@every 1h30m\" --json

Exit codes: 0 done, 1 the expression, zone or instant is wrong, 2 usage")]
pub struct Options {
    /// Five cron fields, a descriptor such as @daily, or @every 1h30m (counted from --from)
    #[arg(value_name = "EXPR")]
    expression: String,
    /// The IANA zone in which EXPR is read, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    tz: String,
    /// How many fire times, 1 to 100
    #[arg(short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100))]
    n: u8,
    /// Fire times after this instant, RFC 3339 with an offset [default: now]
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// What to print, or every problem at once.
pub fn next(options: &Options, now: DateTime<Utc>) -> Result<String, Vec<Invalid>> {
    let from = from(options.from.as_deref(), now);
    let zone = Zone::parse(&options.tz).map_err(|error| refused("--tz", &error));
    // Parsed in any zone and from any instant, to tell about everything at once.
    let (any_zone, any_instant) = (zone.clone().unwrap_or_else(|_| Zone::utc()), *from.as_ref().unwrap_or(&now));
    let parsed = Recurrence::parse(&options.expression, any_zone, Window::new(any_instant, None, None));
    let parsed = parsed.map_err(|error| refused("EXPR", &error));
    let (recurrence, zone, from) = match (parsed, zone, from) {
        (Ok(recurrence), Ok(zone), Ok(from)) => (recurrence, zone, from),
        (parsed, zone, from) => return Err([parsed.err(), zone.err(), from.err()].into_iter().flatten().collect()),
    };
    let schedule = Schedule::Cron(recurrence);
    let found = schedule.preview(from, usize::from(options.n));
    if found.is_empty() {
        return Err(vec![refused("EXPR", &schedule::Error::NoFutureInstant)]);
    }
    Ok(if options.json {
        format!("{:#}\n", fires::json(&found, TimeDelta::zero()))
    } else {
        told(&schedule, &zone, from, &found)
    })
}

fn told(schedule: &Schedule, zone: &Zone, from: DateTime<Utc>, found: &[Fire]) -> String {
    // An interval is described without a zone, since it knows none.
    let words = if fires::counts_from_anchor(schedule) {
        format!("{} from {}, shown in {}", schedule.describe(), rfc3339(from), zone.name())
    } else {
        schedule.describe()
    };
    format!("{words} (tzdb {})\n{}\n", Zone::tzdb_version(), fires::lines(found).join("\n"))
}

/// The instant after which to look. `now` only stands in where none is given.
pub fn from(given: Option<&str>, now: DateTime<Utc>) -> Result<DateTime<Utc>, Invalid> {
    let Some(text) = given else { return Ok(fires::whole_second(now)) };
    parse_instant("--from", text)
}

fn refused(argument: &'static str, error: &schedule::Error) -> Invalid {
    // Here the zone is an option.
    Invalid::new(argument, error.to_string(), error.remedy().replace("as timezone", "with --tz"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(expression: &str, tz: &str, from: Option<&str>) -> Result<String, Vec<String>> {
        let (expression, tz, from) = (expression.to_owned(), tz.to_owned(), from.map(str::to_owned));
        let options = Options { expression, tz, n: 2, from, json: false };
        let now = "2026-11-16T12:00:00.123456Z".parse().unwrap();
        next(&options, now).map_err(|invalid| invalid.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn an_interval_counts_from_the_instant_that_is_asked_about() {
        let told = ask("@every 90m", "Europe/Berlin", None).unwrap();
        let lines: Vec<_> = told.lines().collect();
        assert!(lines[0].starts_with("every 90 minutes from 2026-11-16T12:00:00Z, shown in Europe/Berlin (tzdb 20"));
        assert_eq!(lines[1], "Mon 2026-11-16 14:30:00 +01:00   2026-11-16T13:30:00Z");
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn the_instant_asked_about_is_not_a_fire_time_itself() {
        let told = ask("0 9 * * *", "UTC", Some("2026-11-16T09:00:00Z")).unwrap();
        assert!(told.lines().nth(1).unwrap().ends_with("2026-11-17T09:00:00Z"), "{told}");
    }

    #[test]
    fn every_problem_is_told_at_once() {
        let refused = ask("0 9 * *", "Berlin", Some("tomorrow")).unwrap_err();
        assert_eq!(
            refused,
            [
                "EXPR: five fields expected, got 4; write minute, hour, day of month, month and day of week, such as 0 9 \
                 * * MON-FRI",
                "--tz: unknown zone \"Berlin\"; did you mean Europe/Berlin?",
                "--from: is \"tomorrow\", which is no instant; give date, time and offset, such as 2026-11-16T09:00:00Z",
            ]
        );
    }

    #[test]
    fn what_never_fires_is_refused() {
        for (expression, from) in [
            ("0 0 30 2 *", None),
            ("@daily", Some("2100-12-31T23:59:59Z")),
            ("@every 1h", Some("9999-12-31T23:59:59Z")),
        ] {
            let refused = ask(expression, "UTC", from).unwrap_err();
            assert_eq!(refused.len(), 1, "{refused:?}");
            assert!(refused[0].starts_with("EXPR: the schedule has no future instant"), "{refused:?}");
        }
    }
}
