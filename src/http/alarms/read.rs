//! Alarms are looked at: one, many, and what became of every attempt.

use axum::extract::{RawQuery, State};
use chrono::{DateTime, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    AlarmPath,
    view::{AttemptView, View},
};
use crate::{
    domain::{
        alarm::{Kind, Status},
        cursor::Cursor,
        invalid::{Invalid, check_key, parse_instant, quoted},
        labels::Selector,
    },
    http::{
        Facade,
        auth::Caller,
        envelope::Data,
        openapi::parameters,
        problem::Problem,
        query::{Page, Query},
    },
    store::alarms::Filter,
};

/// Get an alarm
///
/// Also one that is over, until retention removes it, and one that a resource manages.
#[utoipa::path(
    get, path = "/v1/alarms/{id}", tag = "alarms", operation_id = "getAlarm",
    params(parameters::AlarmId),
    responses((status = 200, description = "The alarm.", body = View)),
)]
pub async fn get(
    State(facade): State<Facade>,
    caller: Caller,
    AlarmPath(id): AlarmPath,
) -> Result<Data<View>, Problem> {
    let _turn = caller.turn().await;
    let alarm = facade.store.get_if_owned(&caller.owner, id).await?;
    alarm.map(|alarm| Data(View::of(alarm, caller.now))).ok_or_else(Problem::no_such_alarm)
}

#[derive(Serialize, ToSchema)]
#[schema(as = AlarmList)]
pub struct List {
    alarms: Vec<View>,
    /// How many there are on this page.
    count: usize,
    /// Where the next page begins; left out on the last one.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// List alarms
///
/// The agent's own, the newest first, page by page. A page whose messages and payloads reach 8 MiB ends there, `next_cursor` says where it
/// goes on. An unknown parameter is refused: a filter that is misspelt would show everything.
#[utoipa::path(
    get, path = "/v1/alarms", tag = "alarms", operation_id = "listAlarms",
    params(parameters::Filter, parameters::Page),
    responses(
        (status = 200, description = "A page of alarms.", body = List),
        (status = 400, description = "A parameter is unknown, given twice or not what it should be."),
    ),
)]
pub async fn list(
    State(facade): State<Facade>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<Data<List>, Problem> {
    let _turn = caller.turn().await;
    let Asked { filter, page } = Asked::parse(query.as_deref().unwrap_or_default())?;
    let found = facade.store.list_owned(&caller.owner, &filter, page.after, page.limit).await?;
    let alarms: Vec<View> = found.alarms.into_iter().map(|alarm| View::of(alarm, caller.now)).collect();
    let next_cursor = found.next.map(|cursor: Cursor| cursor.to_string());
    Ok(Data(List { count: alarms.len(), alarms, next_cursor }))
}

#[derive(Serialize, ToSchema)]
#[schema(as = AttemptList)]
pub struct Attempts {
    attempts: Vec<AttemptView>,
    /// How many there are on this page.
    count: usize,
    /// Where the next page begins; left out on the last one.
    #[schema(nullable = false)]
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// List an alarm's attempts
///
/// What became of every try to deliver a wake, the newest first. A run of slots that had no try is one line with `attempt: 0` and
/// `first_at`, `last_at`, `slots` and `reason`.
#[utoipa::path(
    get, path = "/v1/alarms/{id}/attempts", tag = "alarms", operation_id = "listAttempts",
    params(parameters::AlarmId, parameters::Page),
    responses(
        (status = 200, description = "A page of attempts.", body = Attempts),
        (status = 400, description = "A parameter is unknown, given twice or not what it should be."),
    ),
)]
pub async fn attempts(
    State(facade): State<Facade>,
    caller: Caller,
    AlarmPath(id): AlarmPath,
    RawQuery(query): RawQuery,
) -> Result<Data<Attempts>, Problem> {
    let _turn = caller.turn().await;
    let page = Query::parse(query.as_deref().unwrap_or_default(), Page::PARAMETERS)?.page()?;
    let found = facade.store.attempts_if_owned(&caller.owner, id, page.after, page.limit).await?;
    let found = found.ok_or_else(Problem::no_such_alarm)?;
    let attempts: Vec<AttemptView> = found.entries.into_iter().map(AttemptView::of).collect();
    let next_cursor = found.next.map(|cursor| cursor.to_string());
    Ok(Data(Attempts { count: attempts.len(), attempts, next_cursor }))
}

/// Which alarms a list is to show.
#[derive(Debug)]
pub struct Asked {
    pub filter: Filter,
    pub page: Page,
}

const LIST_PARAMETERS: &[&str] =
    &["status", "kind", "label_prefix", "labels", "correlation_id", "due_after", "due_before", "limit", "cursor"];

impl Asked {
    /// What is wrong is told with the parameter's name.
    pub fn parse(query: &str) -> Result<Self, Problem> {
        let query = Query::parse(query, LIST_PARAMETERS)?;
        let instant = |name| query.get(name).map(|text| instant(name, text)).transpose();
        let filter = Filter {
            statuses: query.get("status").map(statuses).transpose()?.unwrap_or_default(),
            kind: query.get("kind").map(kind).transpose()?,
            label_prefix: query.text("label_prefix")?,
            selector: query.get("labels").map(selector).transpose()?.unwrap_or_default(),
            correlation_id: query.text("correlation_id")?,
            due_after: instant("due_after").map_err(|invalid| vec![invalid])?,
            due_before: instant("due_before").map_err(|invalid| vec![invalid])?,
        };
        Ok(Self { filter, page: query.page()? })
    }
}

impl Query {
    /// A text that the database can compare with.
    fn text(&self, name: &'static str) -> Result<Option<String>, Problem> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let mut invalid = Vec::new();
        check_key(&mut invalid, name, text);
        if invalid.is_empty() { Ok(Some(text.to_owned())) } else { Err(invalid.into()) }
    }
}

/// An instant in a query, where a plus sign that is not percent-encoded is read as a space.
fn instant(name: &'static str, text: &str) -> Result<DateTime<Utc>, Invalid> {
    parse_instant(name, text).map_err(|told| match parse_instant(name, &text.replace(' ', "+")) {
        Ok(_) => Invalid::new(name, told.problem, "write the plus sign of its offset as %2B, or use Z"),
        Err(_) => told,
    })
}

/// A comma-separated list.
pub(super) fn statuses(text: &str) -> Result<Vec<Status>, Problem> {
    let parse = |word: &str| {
        Status::try_from(word.to_owned()).map_err(|_| {
            let known: Vec<_> = Status::ALL.iter().map(|status| status.as_str()).collect();
            let told = format!("status has {}; give one or more of {}", quoted(word), known.join(", "));
            Problem::invalid_field("status", told)
        })
    };
    text.split(',').map(|word| parse(word.trim())).collect()
}

fn kind(text: &str) -> Result<Kind, Problem> {
    Kind::try_from(text.to_owned())
        .map_err(|_| Problem::invalid_field("kind", format!("kind is {}; give once or cron", quoted(text))))
}

fn selector(text: &str) -> Result<Selector, Problem> {
    Selector::parse(text).map_err(|error| Problem::invalid_field("labels", format!("labels {error}")))
}
