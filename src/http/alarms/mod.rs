//! `/v1/alarms`: what an agent does with its alarms.
//!
//! | file | routes |
//! |---|---|
//! | [`create`] | `POST /v1/alarms`, `PUT /v1/alarms/by-key/{idempotency_key}` |
//! | [`read`] | `GET /v1/alarms`, `GET /v1/alarms/{id}`, `GET /v1/alarms/{id}/attempts` |
//! | [`edit`] | `DELETE` and `PATCH /v1/alarms/{id}`, `POST /v1/alarms/{id}/pause`, `resume`, `fire`, `rearm` |
//! | [`bulk`] | `POST /v1/alarms/bulk` |
//! | [`body`], [`view`] | what comes in, and what goes out |
//!
//! Each parses at the edge, hands the owner to the store (which has it in the WHERE clause), and tells what came of it. An alarm
//! that a resource manages can be read and nothing else.

pub mod body;
pub mod bulk;
pub mod create;
pub mod edit;
pub mod read;
pub mod view;

use axum::{
    extract::{FromRequestParts, Path},
    http::request::Parts,
};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;

use super::{Facade, problem::Problem};
use crate::{
    domain::{ids::AlarmId, quota::Exceeded, rfc3339},
    store::alarms::Resource,
};

/// How far back a `fire_at` may lie: clocks differ and requests travel. Such an alarm is due at once.
const LATE_REQUEST: TimeDelta = TimeDelta::seconds(30);

/// The id in the path. A malformed one is an unknown one.
pub struct AlarmPath(AlarmId);

impl FromRequestParts<Facade> for AlarmPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, facade: &Facade) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, facade).await;
        path.ok().and_then(|Path(id)| parse_id(&id)).map(Self).ok_or_else(Problem::no_such_alarm)
    }
}

/// As this service writes ids, and in no other spelling: one alarm has one address.
pub(super) fn parse_id(text: &str) -> Option<AlarmId> {
    text.parse().ok().filter(|id: &AlarmId| id.to_string().eq_ignore_ascii_case(text))
}

fn managed(resource: &Resource) -> Problem {
    let Resource { namespace, name, .. } = resource;
    Problem::conflict(format!(
        "the alarm is managed by the resource Alarm {namespace}/{name}; edit or delete that (kubectl -n {namespace} edit alarm {name})"
    ))
}

/// A row that a newer or older version, or somebody's hand, has written.
fn unreadable(why: &str) -> Problem {
    Problem::conflict(format!(
        "the stored alarm cannot be read ({why}); replace it by PUT /v1/alarms/by-key/… if it has a key, or cancel it"
    ))
}

pub(super) fn passed(field: &'static str, due: DateTime<Utc>, now: DateTime<Utc>) -> Problem {
    let told =
        format!("{field} is {}, which has passed (it is {} now); give an instant ahead", rfc3339(due), rfc3339(now));
    Problem::invalid_field(field, told)
}

pub(super) fn never_fires() -> Problem {
    Problem::invalid_field(
        "cron_expr",
        "cron_expr has no instant ahead, or none between starts_at and ends_at, so it would never fire; give another expression or \
         another window",
    )
}

impl From<Exceeded> for Problem {
    fn from(exceeded: Exceeded) -> Self {
        let message = exceeded.to_string();
        match exceeded {
            Exceeded::ActiveAlarms { limit, used } => {
                let details = json!({ "quota": "max_active_alarms", "limit": limit, "use": used });
                Self::quota_exceeded(message, details, true)
            }
            Exceeded::Interval { limit, found } => {
                let details = json!({ "quota": "min_interval_seconds", "limit": limit, "use": found });
                Self::quota_exceeded(message, details, false).of_field("cron_expr")
            }
        }
    }
}
