//! One look: claim what there is room for, judge it, start its deliveries.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::{debug, error, warn};

use super::{
    Dispatcher, Error, GATHER,
    deliver::Held,
    desk::{Crowded, Desk, Flight, Looked, Start},
    settle::Finished,
};
use crate::{
    domain::{
        alarm::{Slot, Subject},
        ids::DeliveryId,
        occurrence::{self, Passed, Verdict},
        peers::Sighting,
    },
    mutants::{self, Mutant, Point},
    store::claims::{Claim, Folded, Found, Look, Settlement, Unreadable},
    telemetry::{chain, metrics},
};

/// An occurrence that was claimed this often without a result is parked: whoever delivers it dies or freezes.
const MOST_CLAIMS: u32 = 20;
/// Half a round trip on a fast network: how far into a look Postgres' `now()` lies at most, as we take it.
const ONE_WAY: std::time::Duration = std::time::Duration::from_millis(1);

/// A mutant's lease.
const FOR_EVER: std::time::Duration = std::time::Duration::from_secs(86_400 * 30);

/// What one look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looks {
    pub claimed: usize,
    /// There is probably more to be had, as far as there is room.
    pub more: bool,
    /// When to look again, if nothing calls for it sooner.
    pub again_at: Instant,
}

/// A claim whose wake is to be another slot's.
struct Fold {
    claim: Box<Claim>,
    slot: Slot,
    missed: u64,
    passed: Vec<Passed>,
}

impl Dispatcher {
    /// Claims as much as there is room for, if it may, and starts its delivery. Beats when a beat is due.
    pub async fn run_once(self: &Arc<Self>, desk: &mut Desk, may_claim: bool) -> Result<Looks, Error> {
        let asked_at = Instant::now();
        let beat_is_due = self.pulse.next_beat_at() <= asked_at;
        let backlog = desk.backlogs.look(asked_at);
        // A beat looks at everything, or it would have another look follow it.
        let anywhere = backlog.is_none() && !beat_is_due;
        let start = if anywhere { desk.progress.start(asked_at, self.limits.tick) } else { Start::default() };
        // This look does not see everything: one that does is not far.
        let anew_at = desk.progress.anew_at(self.limits.tick).filter(|_| start.behind.is_some());
        let mut room = desk.room(&self.limits);
        // After a failure the beat goes first, by itself: whatever keeps the claim from succeeding must not make us look dead.
        let only_beat = beat_is_due && self.pulse.has_failed();
        if !may_claim || room.bytes == 0 || only_beat {
            room.rows = 0;
        }
        let with_suspects = desk.suspects.may_fly(asked_at);
        let rows = room.rows;
        if rows == 0 && !beat_is_due {
            return Ok(Looks { claimed: 0, more: false, again_at: self.pulse.next_beat_at() });
        }
        // Those with a backlog that are asked for, and so known afterwards.
        let has_room = |owner: &str| !room.owners.iter().any(|(busy, room)| *busy == owner && *room == 0);
        let backlogged = backlog.iter().flat_map(|backlog| &backlog.owners);
        let asked: Vec<String> = backlogged.filter(|owner| has_room(owner)).map(|owner| (*owner).to_owned()).collect();
        let (past_backlogs, surveyed) = (backlog.is_some(), backlog.as_ref().is_some_and(|backlog| backlog.survey));
        let look = Look {
            worker: self.worker,
            beat: beat_is_due.then_some(&self.beat),
            lease: if mutants::on(Mutant::NoRelease) { FOR_EVER } else { self.limits.lease },
            room,
            suspects: with_suspects,
            sessions: self.limits.sessions,
            after: start.behind,
            backlog,
        };
        let found = self.store.look(&look).await;
        self.pulse.looked(found.is_ok());
        let found = found.inspect_err(|_| {
            if rows > 0 {
                desk.lose();
                desk.progress.begin_anew();
            }
            if beat_is_due {
                self.pulse.missed();
            }
        })?;
        let answered_at = Instant::now();
        let dead = found.peers.as_ref().map(|peers| self.pulse.beaten(asked_at, answered_at, peers));
        let mut again_at = self.next_look(&found, asked_at, answered_at, may_claim);
        let claimed = found.claims.len() + found.unreadable.len();
        // As many as there was room for, or some that are taken one by one: there may be more.
        let mut more = claimed > 0 && (claimed == rows || found.suspects);
        if rows > 0 {
            let is_plain = !past_backlogs && !found.suspects && !found.held && found.unreadable.is_empty();
            // As many as there was room for, and nothing was left lying before them.
            let last = found.claims.iter().map(Claim::place).max().filter(|_| is_plain && claimed == rows);
            // From there on only what is due later is of interest; but at the end of a backlog all of it is looked at once more, for what
            // was not there or not free when the looks passed it.
            let ended = start.midway && claimed < rows;
            match last {
                Some(place) => desk.progress.come_to(place, asked_at, start),
                None if is_plain && found.whole && with_suspects && !ended => {
                    desk.progress.come_to_the_end(found.looked_at, asked_at, start);
                }
                None => desk.progress.begin_anew(),
            }
            more |= ended;
        }
        if found.suspects && claimed == 0 {
            // Somebody is holding on to one that would be taken alone, with others behind it.
            desk.suspects.not_before(asked_at + self.limits.tick);
        }
        if rows > 0 && !found.held {
            let crowded = Crowded { owners: found.crowded.clone(), suspended: found.suspended.clone() };
            if past_backlogs {
                let (took, tick) = (answered_at.duration_since(asked_at), self.limits.tick);
                let looked = Looked { at: asked_at, by_postgres: found.looked_at, surveyed, took, tick };
                desk.backlogs.passed(&asked, crowded, found.whole, looked);
            } else {
                desk.backlogs.found(crowded, found.looked_at);
            }
        }
        debug!(claimed, held = found.held, "looked for due alarms");
        metrics::claims_taken(claimed as u64);
        metrics::dispatch_held(found.held);
        if dead.is_some() {
            self.compare_clocks(&found, asked_at, answered_at);
        }
        if claimed > 0 {
            mutants::point(Point::Claimed);
        }
        self.take(desk, found, asked_at, answered_at).await;
        // What was too late takes no room: an owner's next rows need not wait for anything to land.
        more |= claimed > 0 && desk.has_room_for_backlog(&self.limits);
        // Only now that every claim of this look is in hand, and on its way.
        let released = match dead {
            Some(dead) => self.take_over(&dead).await | self.let_go_of_lost(desk).await,
            None => false,
        };
        if released {
            desk.backlogs.survey_now();
            desk.progress.begin_anew();
        }
        if released || only_beat || desk.backlogs.wants_survey() {
            again_at = asked_at;
        } else if let Some(anew_at) = anew_at {
            again_at = again_at.min(anew_at);
        }
        Ok(Looks { claimed, more, again_at: again_at.max(asked_at + GATHER) })
    }

    /// When the next alarm is due, and no later than the next tick or beat.
    fn next_look(&self, found: &Found, asked_at: Instant, answered_at: Instant, may_claim: bool) -> Instant {
        let beat_at = self.pulse.next_beat_at().max(answered_at);
        if !may_claim || found.held {
            return if may_claim { beat_at.min(asked_at + self.limits.tick) } else { beat_at };
        }
        let tick_at = asked_at + self.limits.tick;
        let looked_at = looked_at(asked_at, answered_at);
        let due_at = found.next_at.map(|at| looked_at + (at - found.looked_at).to_std().unwrap_or_default());
        due_at.map_or(tick_at, |due_at| due_at.min(tick_at)).min(beat_at)
    }

    /// For operators only: nothing is decided by our own clock.
    fn compare_clocks(&self, found: &Found, asked_at: Instant, answered_at: Instant) {
        let by_postgres = found.looked_at + looked_at(asked_at, answered_at).elapsed();
        let ahead = (self.clock.now() - by_postgres).num_microseconds().unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        metrics::database_clock_skew(ahead as f64 / 1e6);
    }

    /// Takes the claims of the dead. Says whether there were any.
    async fn take_over(&self, dead: &[Sighting]) -> bool {
        let mut taken = false;
        let dead = if mutants::on(Mutant::NoRelease) { &[] } else { dead };
        for peer in dead {
            let worker = peer.worker;
            match self.store.release_if_still_at(peer).await {
                Ok(Some(released)) => {
                    warn!(%worker, released, "dispatcher {worker} has stopped beating; its {released} claims are free again");
                    metrics::claims_released(released);
                    taken |= released > 0;
                    // Its wakes of sessions are free, too.
                    self.wakes_waiting.notify_one();
                }
                Ok(None) => {}
                Err(error) => warn!(%worker, error = %chain(&error), "cannot take over from dispatcher {worker} yet"),
            }
        }
        taken
    }

    /// Lets go of claims of ours that nobody here knows of, with every beat until none can turn up any more. Says whether there
    /// were any.
    async fn let_go_of_lost(&self, desk: &mut Desk) -> bool {
        let Some(until) = desk.lost_until else { return false };
        match self.store.release_claims_of(self.worker, &desk.tokens()).await {
            Ok(released) => {
                if Instant::now() > until {
                    desk.lost_until = None;
                }
                if released > 0 {
                    warn!(released, "let go of {released} claims whose answer was lost");
                }
                released > 0
            }
            Err(error) => {
                warn!(error = %chain(&error), "cannot let go of claims whose answer was lost yet");
                false
            }
        }
    }

    /// Judges claims and starts the deliveries of those that fire.
    async fn take(self: &Arc<Self>, desk: &mut Desk, found: Found, asked_at: Instant, answered_at: Instant) {
        metrics::alarms_unreadable(found.unreadable.len() as u64);
        let mut poison = found.unreadable;
        for row in &mut poison {
            row.why = format!("cannot be read: {}", row.why);
        }
        let mut folds = Vec::new();
        let holds_until = asked_at + self.limits.lease;
        for claim in found.claims.into_iter().map(Box::new) {
            if claim.claims > MOST_CLAIMS {
                let why =
                    format!("parked: claimed {MOST_CLAIMS} times without a result; whatever delivers it ends or hangs");
                poison.push(Unreadable { id: claim.wake.alarm_id, token: claim.token, why });
                continue;
            }
            match occurrence::judge(&claim.occurrence(), claim.due_at, claim.first_claimed_at) {
                Verdict::Fire => match claim.subject {
                    Subject::Agent | Subject::ServiceCall => self.start(desk, Held { claim, asked_at, answered_at }),
                    Subject::Session => self.promote(desk, Held { claim, asked_at, answered_at }),
                },
                Verdict::Fold { slot, missed, passed } => folds.push(Fold { claim, slot, missed, passed }),
                Verdict::Miss(missed) => {
                    let settlement = Settlement::missed(&claim, missed);
                    let wanted_at = settlement
                        .wanted_at()
                        .map(|at| answered_at + (at - claim.claimed_at).to_std().unwrap_or_default());
                    desk.hold(&claim);
                    let finished = Finished { claim, settlement, holds_until, wanted_at, lateness: None, span: None };
                    drop(self.results.send(finished));
                }
            }
        }
        self.fold(desk, folds, asked_at, answered_at).await;
        self.park(desk, &poison).await;
    }

    /// A session's timer: nothing goes out, it becomes an event of its session, under the claim's token.
    fn promote(&self, desk: &mut Desk, held: Held) {
        desk.hold(&held.claim);
        // The promoter ends after us, or with the process.
        drop(self.promotions.send(self.promotion(held)));
    }

    fn start(self: &Arc<Self>, desk: &mut Desk, held: Held) {
        let dispatcher = Arc::clone(self);
        desk.start(Flight::of(&held.claim), async move { dispatcher.deliver(held).await });
    }

    /// What goes out instead is in the table before it goes out.
    async fn fold(self: &Arc<Self>, desk: &mut Desk, folds: Vec<Fold>, asked_at: Instant, answered_at: Instant) {
        if folds.is_empty() {
            return;
        }
        let rows: Vec<Folded<'_>> = folds
            .iter()
            .map(|fold| Folded { claim: &fold.claim, slot: fold.slot, missed: fold.missed, passed: &fold.passed })
            .collect();
        match self.store.fold_under_token(self.worker, &rows).await {
            Ok(standing) => {
                for fold in folds {
                    // Cancelled or planned anew meanwhile: nothing goes out.
                    if standing.contains(&fold.claim.wake.alarm_id) {
                        metrics::slots_missed(fold.passed.iter().map(Passed::slots_missed).sum());
                        self.start(desk, Held { claim: fold.into_claim(), asked_at, answered_at });
                    }
                }
            }
            Err(error) => {
                warn!(folds = folds.len(), error = %chain(&error), "cannot fold slots that passed yet");
                let claims: Vec<&Claim> = folds.iter().map(|fold| &*fold.claim).collect();
                desk.progress.begin_anew();
                if !self.give_back(&claims, "what it stands for could not be written").await {
                    desk.lose();
                }
            }
        }
    }

    async fn park(&self, desk: &mut Desk, poison: &[Unreadable]) {
        if poison.is_empty() {
            return;
        }
        for row in poison {
            error!(alarm_id = %row.id, why = row.why, "alarm {} is parked as failed: {}", row.id, row.why);
        }
        if let Err(error) = self.store.park_under_token(self.worker, poison, self.ladder.cap).await {
            // They are let go with the next beat, and come back.
            desk.lose();
            warn!(rows = poison.len(), error = %chain(&error), "alarms cannot be parked yet");
        }
    }
}

/// Postgres' `now()` of a look, on our clock: shortly after it was sent.
fn looked_at(asked_at: Instant, answered_at: Instant) -> Instant {
    asked_at + (answered_at.duration_since(asked_at) / 2).min(ONE_WAY)
}

impl Fold {
    fn into_claim(self) -> Box<Claim> {
        let Self { mut claim, slot, missed, .. } = self;
        claim.due_at = slot.effective_at();
        claim.series_at = slot.scheduled_for;
        claim.wake.scheduled_for = slot.scheduled_for;
        claim.wake.delivery_id = DeliveryId::of(claim.wake.alarm_id, claim.epoch, slot.scheduled_for);
        claim.wake.missed = missed;
        claim
    }
}
