//! Conditions as Kubernetes has them: the time of the last transition stays while the status stays.

use chrono::{DateTime, Utc};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};

use crate::{
    crd::condition::{READY, RECONCILING, STALLED, reason},
    store,
};

/// Of a condition's message, in the API server's schema.
const MESSAGE_CAP: usize = 32_768;

pub struct Conditions<'a> {
    pub before: &'a [Condition],
    pub generation: i64,
    pub now: DateTime<Utc>,
}

impl Conditions<'_> {
    pub fn one(&self, kind: &str, holds: bool, reason: &str, message: &str) -> Condition {
        let status = if holds { "True" } else { "False" };
        let same = self.before.iter().find(|before| before.type_ == kind && before.status == status);
        let now = Timestamp::from_second(self.now.timestamp()).expect("chrono's instants lie inside jiff's");
        Condition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.chars().take(MESSAGE_CAP).collect(),
            observed_generation: Some(self.generation),
            last_transition_time: same.map_or(Time(now), |same| same.last_transition_time.clone()),
        }
    }

    pub fn ready(&self, reason: &str, message: &str) -> Condition {
        self.one(READY, true, reason, message)
    }

    /// Waits for an edit.
    pub fn stalled(&self, reason: &str, message: &str) -> Vec<Condition> {
        vec![self.one(READY, false, reason, message), self.one(STALLED, true, reason, message)]
    }

    /// Tried again by itself. `deleted`: what is tried is to let go of it.
    pub fn reconciling(&self, error: &store::Error, deleted: bool) -> Vec<Condition> {
        let (reason, message) = match (error.is_away(), deleted) {
            (true, false) => (
                reason::DATABASE_UNAVAILABLE,
                "the database does not answer; it is tried again. Alarms in it keep their place",
            ),
            (true, true) => (
                reason::DATABASE_UNAVAILABLE,
                "its deletion waits for the database, which does not answer; it is tried again",
            ),
            (false, _) => (reason::STORE_FAILED, "storing it failed; it is tried again. The operator's log says why"),
        };
        vec![self.one(READY, false, reason, message), self.one(RECONCILING, true, reason, message)]
    }
}
