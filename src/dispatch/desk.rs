//! What this dispatcher has in hand: deliveries under way, results on their way to the table, whose they are, and how much
//! room is left. All of it can be lost with the process: the table knows every claim.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use chrono::{DateTime, Utc};
use tokio::{
    task::{Id, JoinError, JoinSet},
    time::Instant,
};

use super::{Limits, settle::Written};
use crate::{
    domain::ids::ClaimToken,
    store::{
        STATEMENT_TIMEOUT,
        claims::{Backlog, Claim, Place, Room},
    },
};

/// Payloads in memory at once: 256 of the largest there can be.
const MOST_BYTES: usize = 64 * 1024 * 1024;
/// This part of the slots, or of a batch, is worth a look: the others go on meanwhile.
const FILLED: usize = 2;
/// Between two surveys while all who have a backlog are suspended, for days maybe: a tick, or so many times what the last one took, where there
/// are very many owners to ask about,
const SURVEY_COSTS: u32 = 20;
/// but no longer than this: what a dead dispatcher had claimed goes out within 25 s.
const SELDOM: Duration = Duration::from_secs(10);
/// From the beginning at least this often: a tick may be long where hints can be relied on.
const ANEW: Duration = Duration::from_secs(1);
/// What wants attention within this time may have been due, by Postgres' clock, before it was written: a look that was faster has passed it.
const SOON: Duration = Duration::from_millis(50);
/// Claims in hand for every delivery in flight: while results are being written, the next deliveries are under way.
const CLAIMS_PER_SLOT: usize = 3;

#[derive(Default)]
pub struct Desk {
    /// Each says at its end whether a result is on its way to the table.
    deliveries: JoinSet<Landed>,
    flights: HashMap<Id, Flight>,
    /// Every claim in hand, in flight or waiting to be settled, and what it weighs.
    claims: BTreeMap<ClaimToken, usize>,
    owners: HashMap<String, usize>,
    bytes: usize,
    pub backlogs: Backlogs,
    pub progress: Progress,
    pub suspects: Suspects,
    /// Until then rows may turn up as ours that nobody here knows of.
    pub lost_until: Option<Instant>,
}

/// How a delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Landed {
    /// Its result goes to the table.
    Answered,
    /// Nothing was sent, and the claim is let go.
    NotSent,
    /// Nothing was sent, and the claim may still stand.
    Lost,
}

/// What a delivery takes up.
pub struct Flight {
    token: ClaimToken,
    owner: String,
    bytes: usize,
    suspect: bool,
}

impl Flight {
    pub fn of(claim: &Claim) -> Self {
        let (owner, suspect) = (claim.wake.owner_did.clone(), claim.is_suspect());
        Self { token: claim.token, owner, bytes: claim.bytes(), suspect }
    }
}

impl Desk {
    /// How much may be claimed now.
    pub fn room(&self, limits: &Limits) -> Room<'_> {
        Room {
            rows: self.free_rows(limits),
            bytes: self.free_bytes(),
            of_owner: limits.owner_concurrency,
            owners: self
                .owners
                .iter()
                .map(|(owner, flying)| (owner.as_str(), limits.owner_concurrency.saturating_sub(*flying)))
                .collect(),
        }
    }

    fn free_rows(&self, limits: &Limits) -> usize {
        let in_hand = (limits.concurrency * CLAIMS_PER_SLOT).saturating_sub(self.claims.len());
        let slots = limits.concurrency.saturating_sub(self.flights.len());
        limits.batch.min(slots).min(in_hand)
    }

    fn free_bytes(&self) -> usize {
        MOST_BYTES.saturating_sub(self.bytes)
    }

    /// Whether nothing at all may be claimed.
    pub fn is_full(&self, limits: &Limits) -> bool {
        self.free_rows(limits) == 0 || self.free_bytes() == 0
    }

    /// Whether there is room for so many that a look pays, while more is due than there is room for.
    pub fn has_room_worth_a_look(&self, limits: &Limits) -> bool {
        self.free_bytes() > 0 && self.free_rows(limits) >= limits.batch.min(limits.concurrency).div_ceil(FILLED)
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
        self.claims.keys().copied().collect()
    }

    /// A claim whose answer was lost, or that could not be given back, may stand as ours with nobody here to know of it. As long as
    /// Postgres may still carry out what was asked of it.
    pub fn lose(&mut self) {
        self.lost_until = Some(Instant::now() + STATEMENT_TIMEOUT * 2);
    }

    /// Takes a claim that only has to be settled.
    pub fn hold(&mut self, claim: &Claim) {
        self.insert(claim.token, claim.bytes());
    }

    /// Takes a claim and starts its delivery.
    pub fn start(&mut self, flight: Flight, delivery: impl Future<Output = Landed> + Send + 'static) {
        self.insert(flight.token, flight.bytes);
        *self.owners.entry(flight.owner.clone()).or_default() += 1;
        self.suspects.flying += usize::from(flight.suspect);
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

    /// Takes what has landed by now.
    pub fn land_ready(&mut self) {
        while let Some(landed) = self.deliveries.try_join_next_with_id() {
            self.land(landed);
        }
    }

    /// Ends every delivery where it is.
    pub async fn abort(&mut self) {
        self.deliveries.abort_all();
        while let Some(landed) = self.deliveries.join_next_with_id().await {
            self.land(landed);
        }
    }

    /// Claims that are settled, or were given up. An alarm among them that wants attention at once may have an instant long past: that of
    /// the next of its slots that are made up for.
    pub fn settled(&mut self, written: &Written) {
        for token in &written.tokens {
            self.remove(*token);
        }
        if written.wanted_at.is_some_and(|at| at <= Instant::now() + SOON) {
            self.progress.begin_anew();
        }
    }

    fn insert(&mut self, token: ClaimToken, bytes: usize) {
        self.bytes += bytes;
        self.claims.insert(token, bytes);
    }

    fn remove(&mut self, token: ClaimToken) {
        self.bytes -= self.claims.remove(&token).unwrap_or(0);
    }

    fn land(&mut self, landed: Result<(Id, Landed), JoinError>) -> bool {
        let (id, how) = match landed {
            Ok(landed) => landed,
            Err(error) => {
                if error.is_panic() {
                    tracing::error!(%error, "a delivery panicked; its claim is let go, and it is tried again");
                }
                (error.id(), Landed::Lost)
            }
        };
        let Some(flight) = self.flights.remove(&id) else { return false };
        if let Some(flying) = self.owners.get_mut(&flight.owner) {
            *flying -= 1;
            if *flying == 0 {
                self.owners.remove(&flight.owner);
            }
        }
        match how {
            // Until it is settled.
            Landed::Answered => {}
            Landed::NotSent => {
                self.remove(flight.token);
                self.progress.begin_anew();
            }
            Landed::Lost => {
                self.remove(flight.token);
                self.lose();
            }
        }
        if flight.suspect {
            self.suspects.flying -= 1;
            // Others were passed over because of it, and may be older than what is looked at now.
            self.backlogs.survey_now();
            self.progress.begin_anew();
        }
        flight.suspect || self.backlogs.owners.contains(&flight.owner)
    }

    /// Whether an owner has more due and may have more in flight.
    pub fn has_room_for_backlog(&self, limits: &Limits) -> bool {
        let flying = |owner: &String| self.owners.get(owner).copied().unwrap_or(0);
        let waiting = self.backlogs.owners.difference(&self.backlogs.suspended);
        waiting.into_iter().any(|owner| flying(owner) < limits.owner_concurrency)
    }
}

/// How far along those that are due the last looks have come. What lies before is in flight, or settled and not vacuumed yet, and with every look
/// it would be read through again. A claim that was freed meanwhile, an alarm that came with an instant long past: they are found from the
/// beginning, which is looked at every tick, however busy we are, and when a backlog comes to its end.
#[derive(Default)]
pub struct Progress {
    come_to: Option<Place>,
    /// Everything due has been seen; what comes next is due later.
    at_the_end: bool,
    begun_at: Option<Instant>,
}

/// Where a look begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// `None`: at the beginning.
    pub behind: Option<Place>,
    /// In the midst of a backlog: the look before took all it had room for.
    pub midway: bool,
}

impl Progress {
    pub fn start(&self, now: Instant, tick: Duration) -> Start {
        let is_fresh = self.anew_at(tick).is_some_and(|anew_at| now < anew_at);
        let behind = self.come_to.filter(|_| is_fresh);
        Start { behind, midway: behind.is_some() && !self.at_the_end }
    }

    /// A look at that time took everything up to there, but what somebody held on to.
    pub fn come_to(&mut self, place: Place, looked_at: Instant, start: Start) {
        self.come_to = Some(place);
        self.at_the_end = false;
        if start.behind.is_none() {
            self.begun_at = Some(looked_at);
        }
    }

    /// A look saw everything that was due by then.
    pub fn come_to_the_end(&mut self, due_by: DateTime<Utc>, looked_at: Instant, start: Start) {
        self.come_to(Place::last_at(due_by), looked_at, start);
        self.at_the_end = true;
    }

    /// When a look is to begin at the beginning: looks behind a place see less than everything, and one that sees everything follows them
    /// soon, whether or not anything else becomes due.
    pub fn anew_at(&self, tick: Duration) -> Option<Instant> {
        self.begun_at.map(|begun_at| begun_at + tick.min(ANEW))
    }

    pub fn begin_anew(&mut self) {
        *self = Self::default();
    }
}

/// Occurrences that were claimed again and again without a result: one at a time, so that the one that kills its dispatcher does not
/// take the others along.
#[derive(Default)]
pub struct Suspects {
    flying: usize,
    not_before: Option<Instant>,
}

impl Suspects {
    /// Whether a claim may take one.
    pub fn may_fly(&self, now: Instant) -> bool {
        self.flying == 0 && self.not_before.is_none_or(|at| at <= now)
    }

    /// The others are looked for without them until then.
    pub fn not_before(&mut self, at: Instant) {
        self.not_before = Some(at);
    }
}

/// Owners that have more due than room, and how far the others have been looked at.
#[derive(Default)]
pub struct Backlogs {
    owners: BTreeSet<String>,
    /// Those of them that get no room by waiting for what is in flight.
    suspended: BTreeSet<String>,
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
    pub fn found(&mut self, crowded: Crowded, looked_at: DateTime<Utc>) {
        self.owners = crowded.owners.into_iter().collect();
        self.suspended = crowded.suspended.into_iter().collect();
        self.seen_until = looked_at;
        self.survey_at = None;
    }

    /// After a look past them. `asked` had room; `whole`: nothing else was left to find. A survey is repeated after `tick`.
    pub fn passed(&mut self, asked: &[String], crowded: Crowded, whole: bool, looked: Looked) {
        self.owners.retain(|owner| !asked.contains(owner));
        self.owners.extend(crowded.owners);
        self.suspended = crowded.suspended.into_iter().collect();
        if !whole {
            self.survey_at = None;
            return;
        }
        self.seen_until = looked.by_postgres;
        if looked.surveyed {
            // What the looks between see is what became due since the last. A claim that was freed, an alarm that was resumed, one that was
            // committed after its instant became due before: the survey finds them, and reads of every owner there is.
            let only_suspended = self.owners.is_subset(&self.suspended);
            let pause = if only_suspended { (looked.took * SURVEY_COSTS).min(SELDOM) } else { looked.tick };
            self.survey_at = Some(looked.at + pause.max(looked.tick));
        }
    }

    /// The next look asks about everybody: something became due again that was due before.
    pub fn survey_now(&mut self) {
        self.survey_at = None;
    }

    /// Whether more is to be found by looking again at once.
    pub fn wants_survey(&self) -> bool {
        !self.owners.is_empty() && self.survey_at.is_none()
    }
}

/// Owners that a look found to have more due than room.
pub struct Crowded {
    pub owners: Vec<String>,
    /// Those of them that are suspended.
    pub suspended: Vec<String>,
}

/// When a look past backlogs was, and what it was.
#[derive(Clone, Copy, Debug)]
pub struct Looked {
    pub at: Instant,
    pub by_postgres: DateTime<Utc>,
    pub surveyed: bool,
    pub took: Duration,
    pub tick: Duration,
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::ids::AlarmId;

    const TICK: Duration = Duration::from_secs(1);

    fn place(number: u128) -> Place {
        Place { due_at: DateTime::UNIX_EPOCH, id: AlarmId::from_uuid(Uuid::from_u128(number)) }
    }

    const BEGINNING: Start = Start { behind: None, midway: false };

    #[test]
    fn looks_go_on_behind_the_last_that_was_taken_and_from_the_beginning_once_a_tick() {
        let begun = Instant::now();
        let mut progress = Progress::default();
        assert_eq!(progress.start(begun, TICK), BEGINNING);
        progress.come_to(place(1), begun, BEGINNING);
        let midway = progress.start(begun + TICK / 2, TICK);
        assert_eq!(midway, Start { behind: Some(place(1)), midway: true });
        progress.come_to(place(2), begun + TICK / 2, midway);
        assert_eq!(progress.start(begun + TICK / 2, TICK), Start { behind: Some(place(2)), midway: true });
        assert_eq!(progress.start(begun + TICK, TICK), BEGINNING, "however far the looks since have come");

        progress.come_to(place(3), begun + TICK, BEGINNING);
        assert_eq!(progress.start(begun + TICK, TICK).behind, Some(place(3)));
        progress.begin_anew();
        assert_eq!(progress.start(begun + TICK, TICK), BEGINNING);
    }

    #[test]
    fn at_the_end_looks_go_on_behind_what_was_due_by_then_and_from_the_beginning_every_second_however_long_the_tick() {
        let (begun, long) = (Instant::now(), 30 * TICK);
        let seen = |seconds| DateTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut progress = Progress::default();
        progress.come_to_the_end(seen(7), begun, BEGINNING);
        let start = progress.start(begun + ANEW / 2, long);
        assert_eq!(start, Start { behind: Some(Place::last_at(seen(7))), midway: false });
        progress.come_to_the_end(seen(8), begun + ANEW / 2, start);
        assert_eq!(progress.start(begun + ANEW, long), BEGINNING);
    }

    #[test]
    fn what_was_settled_to_be_due_at_about_now_is_looked_for_from_the_beginning_and_what_is_due_later_is_not() {
        let mut desk = Desk::default();
        let (now, soon, later) = (Instant::now(), SOON / 2, 10 * SOON);
        for (wait, start) in [(soon, None), (later, Some(place(1)))] {
            desk.progress.come_to(place(1), now, BEGINNING);
            desk.settled(&Written { tokens: Vec::new(), wanted_at: Some(now + wait) });
            assert_eq!(desk.progress.start(now, TICK).behind, start, "due in {wait:?}");
        }
    }
}
