//! From what somebody wrote, over HTTP or as YAML, to what chronos relies on. The one place that says what a field may
//! hold, so that both front doors refuse the same things in the same words.

use chrono::{DateTime, TimeDelta, Utc};

use super::{Definition, Kind, Misfire, Timing};
use crate::domain::{
    invalid::{Invalid, check_key, check_range, check_text, parse_instant, quoted},
    labels::{self, Labels},
    payload::Payload,
    rfc3339,
    schedule::{self, Recurrence, Schedule, Window, Zone},
};

/// Caps in bytes, as the schema's CHECK has them.
pub const LABEL_CAP: usize = 256;
pub const MESSAGE_CAP: usize = 32 * 1024;
pub const MAX_FAILURES_CAP: i64 = 100;
/// Zone rules and cron years end here.
const LAST_INSTANT: &str = "2100-12-31T23:59:59.999999Z";
/// 8760 h × 75: longer than any delay that could still end before the last year. It keeps the sum below from overflowing.
pub const LONGEST_DELAY_SECONDS: i64 = 75 * 8760 * 3600;
/// A spread of more than a year has no series to spread over.
pub const LONGEST_SPREAD_SECONDS: i64 = 8760 * 3600;

/// What somebody wrote. Absent texts are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// Said over HTTP; in a resource it follows from the schedule.
    pub kind: Option<Kind>,
    pub label: String,
    pub labels: Labels,
    /// RFC 3339 with an offset.
    pub fire_at: Option<String>,
    pub delay_seconds: Option<i64>,
    pub cron_expr: Option<String>,
    pub timezone: Option<String>,
    pub starts_at: Option<String>,
    pub ends_at: Option<String>,
    pub spread_seconds: Option<i64>,
    pub misfire: Option<String>,
    pub max_lateness_seconds: Option<i64>,
    pub conversation_id: String,
    pub wake_message: String,
    /// JSON text, verbatim.
    pub payload: Option<String>,
    pub max_failures: Option<i64>,
}

/// Which instant counts for what, and what is taken where a draft is silent.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// An `@every` without a start counts from here.
    pub born_at: DateTime<Utc>,
    /// `delay_seconds` counts from here: the birth, or the edit that gives it.
    pub delays_from: DateTime<Utc>,
    pub max_failures: u32,
}

impl Draft {
    /// A definition as somebody would have written it.
    pub fn of(definition: &Definition) -> Self {
        let timing = &definition.timing;
        let (fire_at, recurrence) = match &timing.schedule {
            Schedule::Once { fire_at } => (Some(rfc3339(*fire_at)), None),
            Schedule::Cron(recurrence) => (None, Some(recurrence)),
        };
        let window = recurrence.map(Recurrence::window);
        Self {
            kind: Some(timing.schedule.kind()),
            label: definition.label.clone(),
            labels: definition.labels.clone(),
            fire_at,
            delay_seconds: None,
            cron_expr: recurrence.map(|recurrence| recurrence.expression().to_owned()),
            timezone: recurrence.map(|recurrence| recurrence.zone().name().to_owned()),
            starts_at: window.and_then(Window::starts_at).map(rfc3339),
            ends_at: window.and_then(Window::ends_at).map(rfc3339),
            spread_seconds: recurrence.map(|_| timing.spread.num_seconds()),
            misfire: Some(timing.misfire.as_str().to_owned()),
            max_lateness_seconds: timing.max_lateness.map(|lateness| lateness.num_seconds()),
            conversation_id: definition.conversation_id.clone(),
            wake_message: definition.wake_message.clone(),
            payload: Some(definition.payload.as_str().to_owned()),
            max_failures: Some(i64::from(definition.max_failures)),
        }
    }

    /// Every problem at once, so that nobody mends one only to meet the next.
    pub fn define(self, defaults: Defaults) -> Result<Definition, Vec<Invalid>> {
        let mut invalid = Vec::new();
        check_text(&mut invalid, "label", &self.label, LABEL_CAP);
        labels::check(&mut invalid, &self.labels);
        check_key(&mut invalid, "conversation_id", &self.conversation_id);
        check_text(&mut invalid, "wake_message", &self.wake_message, MESSAGE_CAP);
        if self.wake_message.trim().is_empty() {
            let remedy = "say what the agent should do when it wakes";
            invalid.push(Invalid::new("wake_message", "is missing or empty", remedy));
        }
        let payload = self.checked_payload(&mut invalid);
        let max_failures = self.max_failures.map_or(defaults.max_failures, |number| {
            let number = check_range(&mut invalid, "max_failures", number, 0..=MAX_FAILURES_CAP);
            u32::try_from(number).unwrap_or(0)
        });
        match self.checked_timing(&mut invalid, defaults) {
            Some(timing) if invalid.is_empty() => Ok(Definition {
                label: self.label,
                labels: self.labels,
                timing,
                conversation_id: self.conversation_id,
                wake_message: self.wake_message,
                payload,
                max_failures,
            }),
            Some(_) | None => Err(invalid),
        }
    }

    /// When it would fire, whatever else it says. Every problem at once.
    pub fn timing(&self, defaults: Defaults) -> Result<Timing, Vec<Invalid>> {
        let mut invalid = Vec::new();
        let timing = self.checked_timing(&mut invalid, defaults);
        timing.filter(|_| invalid.is_empty()).ok_or(invalid)
    }

    /// `None` after pushing at least one problem.
    fn checked_timing(&self, invalid: &mut Vec<Invalid>, defaults: Defaults) -> Option<Timing> {
        let misfire = self.checked_misfire(invalid);
        let max_lateness = self.max_lateness_seconds.map(|seconds| {
            let range = 1..=LONGEST_DELAY_SECONDS;
            TimeDelta::seconds(check_range(invalid, "max_lateness_seconds", seconds, range))
        });
        let spread = self.spread_seconds.unwrap_or(0);
        let spread = check_range(invalid, "spread_seconds", spread, 0..=LONGEST_SPREAD_SECONDS);
        let schedule = self.checked_schedule(invalid, defaults)?;
        Some(Timing { schedule, spread: TimeDelta::seconds(spread), misfire, max_lateness })
    }

    fn checked_payload(&self, invalid: &mut Vec<Invalid>) -> Payload {
        match self.payload.clone() {
            None => Payload::default(),
            // null counts as absent.
            Some(text) if text.trim() == "null" => Payload::default(),
            Some(text) => Payload::parse(text).unwrap_or_else(|error| {
                invalid.push(Invalid::new("payload", error.to_string(), error.remedy()));
                Payload::default()
            }),
        }
    }

    fn checked_misfire(&self, invalid: &mut Vec<Invalid>) -> Misfire {
        let Some(word) = self.misfire.clone() else { return Misfire::FireOnce };
        Misfire::try_from(word.clone()).unwrap_or_else(|_| {
            let known: Vec<_> = Misfire::ALL.iter().map(|policy| policy.as_str()).collect();
            let problem = format!("is {}", quoted(&word));
            invalid.push(Invalid::new("misfire", problem, format!("give one of {}", known.join(", "))));
            Misfire::FireOnce
        })
    }

    /// `None` after pushing at least one problem.
    fn checked_schedule(&self, invalid: &mut Vec<Invalid>, defaults: Defaults) -> Option<Schedule> {
        let foreign = self.foreign_to_kind();
        if !foreign.is_empty() {
            invalid.extend(foreign);
            return None;
        }
        if self.cron_expr.is_none() {
            // An instant carries its own offset; a name that is wrong is still a mistake somebody wants to hear of.
            if let Err(zone) = self.zone() {
                invalid.push(zone);
            }
            if self.kind != Some(Kind::Cron) {
                invalid.extend(self.foreign_to_once());
            }
        }
        match (&self.fire_at, self.delay_seconds, &self.cron_expr) {
            (Some(fire_at), None, None) => {
                instant(invalid, "fire_at", fire_at).map(|fire_at| Schedule::Once { fire_at })
            }
            (None, Some(seconds), None) => {
                let known = invalid.len();
                let seconds = check_range(invalid, "delay_seconds", seconds, 1..=LONGEST_DELAY_SECONDS);
                let fire_at = defaults.delays_from + TimeDelta::seconds(seconds);
                let fire_at = within_calendar(invalid, "delay_seconds", fire_at);
                fire_at.filter(|_| invalid.len() == known).map(|fire_at| Schedule::Once { fire_at })
            }
            (None, None, Some(expr)) => self.recurrence(invalid, expr, defaults.born_at),
            (None, None, None) => {
                let (field, remedy) = match self.kind {
                    Some(Kind::Once) => ("fire_at", "give it or delay_seconds"),
                    Some(Kind::Cron) => ("cron_expr", "give five fields, or a descriptor such as @daily"),
                    None => ("fire_at", "give exactly one of fire_at, delay_seconds and cron_expr"),
                };
                invalid.push(Invalid::new(field, "is missing", remedy));
                None
            }
            (fire_at, delay, cron) => {
                let given = [
                    fire_at.as_ref().map(|_| "fire_at"),
                    delay.map(|_| "delay_seconds"),
                    cron.as_ref().map(|_| "cron_expr"),
                ];
                let given: Vec<_> = given.into_iter().flatten().collect();
                let problem = format!("stands beside {}", given[1..].join(" and "));
                invalid.push(Invalid::new(given[0], problem, "give exactly one of them"));
                None
            }
        }
    }

    /// The fields that do not go with the kind that was said.
    fn foreign_to_kind(&self) -> Vec<Invalid> {
        let with_once = ("does not go with kind once", "give fire_at or delay_seconds instead");
        let with_cron = ("does not go with kind cron", "give cron_expr instead");
        let foreign = match self.kind {
            None => vec![],
            Some(Kind::Once) => vec![self.cron_expr.as_ref().map(|_| ("cron_expr", with_once))],
            Some(Kind::Cron) => vec![
                self.fire_at.as_ref().map(|_| ("fire_at", with_cron)),
                self.delay_seconds.map(|_| ("delay_seconds", with_cron)),
            ],
        };
        let said = |(field, (problem, remedy))| Invalid::new(field, problem, remedy);
        foreign.into_iter().flatten().map(said).collect()
    }

    /// What only a series has.
    fn foreign_to_once(&self) -> Vec<Invalid> {
        let given = [
            self.starts_at.as_ref().map(|_| "starts_at"),
            self.ends_at.as_ref().map(|_| "ends_at"),
            self.spread_seconds.filter(|seconds| *seconds != 0).map(|_| "spread_seconds"),
        ];
        let said = |field| Invalid::new(field, "goes with cron_expr only", "leave it out, or give cron_expr");
        given.into_iter().flatten().map(said).collect()
    }

    fn zone(&self) -> Result<Zone, Invalid> {
        match self.timezone.as_deref() {
            None | Some("") => Ok(Zone::utc()),
            Some(name) => Zone::parse(name).map_err(|error| refused(&error)),
        }
    }

    fn recurrence(&self, invalid: &mut Vec<Invalid>, expr: &str, born_at: DateTime<Utc>) -> Option<Schedule> {
        let known = invalid.len();
        let mut bound = |field, text: &Option<String>| text.as_ref().and_then(|text| instant(invalid, field, text));
        let (starts_at, ends_at) = (bound("starts_at", &self.starts_at), bound("ends_at", &self.ends_at));
        if let (Some(start), Some(end)) = (starts_at, ends_at)
            && end <= start
        {
            let problem = format!("is {}, not after starts_at, {}", rfc3339(end), rfc3339(start));
            invalid.push(Invalid::new("ends_at", problem, "give a later one: the first slot not fired any more"));
        }
        // Parsed in any zone, to tell about all fields at once.
        let zone = self.zone().unwrap_or_else(|zone| {
            invalid.push(zone);
            Zone::utc()
        });
        match Recurrence::parse(expr, zone, Window::new(born_at, starts_at, ends_at)) {
            Ok(recurrence) if invalid.len() == known => Some(Schedule::Cron(recurrence)),
            Ok(_) => None,
            Err(error) => {
                invalid.push(refused(&error));
                None
            }
        }
    }
}

/// The instant at which something is to happen once, given in either way, or in none.
pub fn instant_or_delay(
    fire_at: Option<&str>,
    delay_seconds: Option<i64>,
    now: DateTime<Utc>,
) -> Result<Option<DateTime<Utc>>, Vec<Invalid>> {
    if fire_at.is_none() && delay_seconds.is_none() {
        return Ok(None);
    }
    let draft = Draft { fire_at: fire_at.map(str::to_owned), delay_seconds, ..Draft::default() };
    let defaults = Defaults { born_at: now, delays_from: now, max_failures: 0 };
    draft.timing(defaults).map(|timing| match timing.schedule {
        Schedule::Once { fire_at } => Some(fire_at),
        Schedule::Cron(_) => None,
    })
}

/// A `fire_at` by itself, which may have passed.
pub fn parse_fire_at(text: &str) -> Result<DateTime<Utc>, Vec<Invalid>> {
    let mut invalid = Vec::new();
    instant(&mut invalid, "fire_at", text).ok_or(invalid)
}

fn refused(error: &schedule::Error) -> Invalid {
    Invalid::new(error.field().as_str(), error.to_string(), error.remedy())
}

pub fn instant(invalid: &mut Vec<Invalid>, field: &'static str, text: &str) -> Option<DateTime<Utc>> {
    match parse_instant(field, text) {
        Ok(instant) => within_calendar(invalid, field, instant),
        Err(told) => {
            invalid.push(told);
            None
        }
    }
}

/// Rounded to the microsecond that Postgres keeps, upwards: rounding down would wake somebody early.
pub fn within_calendar(
    invalid: &mut Vec<Invalid>,
    field: &'static str,
    instant: DateTime<Utc>,
) -> Option<DateTime<Utc>> {
    let last: DateTime<Utc> = LAST_INSTANT.parse().expect("LAST_INSTANT is an instant");
    let rounded = round_up(instant);
    if rounded > last {
        let problem = "lies after the year 2100, where the calendar of this service ends";
        invalid.push(Invalid::new(field, problem, "give an earlier one"));
        return None;
    }
    if rounded < DateTime::UNIX_EPOCH {
        let problem = "lies before the year 1970, where the calendar of this service begins";
        invalid.push(Invalid::new(field, problem, "give a later one"));
        return None;
    }
    Some(rounded)
}

/// A leap second is told as the second after it, which is when its reading ends.
fn round_up(instant: DateTime<Utc>) -> DateTime<Utc> {
    let micros = instant.timestamp_micros() + i64::from(!instant.timestamp_subsec_nanos().is_multiple_of(1000));
    DateTime::from_timestamp_micros(micros).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn born() -> Defaults {
        let born_at = "2026-11-16T12:00:00Z".parse().unwrap();
        Defaults { born_at, delays_from: born_at, max_failures: 5 }
    }

    fn draft() -> Draft {
        Draft { wake_message: "wake up".into(), ..Draft::default() }
    }

    fn fields(draft: Draft) -> Vec<&'static str> {
        draft.define(born()).unwrap_err().into_iter().map(|invalid| invalid.field).collect()
    }

    #[test]
    fn a_delay_counts_from_birth() {
        let alarm = Draft { delay_seconds: Some(600), ..draft() }.define(born()).unwrap();
        assert_eq!(alarm.timing.schedule, Schedule::Once { fire_at: "2026-11-16T12:10:00Z".parse().unwrap() });
        assert_eq!(alarm.max_failures, 5);
        assert!(alarm.payload.is_empty());
    }

    #[test]
    fn an_instant_is_rounded_up_to_what_postgres_keeps() {
        let fire_at = Some("2026-11-16T12:00:00.123456001Z".to_owned());
        let alarm = Draft { fire_at, ..draft() }.define(born()).unwrap();
        assert_eq!(alarm.timing.schedule, Schedule::Once { fire_at: "2026-11-16T12:00:00.123457Z".parse().unwrap() });
    }

    #[test]
    fn a_leap_second_is_the_second_after_it() {
        let fire_at = Some("2026-12-31T23:59:60.25Z".to_owned());
        let alarm = Draft { fire_at, ..draft() }.define(born()).unwrap();
        assert_eq!(alarm.timing.schedule, Schedule::Once { fire_at: "2027-01-01T00:00:00.25Z".parse().unwrap() });
    }

    #[test]
    fn what_only_a_series_has_is_refused_beside_an_instant() {
        let once = Draft {
            delay_seconds: Some(5),
            starts_at: Some("2026-12-01T00:00:00Z".into()),
            ends_at: Some("2026-12-02T00:00:00Z".into()),
            spread_seconds: Some(5),
            ..draft()
        };
        assert_eq!(fields(once), ["starts_at", "ends_at", "spread_seconds"]);
        let series = Draft { cron_expr: Some("@daily".into()), ..draft() };
        let backwards = Draft {
            starts_at: Some("2026-12-02T00:00:00Z".into()),
            ends_at: Some("2026-12-02T00:00:00Z".into()),
            spread_seconds: Some(-1),
            misfire: Some("never".into()),
            max_lateness_seconds: Some(0),
            ..series
        };
        assert_eq!(fields(backwards), ["misfire", "max_lateness_seconds", "spread_seconds", "ends_at"]);
    }

    #[test]
    fn exactly_one_schedule_must_be_given() {
        assert_eq!(fields(draft()), ["fire_at"]);
        let fire_at = Some("2026-11-16T12:00:00Z".to_owned());
        let both = Draft { fire_at, delay_seconds: Some(5), ..draft() };
        let problem = both.define(born()).unwrap_err().remove(0).to_string();
        assert_eq!(problem, "fire_at: stands beside delay_seconds; give exactly one of them");
        assert_eq!(
            fields(Draft { delay_seconds: Some(5), cron_expr: Some("@daily".into()), ..draft() }),
            ["delay_seconds"]
        );
    }

    #[test]
    fn a_schedule_of_another_kind_is_told_in_one_sentence() {
        let (kind, fire_at, cron_expr) = (Some(Kind::Once), Some("tomorrow".to_owned()), Some("@daily".to_owned()));
        assert_eq!(fields(Draft { kind, cron_expr: cron_expr.clone(), ..draft() }), ["cron_expr"]);
        assert_eq!(fields(Draft { kind, ..draft() }), ["fire_at"]);
        let kind = Some(Kind::Cron);
        assert_eq!(fields(Draft { kind, ..draft() }), ["cron_expr"]);
        assert_eq!(
            fields(Draft { kind, fire_at, delay_seconds: Some(5), cron_expr, ..draft() }),
            ["fire_at", "delay_seconds"]
        );
    }

    #[test]
    fn every_problem_is_told_at_once() {
        let worst = Draft {
            label: "x".repeat(257),
            cron_expr: Some("0 9 * *".into()),
            timezone: Some("Mars/Olympus".into()),
            conversation_id: "a\0b".into(),
            payload: Some("{".into()),
            max_failures: Some(101),
            ..Draft::default()
        };
        assert_eq!(
            fields(worst),
            ["label", "conversation_id", "wake_message", "payload", "max_failures", "timezone", "cron_expr"]
        );
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for seconds in [0, -1, i64::MIN, i64::MAX] {
            assert_eq!(fields(Draft { delay_seconds: Some(seconds), ..draft() }), ["delay_seconds"], "{seconds}");
        }
        for failures in [-1, 101, i64::MAX] {
            assert_eq!(
                fields(Draft { delay_seconds: Some(1), max_failures: Some(failures), ..draft() }),
                ["max_failures"]
            );
        }
        for fire_at in [
            "2101-01-01T00:00:00Z",
            "2100-12-31T23:59:59.9999999Z",
            "0000-01-01T00:00:00+23:59",
            "1969-12-31T23:59:59Z",
        ] {
            assert_eq!(fields(Draft { fire_at: Some(fire_at.into()), ..draft() }), ["fire_at"], "{fire_at}");
        }
    }
}
