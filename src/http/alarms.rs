//! `/v1/alarms`: create, list, get, cancel.

use axum::{
    extract::{FromRequestParts, Path, RawQuery, State},
    http::{HeaderMap, request::Parts},
    response::IntoResponse,
};
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{
    Facade,
    auth::Caller,
    envelope::{Body, Data},
    problem::Problem,
};
use crate::{
    domain::{
        alarm::{Defaults, Definition, Draft, Kind, Plan, Slot, Status, Timing},
        ids::AlarmId,
        invalid::{Invalid, check_correlation_id, check_key, quoted},
        rfc3339,
    },
    store::alarms::{Alarm, Cancelled, Created, Filter, Request, Resource},
};

/// How far back a `fire_at` may lie: clocks differ and requests travel. Such an alarm is due at once.
const LATE_REQUEST: TimeDelta = TimeDelta::seconds(30);
const DEFAULT_PAGE: i64 = 100;
const LARGEST_PAGE: i64 = 500;
const KEY_HEADER: &str = "idempotency-key";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateBody {
    kind: String,
    label: Option<String>,
    fire_at: Option<String>,
    delay_seconds: Option<i64>,
    cron_expr: Option<String>,
    timezone: Option<String>,
    conversation_id: Option<String>,
    wake_message: Option<String>,
    payload: Option<Box<RawValue>>,
    pub idempotency_key: Option<String>,
    max_failures: Option<i64>,
    pub correlation_id: Option<String>,
}

pub async fn create(
    State(facade): State<Facade>,
    caller: Caller,
    headers: HeaderMap,
    Body(body): Body<CreateBody>,
) -> Result<impl IntoResponse, Problem> {
    let now = facade.store.now().await?;
    let key = idempotency_key(&headers, body.idempotency_key.as_deref())?;
    let correlation_id = body.correlation_id.clone().filter(|id| !id.is_empty());
    let correlation_id = correlation_id.unwrap_or_else(|| Uuid::now_v7().to_string());
    let kind = body.kind.clone();
    let defaults = Defaults { born_at: now, delays_from: now, max_failures: facade.max_failures };
    let definition = define(body, &key, &correlation_id, defaults)?;
    // In the order of their making, which is how the table's indexes like them.
    let id = AlarmId::from_uuid(Uuid::now_v7());
    let first = match first_slot(&definition.timing, id, now) {
        Ok(slot) => slot,
        // A request repeated because its answer was lost may come after its instant: the key still finds its alarm.
        Err(passed) => match facade.store.find_by_key(&caller.owner, &key).await? {
            Some(alarm) => return known(&alarm, &kind),
            None => return Err(passed),
        },
    };
    let request = Request {
        id,
        owner: &caller.owner,
        definition: &definition,
        first,
        born_at: now,
        idempotency_key: &key,
        correlation_id: &correlation_id,
    };
    match facade.store.create_or_find_by_key(&request).await? {
        Created::New(alarm) => Ok(Data(Receipt::of(&alarm, false))),
        Created::Known(alarm) => known(&alarm, &kind),
    }
}

/// A key that stands for an alarm already finds it, whatever has become of that.
fn known(alarm: &Alarm, kind: &str) -> Result<Data<Receipt>, Problem> {
    match (alarm.resource(), alarm.kind == kind) {
        (None, true) => Ok(Data(Receipt::of(alarm, true))),
        (None, false) => Err(Problem::conflict(format!(
            "idempotency_key stands for alarm {}, which is of kind {}; use another key, or cancel that one first",
            alarm.id, alarm.kind
        ))),
        (Some(resource), _) => Err(managed(&resource)),
    }
}

pub async fn list(
    State(facade): State<Facade>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<impl IntoResponse, Problem> {
    let limit = page_size(query.as_deref().unwrap_or_default())?;
    let page = facade.store.list_owned(&caller.owner, &Filter::default(), None, limit).await?;
    let alarms: Vec<View> = page.alarms.into_iter().map(View::of).collect();
    Ok(Data(List { count: alarms.len(), alarms }))
}

pub async fn get(
    State(facade): State<Facade>,
    caller: Caller,
    AlarmPath(id): AlarmPath,
) -> Result<impl IntoResponse, Problem> {
    let alarm = facade.store.get_if_owned(&caller.owner, id).await?;
    alarm.map(|alarm| Data(View::of(alarm))).ok_or_else(Problem::no_such_alarm)
}

pub async fn cancel(
    State(facade): State<Facade>,
    caller: Caller,
    AlarmPath(id): AlarmPath,
) -> Result<impl IntoResponse, Problem> {
    match facade.store.cancel_if_owned(&caller.owner, id).await? {
        Cancelled::Unknown => Err(Problem::no_such_alarm()),
        Cancelled::Managed(resource) => Err(managed(&resource)),
        Cancelled::Over { alarm, in_flight } => Ok(Data(CancelView { view: View::of(*alarm), in_flight })),
    }
}

#[derive(Serialize)]
struct List {
    alarms: Vec<View>,
    count: usize,
}

/// What creation answers.
#[derive(Serialize)]
struct Receipt {
    id: AlarmId,
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_fire_at: Option<String>,
    scheduled_for: String,
    deduped: bool,
}

impl Receipt {
    fn of(alarm: &Alarm, deduped: bool) -> Self {
        Self {
            id: alarm.id,
            status: alarm.status.as_str(),
            next_fire_at: next_fire_at(alarm),
            scheduled_for: rfc3339(alarm.scheduled_for),
            deduped,
        }
    }
}

/// An alarm as its owner sees it.
#[derive(Serialize)]
struct View {
    id: AlarmId,
    label: String,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fire_at: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    cron_expr: String,
    timezone: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_fire_at: Option<String>,
    scheduled_for: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    conversation_id: String,
    wake_message: String,
    payload: Box<RawValue>,
    status: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    idempotency_key: String,
    correlation_id: String,
    max_failures: i32,
    failure_count: i32,
    last_error: String,
    fired_count: i64,
    missed_count: i64,
    cancelled_by: Option<String>,
    source: String,
    resource: Option<ResourceView>,
    revision: i64,
    created_at: String,
    updated_at: String,
    last_fired_at: Option<String>,
}

#[derive(Serialize)]
struct ResourceView {
    cluster: Uuid,
    namespace: String,
    name: String,
}

#[derive(Serialize)]
struct CancelView {
    #[serde(flatten)]
    view: View,
    in_flight: bool,
}

impl View {
    fn of(alarm: Alarm) -> Self {
        let resource = alarm.resource();
        let resource = resource.map(|Resource { cluster, namespace, name }| ResourceView { cluster, namespace, name });
        Self {
            id: alarm.id,
            next_fire_at: next_fire_at(&alarm),
            label: alarm.label,
            kind: alarm.kind,
            fire_at: alarm.when.fire_at.map(rfc3339),
            cron_expr: alarm.when.cron_expr,
            timezone: alarm.when.timezone,
            scheduled_for: rfc3339(alarm.scheduled_for),
            conversation_id: alarm.conversation_id,
            wake_message: alarm.wake_message,
            payload: RawValue::from_string(alarm.payload).expect("column payload holds JSON"),
            status: alarm.status.as_str(),
            idempotency_key: alarm.idempotency_key,
            correlation_id: alarm.correlation_id,
            max_failures: alarm.max_failures,
            failure_count: alarm.failure_count,
            last_error: alarm.last_error,
            fired_count: alarm.fired_count,
            missed_count: alarm.missed_count,
            cancelled_by: alarm.cancelled_by,
            source: alarm.source,
            resource,
            revision: alarm.revision,
            created_at: rfc3339(alarm.when.created_at),
            updated_at: rfc3339(alarm.updated_at),
            last_fired_at: alarm.last_fired_at.map(rfc3339),
        }
    }
}

/// Only an active alarm has a next time.
fn next_fire_at(alarm: &Alarm) -> Option<String> {
    (alarm.status == Status::Active).then(|| rfc3339(alarm.next_fire_at))
}

/// The body as an alarm, or everything that is wrong with it at once. Pure.
pub fn define(body: CreateBody, key: &str, correlation_id: &str, defaults: Defaults) -> Result<Definition, Problem> {
    let mut invalid = Vec::new();
    check_key(&mut invalid, "idempotency_key", key);
    check_correlation_id(&mut invalid, correlation_id);
    match draft(body, &mut invalid).define(defaults) {
        Err(more) => Err([invalid, more].concat().into()),
        Ok(_) if !invalid.is_empty() => Err(invalid.into()),
        Ok(definition) => Ok(definition),
    }
}

/// The body as a draft.
fn draft(body: CreateBody, invalid: &mut Vec<Invalid>) -> Draft {
    let kind = match body.kind.as_str() {
        "once" => Some(Kind::Once),
        "cron" => Some(Kind::Cron),
        other => {
            invalid.push(Invalid::new("kind", format!("is {}", quoted(other)), "give once or cron"));
            None
        }
    };
    Draft {
        kind,
        label: body.label.unwrap_or_default(),
        fire_at: body.fire_at,
        delay_seconds: body.delay_seconds,
        // Views leave an empty one out; whoever sends one back means the same.
        cron_expr: body.cron_expr.filter(|expr| !expr.is_empty()),
        timezone: body.timezone,
        conversation_id: body.conversation_id.unwrap_or_default(),
        wake_message: body.wake_message.unwrap_or_default(),
        payload: body.payload.map(|raw| raw.get().to_owned()),
        max_failures: body.max_failures,
        ..Draft::default()
    }
}

fn first_slot(timing: &Timing, id: AlarmId, now: DateTime<Utc>) -> Result<Slot, Problem> {
    match timing.plan(id, now, now - LATE_REQUEST) {
        Plan::At(slot) => Ok(slot),
        Plan::Missed { due } => Err(Problem::invalid_field(
            "fire_at",
            format!(
                "fire_at is {}, which has passed (it is {} now); give an instant ahead",
                rfc3339(due),
                rfc3339(now)
            ),
        )),
        Plan::Never => Err(Problem::invalid_field(
            "cron_expr",
            "cron_expr has no instant ahead, so the alarm would never fire; give one that does",
        )),
    }
}

/// The header counts as the field.
pub fn idempotency_key(headers: &HeaderMap, field: Option<&str>) -> Result<String, Problem> {
    let field = field.filter(|key| !key.is_empty());
    let header = match headers.get(KEY_HEADER) {
        None => None,
        Some(value) => Some(value.to_str().map_err(|_| {
            Problem::invalid_field(
                "idempotency_key",
                "the Idempotency-Key header holds characters that are not visible ASCII",
            )
        })?),
    };
    match (header.filter(|key| !key.is_empty()), field) {
        (Some(header), Some(field)) if header != field => Err(Problem::invalid_field(
            "idempotency_key",
            "idempotency_key differs from the Idempotency-Key header; give one of them, or the same twice",
        )),
        (Some(key), _) | (None, Some(key)) => Ok(key.to_owned()),
        (None, None) => Ok(String::new()),
    }
}

pub fn page_size(query: &str) -> Result<i64, Problem> {
    let mut size = DEFAULT_PAGE;
    for (name, text) in url::form_urlencoded::parse(query.as_bytes()) {
        size = match (name.as_ref(), text.parse::<i64>()) {
            ("limit", Ok(limit)) if limit >= 1 => limit.min(LARGEST_PAGE),
            ("limit", _) => {
                let told = format!("limit is {text:?}; expected a whole number from 1 to {LARGEST_PAGE}");
                return Err(Problem::invalid_field("limit", told));
            }
            (unknown, _) => {
                return Err(Problem::invalid_field(
                    unknown,
                    format!("there is no parameter {unknown:?}; limit is the only one"),
                ));
            }
        };
    }
    Ok(size)
}

/// The id in the path. A malformed one is an unknown one.
pub struct AlarmPath(AlarmId);

impl FromRequestParts<Facade> for AlarmPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, facade: &Facade) -> Result<Self, Problem> {
        let path = Path::<String>::from_request_parts(parts, facade).await;
        path.ok().and_then(|Path(id)| id.parse().ok()).map(Self).ok_or_else(Problem::no_such_alarm)
    }
}

fn managed(resource: &Resource) -> Problem {
    let Resource { namespace, name, .. } = resource;
    Problem::conflict(format!(
        "the alarm is managed by the resource Alarm {namespace}/{name}; edit or delete that (kubectl -n {namespace} edit alarm {name})"
    ))
}
