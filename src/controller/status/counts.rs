//! How many alarms an agent has changes all the time; its status tells once a minute.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use tokio::time::Instant;

use crate::{
    controller::{AGENT_RESYNC, scope::AgentRef},
    crd::AgentStatus,
};

/// When which agent's count was last told anew.
#[derive(Default)]
pub struct Counts(Mutex<HashMap<AgentRef, Instant>>);

impl Counts {
    /// Keeps the count that is told in `next` if it was told anew less than a minute ago.
    pub fn settle(&self, agent: &AgentRef, before: Option<&AgentStatus>, next: &mut AgentStatus) {
        let Some(before) = before.filter(|before| before.active_alarms != next.active_alarms) else { return };
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.get(agent).is_some_and(|at| at.elapsed() < AGENT_RESYNC) {
            next.active_alarms = before.active_alarms;
        } else {
            told.retain(|_, at| at.elapsed() < AGENT_RESYNC);
            told.insert(agent.clone(), Instant::now());
        }
    }
}
