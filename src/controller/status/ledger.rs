//! What was written a moment ago. A cache shows it a little later: until then it is what the next status is held against. And an alarm
//! that fires every second is not worth a write every second.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{controller::scope::AlarmRef, crd::AlarmStatus};

/// Between two writes to one object, unless its phase changes.
pub const QUIET: Duration = Duration::from_secs(5);
/// When so many are remembered, those that need not be are forgotten.
const MANY: usize = 1024;

#[derive(Default)]
pub struct Ledger {
    entries: Mutex<HashMap<AlarmRef, (Instant, AlarmStatus)>>,
}

impl Ledger {
    /// What was written less than [`QUIET`] ago, and how long that lasts.
    pub fn recent(&self, object: &AlarmRef) -> Option<(Duration, AlarmStatus)> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, status) = entries.get(object)?;
        let rests = QUIET.checked_sub(at.elapsed()).filter(|rests| !rests.is_zero())?;
        Some((rests, status.clone()))
    }

    pub fn note(&self, object: AlarmRef, status: AlarmStatus) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MANY {
            entries.retain(|_, (at, _)| at.elapsed() < QUIET);
        }
        entries.insert(object, (Instant::now(), status));
    }

    pub fn forget(&self, object: &AlarmRef) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }
}
