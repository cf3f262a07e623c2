//! Which dispatchers are dead. Decided by counting, not by clocks: a replica compares its peers' counters at each beat of its
//! own, and one that has not moved over three whole intervals is dead.
//!
//! Only a replica whose own beats succeed may judge: when the database was away, nobody could beat, and silence says nothing.
//! A replica that cannot beat must assume, after two intervals, that others will soon judge it, and sends nothing more: it is
//! quiet before its claims are taken.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

use super::ids::WorkerId;

/// Intervals over which a peer must have stood still.
pub const DEAD_AFTER_BEATS: u32 = 3;
/// Intervals without a beat of one's own after which nothing more is sent.
pub const QUIET_AFTER_BEATS: u32 = 2;

/// A peer's row, as it was seen with a beat of one's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sighting {
    pub worker: WorkerId,
    pub beats: i64,
    /// One that was forgotten and comes back counts from one again.
    pub started_at: DateTime<Utc>,
}

/// What has been seen of the peers so far.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    still: HashMap<WorkerId, (Sighting, u32)>,
}

impl Watch {
    /// After a beat of one's own that succeeded: which of these peers are dead.
    pub fn beaten(&mut self, peers: &[Sighting]) -> Vec<Sighting> {
        let before = std::mem::take(&mut self.still);
        for peer in peers {
            let still = match before.get(&peer.worker) {
                Some((seen, still)) if seen == peer => still + 1,
                Some(_) | None => 0,
            };
            self.still.insert(peer.worker, (*peer, still));
        }
        peers.iter().filter(|peer| self.still[&peer.worker].1 >= DEAD_AFTER_BEATS).copied().collect()
    }

    /// After a beat of one's own that failed, or took so long that others may have failed: the count begins anew.
    pub fn not_beaten(&mut self) {
        self.still.clear();
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn peer(beats: i64) -> Sighting {
        Sighting {
            worker: WorkerId::from_uuid(Uuid::from_u128(7)),
            beats,
            started_at: "2026-11-16T09:00:00Z".parse().unwrap(),
        }
    }

    #[test]
    fn a_peer_that_stands_still_over_three_whole_intervals_is_dead() {
        let mut watch = Watch::default();
        for beat in 0..3 {
            assert_eq!(watch.beaten(&[peer(5)]), [], "beat {beat}");
        }
        assert_eq!(watch.beaten(&[peer(5)]), [peer(5)]);
    }

    #[test]
    fn a_peer_that_moves_is_alive_and_counted_anew() {
        let mut watch = Watch::default();
        for beats in [5, 5, 5, 6, 6, 6] {
            assert_eq!(watch.beaten(&[peer(beats)]), []);
        }
        assert_eq!(watch.beaten(&[peer(6)]), [peer(6)]);
    }

    #[test]
    fn one_that_was_forgotten_and_came_back_at_the_same_count_is_another() {
        let mut watch = Watch::default();
        let again = Sighting { started_at: "2026-11-16T09:10:00Z".parse().unwrap(), ..peer(1) };
        for sighting in [peer(1), peer(1), peer(1), again] {
            assert_eq!(watch.beaten(&[sighting]), []);
        }
    }

    #[test]
    fn after_a_failed_beat_of_our_own_the_count_begins_anew() {
        let mut watch = Watch::default();
        for _ in 0..3 {
            watch.beaten(&[peer(5)]);
        }
        watch.not_beaten();
        for beat in 0..3 {
            assert_eq!(watch.beaten(&[peer(5)]), [], "beat {beat}");
        }
        assert_eq!(watch.beaten(&[peer(5)]), [peer(5)]);
    }

    #[test]
    fn one_that_signed_off_is_no_concern() {
        let mut watch = Watch::default();
        for _ in 0..3 {
            watch.beaten(&[peer(5)]);
        }
        assert_eq!(watch.beaten(&[]), []);
        assert_eq!(watch.beaten(&[peer(5)]), [], "seen for the first time again");
    }
}
