//! Our own heartbeat, and what it says of the peers' (`domain::peers` decides).

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::domain::peers::{QUIET_AFTER_BEATS, Sighting, Watch};

pub struct Pulse {
    interval: Duration,
    state: Mutex<State>,
}

struct State {
    /// When the last beat that succeeded was sent; none has yet: when we began.
    beaten_at: Instant,
    next_at: Instant,
    failed: bool,
    peers: Watch,
}

impl Pulse {
    pub fn new(interval: Duration) -> Self {
        let now = Instant::now();
        Self {
            interval,
            state: Mutex::new(State { beaten_at: now, next_at: now, failed: false, peers: Watch::default() }),
        }
    }

    pub fn next_beat_at(&self) -> Instant {
        self.lock().next_at
    }

    /// Whether the last look failed, with a beat in it or not.
    pub fn has_failed(&self) -> bool {
        self.lock().failed
    }

    /// Whether peers may be about to take our claims.
    pub fn is_lost(&self) -> bool {
        self.lock().beaten_at.elapsed() > self.interval * QUIET_AFTER_BEATS
    }

    /// A beat, sent and answered then, that saw these peers. The answer are the dead.
    pub fn beaten(&self, sent_at: Instant, answered_at: Instant, peers: &[Sighting]) -> Vec<Sighting> {
        let mut state = self.lock();
        // From the answer on, so that between what two beats see lies a whole interval however slow the first was.
        (state.beaten_at, state.next_at) = (sent_at, answered_at + self.interval);
        if answered_at.duration_since(sent_at) > self.interval {
            // So slow a database may have kept the others from beating.
            state.peers.not_beaten();
        }
        state.peers.beaten(peers)
    }

    /// A beat that failed: the next one is due at once.
    pub fn missed(&self) {
        self.lock().peers.not_beaten();
    }

    /// How a look ended.
    pub fn looked(&self, succeeded: bool) {
        self.lock().failed = !succeeded;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
