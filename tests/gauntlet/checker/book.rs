//! A log, turned so that rules can look things up.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use super::{
    faults::{self, Faults, Undoes, Undone},
    rows::{Attempt, Checkpoint, Effect, Event, Row, ServiceCall, Session},
    sent::{Sent, To},
    stories::{Story, Timers},
    telling,
};
use crate::log::{Answer, Call, Log};

/// A call that nobody answered was carried out within this, if at all: the driver gives up after 3 s, and no statement goes on for longer
/// than 10.
pub const UNKNOWN_WITHIN: TimeDelta = TimeDelta::seconds(13);

/// What a finding is about: whose timeline belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum About {
    Story(usize),
    Timers(usize),
    Session(String),
    /// Nothing that has a story: what there is, as it stands.
    Else(String),
}

/// A finding, without its timeline yet.
#[derive(Clone, Debug)]
pub struct Found {
    pub rule: &'static str,
    pub about: About,
    pub what: String,
}

pub struct Book<'a> {
    pub log: &'a Log,
    pub faults: Faults<'a>,
    pub undone: Vec<Undone>,
    pub lease: TimeDelta,
    pub rows: Vec<Row>,
    pub attempts: Vec<Attempt>,
    pub sessions: BTreeMap<String, Session>,
    /// Those in which something was said, or told, that may have been taken back.
    pub sessions_undone: BTreeSet<String>,
    pub events: Vec<Event>,
    pub checkpoints: Vec<Checkpoint>,
    pub effects: Vec<Effect>,
    pub service_calls: BTreeSet<(String, String)>,
    pub wakes: Vec<Sent<'a>>,
    /// Wakes that cannot be read, and rows.
    pub unreadable: Vec<Found>,
    pub stories: Vec<Story<'a>>,
    pub timers: Vec<Timers<'a>>,
    pub by_id: HashMap<Uuid, About>,
    /// Of each alarm: places in `attempts`, in order of time.
    pub attempts_of: HashMap<Uuid, Vec<usize>>,
    /// Of each delivery: places in `wakes`, in the order in which they came.
    pub wakes_by_delivery: BTreeMap<Uuid, Vec<usize>>,
    /// Of each delivery: tries, places in `attempts`.
    pub tries: BTreeMap<Uuid, Vec<usize>>,
    /// Which process has which worker id.
    pub workers: HashMap<Uuid, String>,
    pub row_by_id: HashMap<Uuid, usize>,
}

fn read<T: DeserializeOwned>(table: &str, values: &[Value], unreadable: &mut Vec<Found>) -> Vec<T> {
    let mut rows = Vec::with_capacity(values.len());
    for value in values {
        match T::deserialize(value) {
            Ok(row) => rows.push(row),
            Err(error) => unreadable.push(Found {
                rule: "altered",
                about: About::Else(value.to_string()),
                what: format!("a row of {table} cannot be read: {error}"),
            }),
        }
    }
    rows
}

impl<'a> Book<'a> {
    pub fn of(log: &'a Log) -> Self {
        let tables = &log.end.tables;
        let mut unreadable = Vec::new();
        let rows: Vec<Row> = read("alarms", &tables.alarms, &mut unreadable);
        let mut attempts: Vec<Attempt> = read("attempts", &tables.attempts, &mut unreadable);
        attempts.sort_by_key(|one| (one.started_at, one.attempt));
        let sessions: Vec<Session> = read("sessions", &tables.sessions, &mut unreadable);
        let mut events: Vec<Event> = read("events", &tables.events, &mut unreadable);
        events.sort_by(|a, b| (&a.session_key, a.seq).cmp(&(&b.session_key, b.seq)));
        let checkpoints = read("checkpoints", &tables.checkpoints, &mut unreadable);
        let mut effects: Vec<Effect> = read("effects", &tables.effects, &mut unreadable);
        effects
            .sort_by(|a, b| (&a.session_key, a.event_seq, a.position).cmp(&(&b.session_key, b.event_seq, b.position)));
        let service_calls: Vec<ServiceCall> = read("service_calls", &tables.service_calls, &mut unreadable);
        let mut wakes = Vec::with_capacity(log.wakes.len());
        for wake in &log.wakes {
            match Sent::read(wake) {
                Ok(sent) => wakes.push(sent),
                Err(why) => unreadable.push(Found {
                    rule: "altered",
                    about: About::Else(wake.body.clone()),
                    what: format!("wake {} of {} cannot be read: {why}", wake.number, wake.replica),
                }),
            }
        }
        wakes.sort_by_key(|sent| (sent.at(), sent.wake.number));
        let mut book = Self {
            log,
            faults: Faults::of(&log.faults, &log.run, log.end.read_at),
            undone: faults::undone(&log.faults, log.end.read_at),
            lease: TimeDelta::milliseconds(i64::try_from(log.run.lease_ms).unwrap_or(i64::MAX)),
            row_by_id: rows.iter().enumerate().map(|(place, row)| (row.id, place)).collect(),
            rows,
            attempts,
            sessions: sessions.into_iter().map(|session| (session.session_key.clone(), session)).collect(),
            sessions_undone: BTreeSet::new(),
            events,
            checkpoints,
            effects,
            service_calls: service_calls.into_iter().map(|call| (call.tenant_id, call.service_call_id)).collect(),
            wakes,
            unreadable,
            stories: Vec::new(),
            timers: Vec::new(),
            by_id: HashMap::new(),
            attempts_of: HashMap::new(),
            wakes_by_delivery: BTreeMap::new(),
            tries: BTreeMap::new(),
            workers: HashMap::new(),
        };
        book.index();
        telling::tell(&mut book);
        book
    }

    fn index(&mut self) {
        for (place, one) in self.attempts.iter().enumerate() {
            self.attempts_of.entry(one.alarm_id).or_default().push(place);
            if let Some(delivery) = one.delivery_id.filter(|_| one.is_try()) {
                self.tries.entry(delivery).or_default().push(place);
            }
        }
        for (place, sent) in self.wakes.iter().enumerate() {
            self.wakes_by_delivery.entry(sent.delivery).or_default().push(place);
        }
        // A try that was delivered, and came to the router once, says which process its worker is. Not of a session's timer, which one
        // process promotes and another tells.
        for one in self.attempts.iter().filter(|one| one.is_try() && one.outcome == "delivered") {
            let (Some(worker), Some(delivery)) = (one.worker, one.delivery_id) else { continue };
            let mut wakes =
                self.wakes_by_delivery.get(&delivery).into_iter().flatten().map(|place| &self.wakes[*place]);
            if let (Some(only), None) = (wakes.next(), wakes.next())
                && only.to != To::Session
                && self.tries.get(&delivery).is_some_and(|tries| tries.len() == 1)
            {
                self.workers.entry(worker).or_insert_with(|| only.sender().to_owned());
            }
        }
    }

    pub fn calls_undone(&self, of: Undoes, calls: &[&Call]) -> bool {
        calls.iter().any(|call| self.call_undone(of, call))
    }

    /// Whether what was done by it may have been undone. What nobody answered may have been done later.
    pub fn call_undone(&self, of: Undoes, call: &Call) -> bool {
        let until = match call.answer {
            Answer::Unknown { .. } => call.asked_at + UNKNOWN_WITHIN,
            Answer::Done { .. } | Answer::Refused { .. } => call.answered_at.unwrap_or(call.asked_at),
        };
        self.is_undone(of, call.asked_at, until)
    }

    /// Whether what was committed between these instants may have been undone.
    pub fn is_undone(&self, of: Undoes, from: DateTime<Utc>, until: DateTime<Utc>) -> bool {
        self.undone.iter().any(|undone| undone.of == of && undone.from <= until && undone.until >= from)
    }

    pub fn wakes_of(&self, delivery: Uuid) -> impl Iterator<Item = &Sent<'a>> {
        self.wakes_by_delivery.get(&delivery).into_iter().flatten().map(|place| &self.wakes[*place])
    }

    pub fn attempts_of(&self, id: Uuid) -> impl Iterator<Item = &Attempt> {
        self.attempts_of.get(&id).into_iter().flatten().map(|place| &self.attempts[*place])
    }

    pub fn about(&self, id: Uuid) -> About {
        self.by_id.get(&id).cloned().unwrap_or_else(|| About::Else(format!("alarm {id}")))
    }

    /// Whether a failover, or a restore, may have taken back what was asked of it.
    pub fn excused(&self, about: &About) -> bool {
        match about {
            About::Story(story) => self.stories[*story].undone,
            About::Timers(timers) => self.timers[*timers].undone,
            About::Session(session) => self.sessions_undone.contains(session),
            About::Else(_) => false,
        }
    }
}
