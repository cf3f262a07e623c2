//! Alarms, newest first, page by page.

use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use serde::Serialize;

use super::{Alarm, columns};
use crate::{
    domain::{
        access::Did,
        alarm::{Kind, Status},
        cursor::{self, Cursor},
        labels::{Selector, Test},
    },
    store::{PAGE_BYTES, Result, Store},
};

/// Which alarms are meant. What is not said does not matter.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Empty: all.
    pub statuses: Vec<Status>,
    pub kind: Option<Kind>,
    pub label_prefix: Option<String>,
    pub selector: Selector,
    pub correlation_id: Option<String>,
    /// Active, and due at or after this.
    pub due_after: Option<DateTime<Utc>>,
    /// Active, and due before this.
    pub due_before: Option<DateTime<Utc>>,
}

#[derive(Debug)]
pub struct Page {
    pub alarms: Vec<Alarm>,
    /// Where the next one begins; `None` on the last.
    pub next: Option<Cursor>,
}

/// The list, as `EXPLAIN` sees it too.
pub const LIST: &str = concat!("SELECT ", columns!(), " ", include_str!("../sql/list_alarms.sql"));

impl Store {
    /// The owner's alarms. A page is stable under inserts: what comes in later is newer than any cursor.
    pub async fn list_owned(&self, owner: &Did, filter: &Filter, after: Option<Cursor>, limit: i64) -> Result<Page> {
        let statuses: Vec<&str> = filter.statuses.iter().map(|status| status.as_str()).collect();
        let place = |alarm: &Alarm| Cursor { at: alarm.when.created_at, id: alarm.id.as_uuid() };
        self.ask("listing alarms", async |db| {
            let mut rows = sqlx::query_as::<_, Alarm>(LIST)
                .bind(owner.as_str())
                .bind((!statuses.is_empty()).then_some(statuses))
                .bind(filter.kind.map(Kind::as_str))
                .bind(filter.label_prefix.as_deref())
                .bind(filter.correlation_id.as_deref())
                .bind(filter.due_after)
                .bind(filter.due_before)
                .bind(requirements(&filter.selector))
                .bind(after.map(|cursor| cursor.at))
                .bind(after.map(|cursor| cursor.id))
                // One more than asked for says whether there is another page.
                .bind(limit.saturating_add(1))
                .persistent(false)
                .fetch(db);
            let (mut alarms, mut bytes): (Vec<Alarm>, usize) = (Vec::new(), 0);
            while let Some(alarm) = rows.try_next().await? {
                if bytes >= PAGE_BYTES {
                    let next = alarms.last().map(place);
                    return Ok(Page { alarms, next });
                }
                bytes += alarm.wake_message.len() + alarm.payload.len();
                alarms.push(alarm);
            }
            let (alarms, next) = cursor::page(alarms, limit, place);
            Ok(Page { alarms, next })
        })
        .await
    }
}

/// A requirement as the statement reads it.
#[derive(Serialize)]
struct Required<'a> {
    key: &'a str,
    test: &'static str,
    values: Vec<&'a str>,
}

/// JSON, or `None` for a selector that asks for nothing.
pub(super) fn requirements(selector: &Selector) -> Option<String> {
    let required = selector.requirements.iter().map(|requirement| {
        let (test, values) = match &requirement.test {
            Test::In(values) => ("in", Some(values)),
            Test::NotIn(values) => ("notin", Some(values)),
            Test::Exists => ("exists", None),
            Test::Absent => ("absent", None),
        };
        let values = values.into_iter().flatten().map(String::as_str).collect();
        Required { key: &requirement.key, test, values }
    });
    let required: Vec<Required<'_>> = required.collect();
    (!required.is_empty()).then(|| serde_json::to_string(&required).expect("a list of texts is JSON"))
}
