//! A merge patch: what an owner wants different about an alarm. Each field is left alone, set back to its default
//! (`null`), or given another value.

use std::collections::BTreeMap;

use super::{Definition, Draft};
use crate::domain::labels::Labels;

/// What becomes of one field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Change<T> {
    #[default]
    Keep,
    /// Back to what it is when nobody says anything.
    Default,
    Set(T),
}

impl<T> Change<T> {
    fn onto(self, field: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Default => *field = None,
            Self::Set(value) => *field = Some(value),
        }
    }

    /// Another value in the same place.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Change<U> {
        match self {
            Self::Keep => Change::Keep,
            Self::Default => Change::Default,
            Self::Set(value) => Change::Set(f(value)),
        }
    }

    /// Whether anything is said about the field.
    pub const fn is_said(&self) -> bool {
        !matches!(self, Self::Keep)
    }

    const fn is_set(&self) -> bool {
        matches!(self, Self::Set(_))
    }
}

impl<T: Default> Change<T> {
    fn onto_plain(self, field: &mut T) {
        match self {
            Self::Keep => {}
            Self::Default => *field = T::default(),
            Self::Set(value) => *field = value,
        }
    }
}

/// The fields that may change. An alarm's kind is not among them: another kind is another alarm.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    pub label: Change<String>,
    /// Merged label by label; `None` takes one away.
    pub labels: Change<BTreeMap<String, Option<String>>>,
    pub fire_at: Change<String>,
    pub delay_seconds: Change<i64>,
    pub cron_expr: Change<String>,
    pub timezone: Change<String>,
    pub starts_at: Change<String>,
    pub ends_at: Change<String>,
    pub spread_seconds: Change<i64>,
    pub misfire: Change<String>,
    pub max_lateness_seconds: Change<i64>,
    pub conversation_id: Change<String>,
    pub wake_message: Change<String>,
    pub payload: Change<String>,
    pub max_failures: Change<i64>,
}

impl Changes {
    /// What the alarm would be, as a draft that is checked like any other.
    pub fn onto(self, definition: &Definition) -> Draft {
        let mut draft = Draft::of(definition);
        // The two ways to name an instant replace each other; both at once is told as what it is.
        if self.delay_seconds.is_set() && !self.fire_at.is_set() {
            draft.fire_at = None;
        }
        self.label.onto_plain(&mut draft.label);
        merge(self.labels, &mut draft.labels);
        self.fire_at.onto(&mut draft.fire_at);
        self.delay_seconds.onto(&mut draft.delay_seconds);
        self.cron_expr.onto(&mut draft.cron_expr);
        self.timezone.onto(&mut draft.timezone);
        self.starts_at.onto(&mut draft.starts_at);
        self.ends_at.onto(&mut draft.ends_at);
        self.spread_seconds.onto(&mut draft.spread_seconds);
        self.misfire.onto(&mut draft.misfire);
        self.max_lateness_seconds.onto(&mut draft.max_lateness_seconds);
        self.conversation_id.onto_plain(&mut draft.conversation_id);
        self.wake_message.onto_plain(&mut draft.wake_message);
        self.payload.onto(&mut draft.payload);
        self.max_failures.onto(&mut draft.max_failures);
        draft
    }
}

fn merge(changes: Change<BTreeMap<String, Option<String>>>, labels: &mut Labels) {
    match changes {
        Change::Keep => {}
        Change::Default => labels.clear(),
        Change::Set(changes) => {
            for (key, value) in changes {
                match value {
                    Some(value) => labels.insert(key, value),
                    None => labels.remove(&key),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta, Utc};

    use super::*;
    use crate::domain::{alarm::Defaults, schedule::Schedule};

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn defaults() -> Defaults {
        let (born_at, delays_from) = (at("2026-11-16T12:00:00Z"), at("2026-11-16T13:00:00Z"));
        Defaults { born_at, delays_from, max_failures: 5 }
    }

    fn once() -> Definition {
        let fire_at = Some("2026-11-17T09:00:00.5Z".to_owned());
        let draft = Draft { fire_at, wake_message: "wake up".into(), max_failures: Some(2), ..Draft::default() };
        draft.define(defaults()).unwrap()
    }

    fn series() -> Definition {
        Draft {
            cron_expr: Some("@every 90s".into()),
            timezone: Some("Europe/Berlin".into()),
            ends_at: Some("2027-01-01T00:00:00.000001Z".into()),
            spread_seconds: Some(30),
            misfire: Some("skip".into()),
            max_lateness_seconds: Some(10),
            labels: Labels::from([("team".to_owned(), "ops".to_owned())]),
            payload: Some("{\"b\": 1.50}".into()),
            wake_message: "wake up".into(),
            ..Draft::default()
        }
        .define(defaults())
        .unwrap()
    }

    #[test]
    fn changing_nothing_changes_nothing() {
        for definition in [once(), series()] {
            assert_eq!(Changes::default().onto(&definition).define(defaults()), Ok(definition));
        }
    }

    #[test]
    fn a_field_is_set_or_goes_back_to_its_default() {
        let changes = Changes {
            label: Change::Set("other".into()),
            max_failures: Change::Default,
            payload: Change::Default,
            misfire: Change::Default,
            max_lateness_seconds: Change::Default,
            ..Changes::default()
        };
        let before = series();
        let after = changes.onto(&before).define(defaults()).unwrap();
        assert_eq!((after.label.as_str(), after.max_failures), ("other", 5));
        assert!(after.payload.is_empty());
        assert_eq!(after.timing.lateness_limit(), None);
        assert!(after.timing.is_same_schedule(&before.timing));
    }

    #[test]
    fn a_delay_replaces_the_instant_and_counts_from_the_edit() {
        let changes = Changes { delay_seconds: Change::Set(60), ..Changes::default() };
        let after = changes.onto(&once()).define(defaults()).unwrap();
        assert_eq!(after.timing.schedule, Schedule::Once { fire_at: at("2026-11-16T13:01:00Z") });
        let both = Changes {
            delay_seconds: Change::Set(60),
            fire_at: Change::Set("2026-11-18T09:00:00Z".into()),
            ..Changes::default()
        };
        assert_eq!(both.onto(&once()).define(defaults()).unwrap_err()[0].field, "fire_at");
    }

    #[test]
    fn another_zone_or_spread_is_another_schedule_and_an_every_keeps_its_anchor() {
        let before = series();
        for changes in [
            Changes { timezone: Change::Default, ..Changes::default() },
            Changes { spread_seconds: Change::Set(31), ..Changes::default() },
            Changes { starts_at: Change::Set("2026-12-01T00:00:00Z".into()), ..Changes::default() },
        ] {
            let after = changes.onto(&before).define(defaults()).unwrap();
            assert!(!after.timing.is_same_schedule(&before.timing), "{after:?}");
        }
        let faster = Changes { cron_expr: Change::Set("@every 60s".into()), ..Changes::default() };
        let faster = faster.onto(&before).define(defaults()).unwrap();
        let next = faster.timing.schedule.next_after(at("2026-11-16T13:00:10Z"));
        assert_eq!(next, Some(defaults().born_at + TimeDelta::minutes(61)));
    }

    #[test]
    fn an_alarm_does_not_change_its_kind() {
        let changes = Changes { cron_expr: Change::Set("@daily".into()), ..Changes::default() };
        assert_eq!(changes.onto(&once()).define(defaults()).unwrap_err()[0].field, "cron_expr");
        let changes = Changes { cron_expr: Change::Default, ..Changes::default() };
        let told = changes.onto(&series()).define(defaults()).unwrap_err();
        assert_eq!(told[0].field, "cron_expr", "{told:?}");
    }

    #[test]
    fn labels_are_merged_one_by_one() {
        let patched = |labels| {
            let after = Changes { labels, ..Changes::default() }.onto(&series()).define(defaults()).unwrap();
            after.labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>()
        };
        let set = |entries: &[(&str, Option<&str>)]| {
            let owned = entries.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)));
            Change::Set(owned.collect())
        };
        assert_eq!(patched(set(&[("tier", Some("2"))])), ["team=ops", "tier=2"]);
        assert_eq!(patched(set(&[("team", None), ("tier", Some("2")), ("never", None)])), ["tier=2"]);
        assert_eq!(patched(set(&[])), ["team=ops"]);
        assert!(patched(Change::Default).is_empty());
    }
}
