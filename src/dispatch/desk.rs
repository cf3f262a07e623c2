//! What this dispatcher has in hand: deliveries under way, results on their way to the table, whose they are, and how much
//! room is left. All of it can be lost with the process: the table knows every claim.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use tokio::{
    task::{Id, JoinError, JoinSet},
    time::Instant,
};

use super::Limits;
use crate::{
    domain::ids::ClaimToken,
    store::claims::{Backlog, Claim, Room},
};

/// Payloads in memory at once: 256 of the largest there can be.
const MOST_BYTES: usize = 64 * 1024 * 1024;
/// Claims in hand for every delivery in flight: while results are being written, the next deliveries are under way.
const CLAIMS_PER_SLOT: usize = 2;

#[derive(Default)]
pub struct Desk {
    /// Each says at its end whether a result is on its way to the table.
    deliveries: JoinSet<Landed>,
    flights: HashMap<Id, Flight>,
    /// Every claim in hand: in flight, or waiting to be settled.
    claims: BTreeSet<ClaimToken>,
    owners: HashMap<String, usize>,
    bytes: usize,
    pub backlogs: Backlogs,
    /// A claim was sent and its answer lost: until then rows may turn up as ours that nobody here knows of.
    pub lost_until: Option<Instant>,
}

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// Its result goes to the table.
    Answered,
    /// Nothing was sent, and the claim is let go.
    NotSent,
}

/// What a delivery takes up.
pub struct Flight {
    token: ClaimToken,
    owner: String,
    bytes: usize,
}

impl Flight {
    pub fn of(claim: &Claim) -> Self {
        Self { token: claim.token, owner: claim.wake.owner_did.clone(), bytes: claim.bytes() }
    }
}

impl Desk {
    /// How much may be claimed now.
    pub fn room(&self, limits: &Limits) -> Room<'_> {
        let in_hand = (limits.concurrency * CLAIMS_PER_SLOT).saturating_sub(self.claims.len());
        let slots = limits.concurrency.saturating_sub(self.flights.len());
        Room {
            rows: limits.batch.min(slots).min(in_hand),
            bytes: MOST_BYTES.saturating_sub(self.bytes),
            of_owner: limits.owner_concurrency,
            owners: self
                .owners
                .iter()
                .map(|(owner, flying)| (owner.as_str(), limits.owner_concurrency.saturating_sub(*flying)))
                .collect(),
        }
    }

    /// Whether nothing at all may be claimed.
    pub fn is_full(&self, limits: &Limits) -> bool {
        let room = self.room(limits);
        room.rows == 0 || room.bytes == 0
    }

    /// Nothing in flight and nothing left to settle.
    pub fn is_clear(&self) -> bool {
        self.flights.is_empty() && self.claims.is_empty()
    }

    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// The claims in hand.
    pub fn tokens(&self) -> Vec<ClaimToken> {
        self.claims.iter().copied().collect()
    }

    /// Takes a claim that only has to be settled.
    pub fn hold(&mut self, token: ClaimToken) {
        self.claims.insert(token);
    }

    /// Takes a claim and starts its delivery.
    pub fn start(&mut self, flight: Flight, delivery: impl Future<Output = Landed> + Send + 'static) {
        self.claims.insert(flight.token);
        self.bytes += flight.bytes;
        *self.owners.entry(flight.owner.clone()).or_default() += 1;
        let id = self.deliveries.spawn(delivery).id();
        self.flights.insert(id, flight);
    }

    /// Waits for a delivery to land, and takes whatever else has landed by then. Says whether one did for which others have
    /// been waiting. Pends while nothing is in flight.
    pub async fn landed(&mut self) -> bool {
        let Some(landed) = self.deliveries.join_next_with_id().await else { return std::future::pending().await };
        let mut awaited = self.land(landed);
        while let Some(landed) = self.deliveries.try_join_next_with_id() {
            awaited |= self.land(landed);
        }
        awaited
    }

    /// Ends every delivery where it is.
    pub async fn abort(&mut self) {
        self.deliveries.abort_all();
        while let Some(landed) = self.deliveries.join_next_with_id().await {
            self.land(landed);
        }
    }

    /// Claims that are settled, or were given up.
    pub fn settled(&mut self, tokens: &[ClaimToken]) {
        for token in tokens {
            self.claims.remove(token);
        }
    }

    fn land(&mut self, landed: Result<(Id, Landed), JoinError>) -> bool {
        let (id, answered) = match landed {
            Ok((id, landed)) => (id, landed == Landed::Answered),
            Err(error) => {
                if error.is_panic() {
                    tracing::error!(%error, "a delivery panicked; its lease will run out and it is tried again");
                }
                (error.id(), false)
            }
        };
        let Some(flight) = self.flights.remove(&id) else { return false };
        self.bytes -= flight.bytes;
        if let Some(flying) = self.owners.get_mut(&flight.owner) {
            *flying -= 1;
            if *flying == 0 {
                self.owners.remove(&flight.owner);
            }
        }
        if !answered {
            self.claims.remove(&flight.token);
        }
        self.backlogs.owners.contains(&flight.owner)
    }
}

/// Owners that have more due than room, and how far the others have been looked at.
#[derive(Default)]
pub struct Backlogs {
    owners: BTreeSet<String>,
    seen_until: DateTime<Utc>,
    survey_at: Option<Instant>,
}

impl Backlogs {
    /// How to look past them; `None`: there are none.
    pub fn look(&self, now: Instant) -> Option<Backlog<'_>> {
        (!self.owners.is_empty()).then(|| Backlog {
            owners: self.owners.iter().map(String::as_str).collect(),
            seen_until: self.seen_until,
            survey: self.survey_at.is_none_or(|at| at <= now),
        })
    }

    /// After a look along the oldest: these have one.
    pub fn found(&mut self, crowded: Vec<String>, looked_at: DateTime<Utc>) {
        self.owners = crowded.into_iter().collect();
        self.seen_until = looked_at;
        self.survey_at = None;
    }

    /// After a look past them. `asked` had room; `whole`: nothing else was left to find. A survey is repeated after `tick`.
    pub fn passed(&mut self, asked: &[String], crowded: Vec<String>, whole: bool, looked: Looked) {
        self.owners.retain(|owner| !asked.contains(owner));
        self.owners.extend(crowded);
        if !whole {
            self.survey_at = None;
            return;
        }
        self.seen_until = looked.by_postgres;
        if looked.surveyed {
            self.survey_at = Some(looked.at + looked.tick);
        }
    }

    /// Whether more is to be found by looking again at once.
    pub fn wants_survey(&self) -> bool {
        !self.owners.is_empty() && self.survey_at.is_none()
    }
}

/// When a look past backlogs was, and what it was.
#[derive(Clone, Copy, Debug)]
pub struct Looked {
    pub at: Instant,
    pub by_postgres: DateTime<Utc>,
    pub surveyed: bool,
    pub tick: std::time::Duration,
}
