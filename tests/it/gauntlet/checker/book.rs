//! A history, turned so that rules can look things up.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::super::history::{Alarm, Attempt, History, Kind, Operation, Symptom, Wake, What};

/// For how long after its end a fault may still show: what was on its way then has arrived by now.
const AFTERMATH: TimeDelta = TimeDelta::seconds(2);

pub struct Book<'a> {
    pub history: &'a History,
    pub created: BTreeMap<Uuid, Kind>,
    pub cancelled: BTreeMap<Uuid, Cancel>,
    pub alarms: HashMap<Uuid, &'a Alarm>,
    /// Of each delivery, in the order in which they came.
    pub wakes: BTreeMap<Uuid, Vec<&'a Wake>>,
    /// Of each delivery, without runs of slots.
    pub tries: BTreeMap<Uuid, Vec<&'a Attempt>>,
}

#[derive(Clone, Copy)]
pub struct Cancel {
    pub answered_at: DateTime<Utc>,
    pub in_flight: bool,
}

impl<'a> Book<'a> {
    pub fn of(history: &'a History) -> Self {
        let (mut created, mut cancelled) = (BTreeMap::new(), BTreeMap::new());
        for operation in &history.operations {
            match *operation {
                Operation::Created { alarm_id, kind } => {
                    created.insert(alarm_id, kind);
                }
                Operation::Cancelled { alarm_id, answered_at, in_flight } => {
                    cancelled.insert(alarm_id, Cancel { answered_at, in_flight });
                }
            }
        }
        let mut wakes: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for wake in &history.wakes {
            wakes.entry(wake.delivery_id).or_default().push(wake);
        }
        for wakes in wakes.values_mut() {
            wakes.sort_by_key(|wake| wake.arrived_at);
        }
        let mut tries: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for attempt in history.attempts.iter().filter(|attempt| attempt.attempt > 0) {
            tries.entry(attempt.delivery_id.expect("the schema wants one")).or_default().push(attempt);
        }
        let alarms = history.alarms.iter().map(|alarm| (alarm.id, alarm)).collect();
        Self { history, created, cancelled, alarms, wakes, tries }
    }

    pub fn wakes_of(&self, alarm: Uuid) -> impl Iterator<Item = &'a Wake> {
        self.history.wakes.iter().filter(move |wake| wake.alarm_id == alarm)
    }

    pub fn attempts_of(&self, alarm: Uuid) -> impl Iterator<Item = &'a Attempt> {
        self.history.attempts.iter().filter(move |attempt| attempt.alarm_id == alarm)
    }

    /// The wakes of one attempt.
    pub fn wakes_at(&self, delivery: Option<Uuid>, number: i32) -> impl Iterator<Item = &'a Wake> {
        let wakes = delivery.and_then(|delivery| self.wakes.get(&delivery)).map_or(&[][..], Vec::as_slice);
        wakes.iter().copied().filter(move |wake| wake.attempt == number)
    }

    /// Whether a fault explains this of a wake that `first` sent, and perhaps `second` sent again, between these instants.
    /// A dead sender explains what others do about its wakes; one that was frozen what it does itself as well.
    pub fn explained(
        &self,
        symptom: Symptom,
        first: &str,
        second: Option<&str>,
        from: DateTime<Utc>,
        until: DateTime<Utc>,
    ) -> bool {
        self.history.faults.iter().filter(|fault| fault.what.explains(symptom)).any(|fault| {
            let hit = fault.replica.as_deref().is_none_or(|name| match fault.what {
                What::Frozen => name == first || Some(name) == second,
                What::Killed
                | What::CutShort
                | What::DatabaseAway
                | What::LeaseOutlasted
                | What::ConnectionsCut
                | What::RouterFails
                | What::AnswersLost => name == first,
            });
            hit && fault.began_at <= until && fault.ended_at.is_none_or(|ended_at| ended_at + AFTERMATH >= from)
        })
    }
}
