//! How many streams there may be at once: of one owner, so that nobody takes all connections, and of all, so that requests still get in.
//! Each replica counts for itself.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::json;

use crate::{domain::access::Did, http::problem::Problem, telemetry::metrics};

/// Of one owner. An agent has a session for each of its user's threads, and a few are open at a time.
const EACH: usize = 100;

pub struct Seats {
    each: usize,
    all: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    owners: HashMap<Did, usize>,
    all: usize,
}

/// Held while a stream is open.
pub struct Seat {
    owner: Did,
    seats: Arc<Seats>,
}

impl Seats {
    /// A quarter of the connections stays for requests.
    pub fn new(most_connections: usize) -> Self {
        let all = most_connections - most_connections / 4;
        Self { each: EACH.min(all / 2), all, taken: Mutex::default() }
    }

    /// Counts one stream more of this owner until it is dropped, or says that there are too many.
    pub fn take(self: &Arc<Self>, owner: &Did) -> Result<Seat, Problem> {
        let mut taken = self.taken();
        if taken.all >= self.all {
            return Err(Problem::crowded(self.all));
        }
        let used = taken.owners.get(owner).copied().unwrap_or_default();
        if used >= self.each {
            let message = format!(
                "this owner has {used} streams open on this replica, and may have {}; close one, or wait until one has ended",
                self.each
            );
            let details = json!({ "quota": "max_streams", "limit": self.each, "use": used });
            return Err(Problem::quota_exceeded(message, details, true));
        }
        taken.owners.insert(owner.clone(), used + 1);
        taken.all += 1;
        metrics::streams(taken.all);
        Ok(Seat { owner: owner.clone(), seats: Arc::clone(self) })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.taken();
        taken.all -= 1;
        metrics::streams(taken.all);
        if let Some(used) = taken.owners.get_mut(&self.owner) {
            *used -= 1;
            if *used == 0 {
                taken.owners.remove(&self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn did(user: &str) -> Did {
        format!("did:matrix:{user}:d75a980182b10ab7").parse().unwrap()
    }

    fn refused(seats: &Arc<Seats>, user: &str) -> &'static str {
        seats.take(&did(user)).err().map_or("", |problem| problem.code())
    }

    #[test]
    fn an_owner_has_its_share_and_requests_have_theirs() {
        let seats = Arc::new(Seats::new(8));
        let mut anns: Vec<Seat> = (0..3).map(|_| seats.take(&did("ann")).unwrap()).collect();
        assert_eq!(refused(&seats, "ann"), "quota_exceeded");
        let bobs: Vec<Seat> = (0..3).map(|_| seats.take(&did("bob")).unwrap()).collect();
        assert_eq!(refused(&seats, "eve"), "internal", "two of eight are for requests");
        anns.pop();
        assert_eq!(refused(&seats, "ann"), "", "there is room again");
        drop((anns, bobs));
        assert!(seats.taken().owners.is_empty() && seats.taken().all == 0, "and nobody is remembered who is not there");
    }

    #[test]
    fn with_many_connections_an_owner_has_a_hundred() {
        assert_eq!((Seats::new(4096).each, Seats::new(4096).all), (EACH, 3072));
    }
}
