//! Growing pauses, one series per object: a dead database is not drummed on, and one object's trouble is its own.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};

const FIRST: Duration = Duration::from_secs(1);
/// A database that comes back is noticed within half a minute.
const LONGEST: Duration = Duration::from_secs(30);

pub struct Backoff<K> {
    failures: Mutex<HashMap<K, u32>>,
}

impl<K> Default for Backoff<K> {
    fn default() -> Self {
        Self { failures: Mutex::default() }
    }
}

impl<K: Eq + Hash> Backoff<K> {
    /// The pause after one more failure.
    pub fn next(&self, object: K) -> Duration {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(object).or_default();
        // 2^5 s is past the longest already.
        let pause = FIRST.saturating_mul(1 << (*count).min(5)).min(LONGEST);
        *count = count.saturating_add(1);
        pause
    }

    pub fn forget(&self, object: &K) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).remove(object);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_per_object_and_start_over_after_a_success() {
        let backoff = Backoff::default();
        let pauses: Vec<u64> = (0..7).map(|_| backoff.next("one").as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(backoff.next("other").as_secs(), 1);
        backoff.forget(&"one");
        assert_eq!(backoff.next("one").as_secs(), 1);
    }
}
