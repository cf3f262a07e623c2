//! How many requests one owner may make: so many a second, and twice as many at once. Each replica counts for itself. An owner that is
//! over it is refused at once and told when to come back; nobody else notices.

use std::{
    num::NonZeroU32,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use governor::{Quota, RateLimiter, clock::Clock as _, clock::DefaultClock, state::keyed::HashMapStateStore};

use super::problem::Problem;
use crate::domain::access::Did;

/// With fewer owners than this it is not worth looking who has gone.
const FEW: usize = 1024;

type Limiter = RateLimiter<Did, HashMapStateStore<Did>, DefaultClock>;

pub struct Rate {
    /// `None`: any number.
    limiter: Option<Limiter>,
    limit: u32,
    clock: DefaultClock,
    /// With as many owners in memory those are forgotten that have not asked for a while.
    prune_at: AtomicUsize,
}

impl Rate {
    /// 0: any number.
    pub fn new(per_second: u32) -> Self {
        let clock = DefaultClock::default();
        let limiter = NonZeroU32::new(per_second).map(|limit| {
            let burst = limit.saturating_add(limit.get());
            Limiter::new(Quota::per_second(limit).allow_burst(burst), HashMapStateStore::default(), clock.clone())
        });
        Self { limiter, limit: per_second, clock, prune_at: AtomicUsize::new(FEW) }
    }

    /// Counts one request of this owner, or says how long it is to wait.
    pub fn admit(&self, owner: &Did) -> Result<(), Duration> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        let admitted = limiter.check_key(owner).map_err(|not_until| not_until.wait_time_from(self.clock.now()));
        self.prune(limiter);
        admitted
    }

    /// What an owner is told that has to wait.
    pub fn problem(&self, wait: Duration) -> Problem {
        Problem::rate_limited(wait, self.limit, self.limit.saturating_mul(2))
    }

    /// Whoever could make a whole burst again need not be remembered. Looked at whenever there are twice as many owners as were left
    /// the last time, so that memory is bounded by those who are active and each request pays for one look at most.
    fn prune(&self, limiter: &Limiter) {
        if limiter.len() < self.prune_at.load(Ordering::Relaxed) {
            return;
        }
        limiter.retain_recent();
        limiter.shrink_to_fit();
        self.prune_at.store(FEW.max(2 * limiter.len()), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(number: usize) -> Did {
        format!("did:matrix:ann-{number}:d75a980182b10ab7").parse().unwrap()
    }

    #[test]
    fn an_owner_over_its_rate_is_told_how_long_to_wait_and_others_are_not_held_up() {
        let rate = Rate::new(1);
        assert!(rate.admit(&owner(1)).is_ok() && rate.admit(&owner(1)).is_ok());
        let wait = rate.admit(&owner(1)).unwrap_err();
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(1), "{wait:?}");
        assert!(rate.admit(&owner(2)).is_ok());
    }

    #[test]
    fn without_a_rate_everybody_is_admitted() {
        let rate = Rate::new(0);
        assert!((0..10_000).all(|_| rate.admit(&owner(1)).is_ok()));
    }

    #[test]
    fn owners_who_have_not_asked_for_a_while_are_forgotten() {
        // Here a while is two microseconds.
        let rate = Rate::new(1_000_000);
        for number in 0..50 * FEW {
            rate.admit(&owner(number)).unwrap();
        }
        let remembered = rate.limiter.as_ref().unwrap().len();
        assert!(remembered <= 2 * FEW, "{remembered}");
        // And those who have are not.
        let rate = Rate::new(1);
        (0..2 * FEW).for_each(|number| _ = rate.admit(&owner(number)));
        assert!(rate.admit(&owner(0)).is_ok() && rate.admit(&owner(0)).is_err());
    }
}
