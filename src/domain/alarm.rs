//! What an alarm is. A [`Draft`] is what somebody wrote, over HTTP or as YAML; a [`Definition`] is what chronos relies
//! on. Between them stands [`Draft::define`], the one place that says what a field may hold, so that both front doors
//! refuse the same things in the same words.

use std::fmt;

use chrono::{DateTime, TimeDelta, Utc};
use thiserror::Error;

use super::{
    payload::Payload,
    schedule::{self, Recurrence, Schedule, Window, Zone},
};

/// Caps in bytes, as the schema's CHECK has them.
const LABEL_CAP: usize = 256;
const KEY_CAP: usize = 256;
const MESSAGE_CAP: usize = 32 * 1024;
pub const MAX_FAILURES_CAP: i64 = 100;
/// Zone rules and cron years end here.
const LAST_YEAR: &str = "2100-12-31T23:59:59Z";
/// 8760 h × 75: longer than any delay that could still end before the last year. It keeps the sum below from overflowing.
const LONGEST_DELAY_SECONDS: i64 = 75 * 8760 * 3600;

/// A field that cannot stand as it is: which, what is wrong, what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// The field's name over HTTP, `snake_case`.
    pub field: &'static str,
    pub problem: String,
}

impl Invalid {
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.problem)
    }
}

/// Where an alarm stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Active,
    Paused,
    Fired,
    Cancelled,
    Failed,
}

impl Status {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Fired => "fired",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }

    /// Whether it may still fire by itself.
    pub const fn is_living(self) -> bool {
        match self {
            Self::Active | Self::Paused => true,
            Self::Fired | Self::Cancelled | Self::Failed => false,
        }
    }
}

/// A word that is no status.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is no status")]
pub struct UnknownStatus(String);

impl TryFrom<String> for Status {
    type Error = UnknownStatus;

    fn try_from(text: String) -> Result<Self, UnknownStatus> {
        let all = [Self::Active, Self::Paused, Self::Fired, Self::Cancelled, Self::Failed];
        all.into_iter().find(|status| status.as_str() == text).ok_or(UnknownStatus(text))
    }
}

/// When an alarm that was just defined, or given another schedule, fires first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    At(DateTime<Utc>),
    /// Its only instant had passed before anybody asked for it: it never fires, and says so.
    Missed {
        due: DateTime<Utc>,
    },
    /// An expression without a single instant ahead: refused.
    Never,
}

impl Schedule {
    /// `accepted_from` is the earliest instant a once alarm may name: its birth, so that an alarm stored late still fires
    /// but a restored backup does not replay; or now for an edit, which never fires backwards. A series begins after `now`.
    pub fn plan(&self, now: DateTime<Utc>, accepted_from: DateTime<Utc>) -> Plan {
        match self {
            Self::Once { fire_at } if *fire_at < accepted_from => Plan::Missed { due: *fire_at },
            Self::Once { fire_at } => Plan::At(*fire_at),
            Self::Cron(recurrence) => recurrence.next_after(now).map_or(Plan::Never, Plan::At),
        }
    }

    /// What an alarm in this status does when its schedule becomes this one; `None`: it stays as it is.
    pub fn replan(&self, status: Status, now: DateTime<Utc>) -> Option<Plan> {
        match (status, self.plan(now, now)) {
            // What was cancelled stays so, whatever is edited.
            (Status::Cancelled, _) => None,
            // What is over is brought back by an instant ahead, never by one that has passed.
            (Status::Fired | Status::Failed, Plan::Missed { .. }) => None,
            (Status::Active | Status::Paused | Status::Fired | Status::Failed, plan) => Some(plan),
        }
    }
}

/// Once, or again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Once,
    Cron,
}

/// What somebody wrote. Absent texts are empty.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// Said over HTTP; in a resource it follows from the schedule.
    pub kind: Option<Kind>,
    pub label: String,
    /// RFC 3339 with an offset.
    pub fire_at: Option<String>,
    pub delay_seconds: Option<i64>,
    pub cron_expr: Option<String>,
    pub timezone: Option<String>,
    pub conversation_id: String,
    pub wake_message: String,
    /// JSON text, verbatim.
    pub payload: Option<String>,
    pub max_failures: Option<i64>,
}

/// An alarm as it is kept: every field checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    pub label: String,
    pub schedule: Schedule,
    pub conversation_id: String,
    pub wake_message: String,
    pub payload: Payload,
    pub max_failures: u32,
}

/// Which instant counts for what, and what is taken where a draft is silent.
#[derive(Clone, Copy, Debug)]
pub struct Defaults {
    /// `delay_seconds` and an unanchored `@every` count from here.
    pub born_at: DateTime<Utc>,
    pub max_failures: u32,
}

impl Draft {
    /// Every problem at once, so that nobody mends one only to meet the next.
    pub fn define(self, defaults: Defaults) -> Result<Definition, Vec<Invalid>> {
        let mut invalid = Vec::new();
        check_text(&mut invalid, "label", &self.label, LABEL_CAP);
        check_text(&mut invalid, "conversation_id", &self.conversation_id, KEY_CAP);
        check_text(&mut invalid, "wake_message", &self.wake_message, MESSAGE_CAP);
        if self.wake_message.trim().is_empty() {
            invalid
                .push(Invalid::new("wake_message", "is missing or empty; say what the agent should do when it wakes"));
        }
        let payload = match self.payload.clone() {
            None => Payload::default(),
            // null counts as absent.
            Some(text) if text.trim() == "null" => Payload::default(),
            Some(text) => Payload::parse(text).unwrap_or_else(|error| {
                invalid.push(Invalid::new("payload", error.to_string()));
                Payload::default()
            }),
        };
        let max_failures = match self.max_failures {
            None => defaults.max_failures,
            Some(number) => match u32::try_from(number) {
                Ok(within) if number <= MAX_FAILURES_CAP => within,
                Ok(_) | Err(_) => {
                    let problem = format!("is {number}; between 0 and {MAX_FAILURES_CAP} retries are possible");
                    invalid.push(Invalid::new("max_failures", problem));
                    0
                }
            },
        };
        if self.cron_expr.is_none()
            && let Err(zone) = self.zone()
        {
            // An instant carries its own offset; a name that is wrong is still a mistake somebody wants to hear of.
            invalid.push(zone);
        }
        match self.schedule(defaults.born_at) {
            Err(more) => {
                invalid.extend(more);
                Err(invalid)
            }
            Ok(_) if !invalid.is_empty() => Err(invalid),
            Ok(schedule) => Ok(Definition {
                label: self.label,
                schedule,
                conversation_id: self.conversation_id,
                wake_message: self.wake_message,
                payload,
                max_failures,
            }),
        }
    }

    fn schedule(&self, born_at: DateTime<Utc>) -> Result<Schedule, Vec<Invalid>> {
        let foreign = self.foreign_to_kind();
        if !foreign.is_empty() {
            return Err(foreign);
        }
        let missing = |field, problem| Err(vec![Invalid::new(field, problem)]);
        match (&self.fire_at, self.delay_seconds, &self.cron_expr) {
            (Some(fire_at), None, None) => once("fire_at", parse_instant("fire_at", fire_at)?),
            (None, Some(seconds), None) if (1..=LONGEST_DELAY_SECONDS).contains(&seconds) => {
                once("delay_seconds", born_at + TimeDelta::seconds(seconds))
            }
            (None, Some(seconds), None) => {
                let problem = format!("is {seconds}; a delay is between 1 and {LONGEST_DELAY_SECONDS} seconds");
                Err(vec![Invalid::new("delay_seconds", problem)])
            }
            (None, None, Some(expr)) => self.recurrence(expr, born_at),
            (None, None, None) => match self.kind {
                Some(Kind::Once) => missing("fire_at", "is missing; give it or delay_seconds"),
                Some(Kind::Cron) => {
                    missing("cron_expr", "is missing; give five fields, or a descriptor such as @daily")
                }
                None => missing("fire_at", "is missing; give exactly one of fire_at, delay_seconds and cron_expr"),
            },
            (fire_at, delay, cron) => {
                let given = [
                    fire_at.as_ref().map(|_| "fire_at"),
                    delay.map(|_| "delay_seconds"),
                    cron.as_ref().map(|_| "cron_expr"),
                ];
                let given: Vec<_> = given.into_iter().flatten().collect();
                let problem = format!("stands beside {}; give exactly one of them", given[1..].join(" and "));
                Err(vec![Invalid::new(given[0], problem)])
            }
        }
    }

    /// The fields that do not go with the kind that was said.
    fn foreign_to_kind(&self) -> Vec<Invalid> {
        let with_once = "does not go with kind once; give fire_at or delay_seconds instead";
        let with_cron = "does not go with kind cron; give cron_expr instead";
        let foreign = match self.kind {
            None => vec![],
            Some(Kind::Once) => vec![self.cron_expr.as_ref().map(|_| ("cron_expr", with_once))],
            Some(Kind::Cron) => vec![
                self.fire_at.as_ref().map(|_| ("fire_at", with_cron)),
                self.delay_seconds.map(|_| ("delay_seconds", with_cron)),
            ],
        };
        foreign.into_iter().flatten().map(|(field, problem)| Invalid::new(field, problem)).collect()
    }

    fn zone(&self) -> Result<Zone, Invalid> {
        match self.timezone.as_deref() {
            None | Some("") => Ok(Zone::utc()),
            Some(name) => Zone::parse(name).map_err(|error| refused(&error)),
        }
    }

    fn recurrence(&self, expr: &str, born_at: DateTime<Utc>) -> Result<Schedule, Vec<Invalid>> {
        let window = Window::new(born_at, None, None);
        // Parsed in any zone, to tell about both fields at once.
        let parse = |zone| Recurrence::parse(expr, zone, window).map_err(|error| refused(&error));
        match self.zone() {
            Err(zone) => Err([Some(zone), parse(Zone::utc()).err()].into_iter().flatten().collect()),
            Ok(zone) => parse(zone).map(Schedule::Cron).map_err(|error| vec![error]),
        }
    }
}

fn refused(error: &schedule::Error) -> Invalid {
    Invalid::new(error.field().as_str(), error.to_string())
}

fn once(field: &'static str, fire_at: DateTime<Utc>) -> Result<Schedule, Vec<Invalid>> {
    let last: DateTime<Utc> = LAST_YEAR.parse().expect("LAST_YEAR is an instant");
    if fire_at > last {
        return Err(vec![Invalid::new(field, "lies after the year 2100, where the calendar of this service ends")]);
    }
    Ok(Schedule::Once { fire_at: round_up(fire_at) })
}

fn parse_instant(field: &'static str, text: &str) -> Result<DateTime<Utc>, Vec<Invalid>> {
    DateTime::parse_from_rfc3339(text).map(|instant| instant.with_timezone(&Utc)).map_err(|_| {
        let problem = format!("is {text:?}; expected an instant with its offset, such as 2026-11-16T09:00:00Z");
        vec![Invalid::new(field, problem)]
    })
}

/// To the microsecond that Postgres keeps, upwards: rounding down would wake somebody early.
fn round_up(instant: DateTime<Utc>) -> DateTime<Utc> {
    let rest = instant.timestamp_subsec_nanos() % 1000;
    if rest == 0 { instant } else { instant + TimeDelta::nanoseconds(i64::from(1000 - rest)) }
}

pub fn check_text(invalid: &mut Vec<Invalid>, field: &'static str, text: &str, cap: usize) {
    if text.len() > cap {
        invalid.push(Invalid::new(field, format!("is {} bytes long; at most {cap} are kept", text.len())));
    }
    if text.contains('\0') {
        invalid.push(Invalid::new(field, "holds a NUL character, which Postgres cannot keep; leave it out"));
    }
}

/// A caller's key or id.
pub fn check_key(invalid: &mut Vec<Invalid>, field: &'static str, text: &str) {
    check_text(invalid, field, text, KEY_CAP);
}

/// Correlation ids travel in headers and logs, so they are printable ASCII.
pub fn check_correlation_id(invalid: &mut Vec<Invalid>, text: &str) {
    check_text(invalid, "correlation_id", text, KEY_CAP);
    if !text.chars().all(|c| c.is_ascii_graphic() || c == ' ') {
        invalid.push(Invalid::new("correlation_id", "holds a character that is not printable ASCII"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn born() -> Defaults {
        Defaults { born_at: "2026-11-16T12:00:00Z".parse().unwrap(), max_failures: 5 }
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
        assert_eq!(alarm.schedule, Schedule::Once { fire_at: "2026-11-16T12:10:00Z".parse().unwrap() });
        assert_eq!(alarm.max_failures, 5);
        assert!(alarm.payload.is_empty());
    }

    #[test]
    fn an_instant_is_rounded_up_to_what_postgres_keeps() {
        let fire_at = Some("2026-11-16T12:00:00.123456001Z".to_owned());
        let alarm = Draft { fire_at, ..draft() }.define(born()).unwrap();
        assert_eq!(alarm.schedule, Schedule::Once { fire_at: "2026-11-16T12:00:00.123457Z".parse().unwrap() });
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
        assert_eq!(fields(Draft { fire_at: Some("2101-01-01T00:00:00Z".into()), ..draft() }), ["fire_at"]);
    }

    #[test]
    fn an_instant_before_birth_is_missed_and_one_after_it_fires_however_late_it_is_seen() {
        let at = |text: &str| -> DateTime<Utc> { text.parse().unwrap() };
        let once = Schedule::Once { fire_at: at("2026-11-16T12:00:00Z") };
        let now = at("2026-11-16T13:00:00Z");
        assert_eq!(once.plan(now, at("2026-11-16T11:59:59Z")), Plan::At(at("2026-11-16T12:00:00Z")));
        assert_eq!(once.plan(now, at("2026-11-16T12:00:00Z")), Plan::At(at("2026-11-16T12:00:00Z")));
        assert_eq!(once.plan(now, now), Plan::Missed { due: at("2026-11-16T12:00:00Z") });
    }

    #[test]
    fn an_edit_brings_back_what_is_over_only_for_an_instant_ahead() {
        let now = born().born_at;
        let once = |fire_at: &str| Schedule::Once { fire_at: fire_at.parse().unwrap() };
        let (past, ahead) = (once("2026-11-16T11:00:00Z"), once("2026-11-16T13:00:00Z"));
        for over in [Status::Fired, Status::Failed] {
            assert_eq!(past.replan(over, now), None);
            assert_eq!(ahead.replan(over, now), Some(Plan::At("2026-11-16T13:00:00Z".parse().unwrap())));
        }
        assert_eq!(ahead.replan(Status::Cancelled, now), None);
        assert!(matches!(past.replan(Status::Active, now), Some(Plan::Missed { .. })));
    }

    #[test]
    fn a_series_begins_after_now_or_not_at_all() {
        let now = born().born_at;
        let plan = |expr: &str| {
            let alarm = Draft { cron_expr: Some(expr.into()), ..draft() }.define(born()).unwrap();
            alarm.schedule.plan(now, now)
        };
        assert_eq!(plan("0 12 * * *"), Plan::At("2026-11-17T12:00:00Z".parse().unwrap()));
        assert_eq!(plan("0 12 30 2 *"), Plan::Never);
    }
}
