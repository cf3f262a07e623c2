//! All that was asked of one alarm, and of one service call's timer.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use super::{book::UNKNOWN_WITHIN, slots::stored};
use crate::log::{Answer, Asked, Call, Definition, Schedule};

/// An agent's alarm, over HTTP or as a resource. Known by its label, which no other has.
pub struct Story<'a> {
    pub label: &'a str,
    pub owner: &'a str,
    /// Its name, if it is a resource.
    pub resource: Option<&'a str>,
    /// In order of time.
    pub calls: Vec<&'a Call>,
    /// Places in the book's lists. A resource that was deleted and made anew has several rows.
    pub rows: Vec<usize>,
    pub wakes: Vec<usize>,
    pub ids: BTreeSet<Uuid>,
    /// What is known of it may have been taken back.
    pub undone: bool,
}

/// A definition, and when it may have stood.
pub struct Version<'a> {
    pub definition: &'a Definition,
    pub from: DateTime<Utc>,
    /// `None`: nothing is certain to have replaced it.
    pub until: Option<DateTime<Utc>>,
}

pub fn is_done(call: &Call) -> bool {
    matches!(call.answer, Answer::Done { .. })
}

pub fn is_refused(call: &Call) -> bool {
    matches!(call.answer, Answer::Refused { .. })
}

pub fn body(call: &Call) -> Option<&Value> {
    match &call.answer {
        Answer::Done { body, .. } => Some(body),
        Answer::Refused { .. } | Answer::Unknown { .. } => None,
    }
}

/// What a call that makes or edits an alarm wants it to be.
pub fn definition_in(call: &Call) -> Option<&Definition> {
    let (Asked::Create { alarm, .. }
    | Asked::Put { alarm, .. }
    | Asked::Patch { alarm, .. }
    | Asked::Apply { alarm, .. }) = &call.asked
    else {
        return None;
    };
    Some(alarm)
}

/// Whether this call, asked by then and not long before, said that a wake was in flight; or may have: nobody heard what it said.
pub fn said_in_flight(call: &Call, by: DateTime<Utc>) -> bool {
    let lately = call.asked_at <= by && call.asked_at + UNKNOWN_WITHIN > by;
    lately
        && match &call.answer {
            Answer::Done { body, .. } => body.get("in_flight").and_then(Value::as_bool).unwrap_or(false),
            Answer::Unknown { .. } => true,
            Answer::Refused { .. } => false,
        }
}

pub fn session_in(asked: &Asked) -> Option<&str> {
    let (Asked::Event { session, .. } | Asked::Checkpoint { session, .. } | Asked::Ack { session, .. }) = asked else {
        return None;
    };
    Some(session)
}

pub fn id_in(body: &Value) -> Option<Uuid> {
    body.get("id")?.as_str()?.parse().ok()
}

/// Until when it may have been done: for what nobody answered there is no end.
fn until(call: &Call) -> Option<DateTime<Utc>> {
    if is_done(call) { call.answered_at } else { None }
}

impl<'a> Story<'a> {
    pub fn new(label: &'a str, owner: &'a str, resource: Option<&'a str>) -> Self {
        let (calls, rows, wakes) = (vec![], vec![], vec![]);
        Self { label, owner, resource, calls, rows, wakes, ids: BTreeSet::new(), undone: false }
    }

    /// What may have been done.
    pub fn possible(&self) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().copied().filter(|call| !is_refused(call))
    }

    /// Whether somebody was told that it is there.
    pub fn accepted(&self) -> Option<&'a Call> {
        self.calls.iter().copied().find(|call| {
            is_done(call) && matches!(call.asked, Asked::Create { .. } | Asked::Put { .. } | Asked::Apply { .. })
        })
    }

    pub fn definitions(&self) -> impl Iterator<Item = (&'a Call, &'a Definition)> {
        self.possible().filter_map(|call| Some((call, definition_in(call)?)))
    }

    /// Each definition, and when it may have stood. A resource's is the controller's from whenever it sees it: what the API server
    /// answered says nothing of when the one before it ended.
    pub fn versions(&self) -> Vec<Version<'a>> {
        let definitions: Vec<_> = self.definitions().collect();
        let version = |(call, definition): &(&'a Call, &'a Definition)| {
            let followed = |later: &&(&'a Call, &'a Definition)| {
                self.resource.is_none()
                    && is_done(later.0)
                    // A repeated POST changes nothing.
                    && !matches!(later.0.asked, Asked::Create { .. })
                    && until(call).is_some_and(|until| later.0.asked_at >= until)
            };
            let until = definitions.iter().filter(followed).filter_map(|(later, _)| later.answered_at).min();
            Version { definition, from: call.asked_at, until }
        };
        definitions.iter().map(version).collect()
    }

    /// Instants at which it may have been asked to fire, if it does not follow a series.
    pub fn instants(&self) -> impl Iterator<Item = DateTime<Utc>> {
        let given = self.definitions().filter_map(|(_, definition)| match definition.schedule {
            Schedule::At(at) => Some(stored(at)),
            Schedule::Every { .. } | Schedule::EveryMinutes(_) => None,
        });
        given.chain(self.rearmings())
    }

    /// Those that a re-arming gave it.
    pub fn rearmings(&self) -> impl Iterator<Item = DateTime<Utc>> {
        self.possible().filter_map(|call| {
            if let Asked::Rearm { fire_at, .. } = &call.asked { Some(stored(*fire_at)) } else { None }
        })
    }

    /// The first call after this instant that may bring it back from where it is over, or lift its pause.
    pub fn may_be_revived_from(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.first_after(at, |asked| matches!(asked, Asked::Rearm { .. } | Asked::Put { .. } | Asked::Apply { .. }))
    }

    pub fn may_be_resumed_from(&self, at: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.first_after(at, |asked| matches!(asked, Asked::Resume { .. } | Asked::Put { .. } | Asked::Rearm { .. }))
    }

    /// When the first of these may have been done that may have been done after this instant.
    fn first_after(&self, at: DateTime<Utc>, what: impl Fn(&Asked) -> bool) -> Option<DateTime<Utc>> {
        let may_come_after = |call: &&Call| until(call).unwrap_or(call.asked_at + UNKNOWN_WITHIN) > at;
        let later = self.possible().filter(|call| what(&call.asked)).filter(may_come_after);
        later.map(|call| call.asked_at.max(at)).min()
    }

    /// When what was asked last may have been done; an occurrence is not late before.
    pub fn last_word(&self, before: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let asked = self.possible().filter(|call| call.asked_at <= before);
        asked.map(|call| until(call).unwrap_or(call.asked_at + UNKNOWN_WITHIN)).max()
    }
}

/// A service call, and its timer.
pub struct Timers<'a> {
    pub owner: &'a str,
    pub name: &'a str,
    pub calls: Vec<&'a Call>,
    pub row: Option<usize>,
    pub wakes: Vec<usize>,
    pub ids: BTreeSet<Uuid>,
    pub undone: bool,
}

impl<'a> Timers<'a> {
    pub fn new(owner: &'a str, name: &'a str) -> Self {
        Self { owner, name, calls: vec![], row: None, wakes: vec![], ids: BTreeSet::new(), undone: false }
    }

    pub fn possible(&self) -> impl Iterator<Item = &'a Call> {
        self.calls.iter().copied().filter(|call| !is_refused(call))
    }

    /// The command, when it is due, and its payload.
    pub fn commands(&self) -> impl Iterator<Item = (&'a Call, DateTime<Utc>, &'a str)> {
        self.possible().filter_map(|call| {
            let Asked::Timer { due_at, payload, .. } = &call.asked else { return None };
            Some((call, stored(*due_at), payload.as_str()))
        })
    }

    pub fn deregistrations(&self) -> impl Iterator<Item = &'a Call> {
        self.possible().filter(|call| matches!(call.asked, Asked::Deregister { .. }))
    }
}
