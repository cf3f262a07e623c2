//! Growing pauses, one series per object: a dead database is not drummed on, and one object's trouble is its own.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use kube::runtime::reflector::ObjectRef;

use crate::crd::Alarm;

const FIRST: Duration = Duration::from_secs(1);
/// A database that comes back is noticed within a minute.
const LONGEST: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Backoff {
    failures: Mutex<HashMap<ObjectRef<Alarm>, u32>>,
}

impl Backoff {
    /// The pause after one more failure.
    pub fn next(&self, object: ObjectRef<Alarm>) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(object).or_default();
        // 2^6 s is past the longest already.
        let pause = FIRST.saturating_mul(1 << (*count).min(6)).min(LONGEST);
        *count = count.saturating_add(1);
        pause
    }

    pub fn forget(&self, object: &ObjectRef<Alarm>) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_per_object_and_start_over_after_a_success() {
        let backoff = Backoff::default();
        let (one, other) = (ObjectRef::new("one"), ObjectRef::new("other"));
        let pauses: Vec<u64> = (0..8).map(|_| backoff.next(one.clone()).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(backoff.next(other).as_secs(), 1);
        backoff.forget(&one);
        assert_eq!(backoff.next(one).as_secs(), 1);
    }
}
