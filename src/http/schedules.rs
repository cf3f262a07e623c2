//! `POST /v1/schedules/preview`: when would this fire? Nothing is stored.

use axum::extract::State;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    Facade,
    alarms::{never_fires, parse_id, passed},
    auth::Caller,
    envelope::{Body, Data},
    openapi::fields,
    problem::Problem,
};
use crate::{
    domain::{
        alarm::{Defaults, Draft, Timing, spread_offset},
        ids::AlarmId,
        invalid::{check_range, parse_instant},
        rfc3339,
        schedule::{Fire, Schedule, Zone},
    },
    store::alarms::Alarm,
};

const DEFAULT_COUNT: i64 = 5;
const MOST: i64 = 100;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PreviewRequest)]
pub struct PreviewBody {
    #[schema(schema_with = fields::cron_expr)]
    cron_expr: Option<String>,
    #[schema(schema_with = fields::fire_at)]
    fire_at: Option<String>,
    #[schema(schema_with = fields::delay_seconds)]
    delay_seconds: Option<i64>,
    #[schema(schema_with = fields::timezone)]
    timezone: Option<String>,
    #[schema(schema_with = fields::spread_seconds)]
    spread_seconds: Option<i64>,
    #[schema(schema_with = fields::starts_at)]
    starts_at: Option<String>,
    #[schema(schema_with = fields::ends_at)]
    ends_at: Option<String>,
    #[schema(schema_with = fields::preview_alarm)]
    alarm_id: Option<String>,
    #[schema(schema_with = fields::preview_from)]
    from: Option<String>,
    #[schema(schema_with = fields::preview_count)]
    n: Option<i64>,
}

#[derive(Serialize, ToSchema)]
pub struct Preview {
    /// The schedule in words.
    description: String,
    timezone: String,
    /// The version of the zone rules.
    tzdb: &'static str,
    fires: Vec<FireView>,
}

/// One slot ahead. `effective_at` where the exact instant is known, else the bounds within which it lies.
#[derive(Serialize, ToSchema)]
#[schema(as = Fire)]
pub struct FireView {
    #[schema(schema_with = fields::instant)]
    scheduled_for: String,
    /// The same instant by the zone's clock.
    #[schema(schema_with = fields::instant)]
    local: String,
    /// What a change of the clocks does to it.
    #[schema(required)]
    note: Option<String>,
    #[serde(flatten)]
    effective: Effective,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
enum Effective {
    Known {
        #[schema(schema_with = fields::instant)]
        effective_at: String,
    },
    Within {
        #[schema(schema_with = fields::instant)]
        effective_from: String,
        #[schema(schema_with = fields::instant)]
        effective_until: String,
    },
}

/// How far behind its nominal instant a slot fires.
#[derive(Clone, Copy)]
pub enum Behind {
    Exactly(TimeDelta),
    /// The offset follows from an id that nobody has yet.
    AtMost(TimeDelta),
}

/// Preview a schedule
///
/// When would this fire? The next slots of a schedule, or of an alarm, in the zone's time and in UTC, with what clock changes do to
/// them. Nothing is stored. An `@every` without `starts_at` counts from `from`.
#[utoipa::path(
    post, path = "/v1/schedules/preview", tag = "schedules", operation_id = "previewSchedule",
    request_body = PreviewBody,
    responses(
        (status = 200, description = "The slots ahead, in order.", body = Preview),
        (status = 404, description = "`alarm_id` names no alarm of the agent's."),
        (status = 409, description = "The stored schedule of the alarm cannot be read."),
    ),
)]
pub async fn preview(
    State(facade): State<Facade>,
    caller: Caller,
    Body(body): Body<PreviewBody>,
) -> Result<Data<Preview>, Problem> {
    let _turn = caller.turn().await;
    let now = caller.now;
    let alarm = match body.alarm_id.as_deref() {
        None => None,
        // A malformed id is an unknown one.
        Some(id) => Some(find(&facade, &caller, parse_id(id)).await?),
    };
    let (timing, mut fires) = body.fires(alarm.as_ref(), now)?;
    let zone = match &timing.schedule {
        // An instant has no zone of its own; it is shown as a clock in the caller's would show it.
        Schedule::Once { .. } => {
            body.timezone.as_deref().and_then(|name| Zone::parse(name).ok()).unwrap_or_else(Zone::utc)
        }
        Schedule::Cron(recurrence) => recurrence.zone().clone(),
    };
    for fire in &mut fires {
        fire.local = zone.local(fire.scheduled_for);
    }
    Ok(Data(Preview {
        description: timing.schedule.describe(),
        timezone: zone.name().to_owned(),
        tzdb: Zone::tzdb_version(),
        fires: views(&fires, behind(&timing, alarm.as_ref(), now)),
    }))
}

async fn find(facade: &Facade, caller: &Caller, id: Option<AlarmId>) -> Result<Alarm, Problem> {
    let id = id.ok_or_else(Problem::no_such_alarm)?;
    facade.store.get_if_owned(&caller.owner, id).await?.ok_or_else(Problem::no_such_alarm)
}

/// The fires as every door shows them: the facade here, `chronosd next` and `explain` with `--json`.
pub fn views(fires: &[Fire], behind: Behind) -> Vec<FireView> {
    let view = |fire: &Fire| FireView {
        scheduled_for: rfc3339(fire.scheduled_for),
        local: fire.local.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, false),
        note: fire.note.map(|note| note.to_string()),
        effective: match behind {
            Behind::Exactly(offset) => Effective::Known { effective_at: rfc3339(fire.scheduled_for + offset) },
            Behind::AtMost(window) => Effective::Within {
                effective_from: rfc3339(fire.scheduled_for),
                effective_until: rfc3339(fire.scheduled_for + window),
            },
        },
    };
    fires.iter().map(view).collect()
}

/// With a spread the exact instant follows from the alarm's id, so without one only the bounds can be told.
fn behind(timing: &Timing, alarm: Option<&Alarm>, now: DateTime<Utc>) -> Behind {
    let Schedule::Cron(recurrence) = &timing.schedule else { return Behind::Exactly(TimeDelta::zero()) };
    match alarm {
        _ if timing.spread == TimeDelta::zero() => Behind::Exactly(TimeDelta::zero()),
        // As `spread_offset` has it: never as far as the next slot.
        None => Behind::AtMost(recurrence.smallest_gap(now).map_or(timing.spread, |gap| timing.spread.min(gap))),
        // Its own schedule has its offset already; another one would get one with the edit.
        Some(alarm) if alarm.when.timing().is_ok_and(|own| own.is_same_schedule(timing)) => {
            Behind::Exactly(alarm.when.offset().unwrap_or_default())
        }
        Some(alarm) => Behind::Exactly(spread_offset(alarm.id, timing.spread, recurrence, now)),
    }
}

impl PreviewBody {
    /// What is meant, and when it fires: at least once.
    pub fn fires(&self, alarm: Option<&Alarm>, now: DateTime<Utc>) -> Result<(Timing, Vec<Fire>), Problem> {
        let (from, count) = self.range(now)?;
        let timing = self.timing(alarm, from)?;
        let fires = timing.schedule.preview(from, count);
        if fires.is_empty() { Err(self.nothing_after(&timing.schedule, from)) } else { Ok((timing, fires)) }
    }

    /// After which instant, and how many.
    fn range(&self, now: DateTime<Utc>) -> Result<(DateTime<Utc>, usize), Problem> {
        let mut invalid = Vec::new();
        let count = check_range(&mut invalid, "n", self.n.unwrap_or(DEFAULT_COUNT), 1..=MOST);
        let from = self.from.as_deref().map_or(Ok(now), |text| parse_instant("from", text));
        match from {
            Ok(from) if invalid.is_empty() => Ok((from, usize::try_from(count).unwrap_or(0))),
            Ok(_) => Err(invalid.into()),
            Err(told) => Err([invalid, vec![told]].concat().into()),
        }
    }

    /// Why there is nothing to show.
    fn nothing_after(&self, schedule: &Schedule, from: DateTime<Utc>) -> Problem {
        match (schedule, &self.from) {
            (Schedule::Once { fire_at }, None) => passed("fire_at", *fire_at, from),
            (Schedule::Cron(_), None) => never_fires(),
            (_, Some(_)) => {
                let told = format!("from is {}, and nothing fires after that; give an earlier one", rfc3339(from));
                Problem::invalid_field("from", told)
            }
        }
    }

    /// The schedule in the body, else the alarm's own.
    fn timing(&self, alarm: Option<&Alarm>, from: DateTime<Utc>) -> Result<Timing, Problem> {
        let given = self.cron_expr.is_some() || self.fire_at.is_some() || self.delay_seconds.is_some();
        if let (Some(alarm), false) = (alarm, given) {
            let beside = [
                ("timezone", self.timezone.is_some()),
                ("spread_seconds", self.spread_seconds.is_some()),
                ("starts_at", self.starts_at.is_some()),
                ("ends_at", self.ends_at.is_some()),
            ];
            if let Some((field, _)) = beside.iter().find(|(_, given)| *given) {
                let told = format!("{field} stands without a schedule; give cron_expr beside it, or leave it out");
                return Err(Problem::invalid_field(field, told));
            }
            return alarm.when.timing().map_err(|why| {
                Problem::conflict(format!("the alarm's schedule cannot be read ({why}); give it another one"))
            });
        }
        let draft = Draft {
            cron_expr: self.cron_expr.clone(),
            fire_at: self.fire_at.clone(),
            delay_seconds: self.delay_seconds,
            timezone: self.timezone.clone(),
            spread_seconds: self.spread_seconds,
            starts_at: self.starts_at.clone(),
            ends_at: self.ends_at.clone(),
            ..Draft::default()
        };
        // An `@every` without a start counts from where the preview begins; that of an alarm, from its birth.
        let born_at = alarm.map_or(from, |alarm| alarm.when.created_at);
        Ok(draft.timing(Defaults { born_at, delays_from: from, max_failures: 0 })?)
    }
}
