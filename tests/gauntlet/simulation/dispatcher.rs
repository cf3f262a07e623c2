//! One dispatcher, as `src/dispatch` is: a loop that looks, deliveries beside it, and a settler. It decides by the product's own
//! functions. Each thing it awaits is a step of its own: what it sends is kept here as a question until somebody lets it be answered.

use chronos::domain::{
    alarm::Status,
    ids::WorkerId,
    ladder::Ladder,
    occurrence::{self, Answer, Next, Passed, Settled, Verdict},
    peers::{QUIET_AFTER_BEATS, Sighting, Watch},
};

use super::{
    Flaw,
    chance::Chance,
    table::{Claim, Finished, Fold, MS, Micros, Reply, Settlement, Statement, at, micros},
};

pub const LEASE: Micros = 3_000 * MS;
pub const WAKE_TIMEOUT: Micros = 1_000 * MS;
/// Longer than anybody holds a lock: a statement that takes longer was lost.
pub const STATEMENT_TIMEOUT: Micros = 1_500 * MS;
const BEAT: Micros = 400 * MS;
const TICK: Micros = 500 * MS;
const GATHER: Micros = 5 * MS;
const SETTLE: Micros = 1_000 * MS;
const PAUSE: Micros = 200 * MS;
const SHUTDOWN: Micros = 3_000 * MS;
/// How soon who stops sees that nothing is in flight any more.
const LOOK_ROUND: Micros = 50 * MS;
const SLOTS: usize = 3;
const LADDER: Ladder =
    Ladder { base: std::time::Duration::from_millis(200), cap: std::time::Duration::from_secs(1), jitter: 0.1 };

/// Who in a process awaits an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    Loop,
    Settler,
    /// The delivery under this token.
    Delivery(u64),
}

/// What came of a statement; `Err`: nobody knows.
pub type Answered<'a> = Result<&'a Reply, ()>;

enum Loop {
    Waits,
    Looks {
        asked_at: Micros,
        beat: bool,
        rows: usize,
    },
    Folds {
        folds: Vec<Fold>,
        asked_at: Micros,
        answered_at: Micros,
        then: Then,
    },
    GivesBack {
        then: Then,
    },
    TakesOver {
        then: Then,
    },
    LetsGo {
        then: Then,
    },
    /// Told to stop and clear: its claims are released, then it signs off.
    Leaves,
    SignsOff,
    Gone,
}

/// What is left to do after a look. `dead`: if it was a beat.
struct Then {
    dead: Option<Vec<Sighting>>,
    again_at: Micros,
    released: bool,
}

enum Settler {
    Waits,
    /// So many of the results are being written.
    Settles(usize),
    Records(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Whether it may go out is to be looked at.
    Held,
    /// It may, and goes out next.
    Cleared,
    Flying,
    GivingBack,
}

pub struct Delivery {
    pub claim: Claim,
    asked_at: Micros,
    answered_at: Micros,
    pub started_at: Micros,
    pub stage: Stage,
    /// Since when it could take its next step.
    pub since: Micros,
}

pub struct Process {
    pub worker: WorkerId,
    pub flaw: Option<Flaw>,
    beaten_at: Micros,
    next_beat_at: Micros,
    failed: bool,
    peers: Watch,
    main: Loop,
    pub look_at: Micros,
    pub deliveries: Vec<Delivery>,
    results: Vec<(Finished, Micros)>,
    settler: Settler,
    pub settle_at: Micros,
    lost_until: Option<Micros>,
    /// `Some`: told to stop, and until then it may finish what is in flight.
    stops_until: Option<Micros>,
}

impl Process {
    pub fn start(worker: WorkerId, flaw: Option<Flaw>, now: Micros) -> Self {
        Self {
            worker,
            flaw,
            beaten_at: now,
            next_beat_at: now,
            failed: false,
            peers: Watch::default(),
            main: Loop::Waits,
            look_at: now,
            deliveries: Vec::new(),
            results: Vec::new(),
            settler: Settler::Waits,
            settle_at: now,
            lost_until: None,
            stops_until: None,
        }
    }

    /// An orderly stop: nothing more is claimed or sent, and what is in flight is finished.
    pub fn stop(&mut self, now: Micros) {
        self.stops_until.get_or_insert(now + SHUTDOWN);
        self.look_at = self.look_at.min(now);
    }

    pub fn is_gone(&self) -> bool {
        matches!(self.main, Loop::Gone)
    }

    /// Whether it stops with deliveries in flight: they are aborted, and others deliver them again.
    pub fn is_overdue(&self, now: Micros) -> bool {
        self.stops_until.is_some_and(|until| until <= now) && !self.is_clear()
    }

    pub fn waits(&self) -> bool {
        matches!(self.main, Loop::Waits)
    }

    pub fn has_results(&self) -> bool {
        matches!(self.settler, Settler::Waits) && !self.results.is_empty()
    }

    pub fn is_clear(&self) -> bool {
        self.deliveries.is_empty() && self.results.is_empty()
    }

    fn tokens(&self) -> Vec<u64> {
        let flying = self.deliveries.iter().map(|delivery| delivery.claim.token);
        flying.chain(self.results.iter().map(|((claim, _), _)| claim.token)).collect()
    }

    fn lose(&mut self, now: Micros) {
        self.lost_until = Some(now + STATEMENT_TIMEOUT * 2);
    }

    /// The loop's next look.
    pub fn look(&mut self, now: Micros) -> Option<Statement> {
        if let Some(until) = self.stops_until
            && (self.is_clear() || until <= now)
        {
            self.deliveries.clear();
            self.results.clear();
            self.main = Loop::Leaves;
            return Some(Statement::ReleaseLost { worker: self.worker, known: Vec::new() });
        }
        let stops = self.stops_until.is_some();
        let beat = self.next_beat_at <= now;
        let only_beat = beat && self.failed;
        let rows = if only_beat || stops { 0 } else { SLOTS.saturating_sub(self.deliveries.len()) };
        if rows == 0 && !beat {
            self.look_at = if stops { self.next_beat_at.min(now + LOOK_ROUND) } else { self.next_beat_at };
            return None;
        }
        self.main = Loop::Looks { asked_at: now, beat, rows };
        Some(Statement::Look { worker: self.worker, beat, rows, lease: LEASE })
    }

    /// The settler's next batch.
    pub fn settle(&mut self) -> Statement {
        self.settler = Settler::Settles(self.results.len());
        Statement::Settle(self.results.iter().map(|(result, _)| result.clone()).collect())
    }

    /// A delivery looks whether it may go out. `Some`: it may not, and is given back.
    pub fn clear(&mut self, place: usize, now: Micros) -> Option<Statement> {
        let is_lost = now - self.beaten_at > BEAT * Micros::from(QUIET_AFTER_BEATS);
        let delivery = &mut self.deliveries[place];
        let is_old = now - delivery.asked_at + WAKE_TIMEOUT + SETTLE > LEASE;
        delivery.since = now;
        delivery.stage =
            if is_lost || is_old || self.stops_until.is_some() { Stage::GivingBack } else { Stage::Cleared };
        (delivery.stage == Stage::GivingBack).then(|| Statement::GiveBack(vec![delivery.claim.clone()]))
    }

    /// Somebody's statement was answered; what follows at once.
    pub fn answered(&mut self, who: Who, answer: Answered<'_>, now: Micros) -> Option<Statement> {
        match who {
            Who::Loop => self.loop_answered(answer, now),
            Who::Settler => self.settler_answered(answer, now),
            Who::Delivery(token) => {
                self.deliveries.retain(|delivery| delivery.claim.token != token);
                if answer.is_err() {
                    self.lose(now);
                }
                None
            }
        }
    }

    fn loop_answered(&mut self, answer: Answered<'_>, now: Micros) -> Option<Statement> {
        match (std::mem::replace(&mut self.main, Loop::Waits), answer) {
            (Loop::Looks { asked_at, beat, rows }, Ok(Reply::Looked { claims, peers, next_at, now: looked_at })) => {
                self.failed = false;
                let dead = beat.then(|| self.beaten(asked_at, now, peers));
                // Our clocks run alike, and an answer takes no longer than the question did.
                let due_in = next_at.map_or(TICK, |next_at| (next_at - looked_at).min(TICK));
                let mut then = Then { dead, again_at: asked_at + due_in, released: false };
                if claims.len() == rows && rows > 0 {
                    then.again_at = asked_at;
                }
                let folds = self.take(claims, asked_at, now);
                if folds.is_empty() {
                    return self.after_taking(then, now);
                }
                let statement = Statement::Fold(folds.clone());
                self.main = Loop::Folds { folds, asked_at, answered_at: now, then };
                Some(statement)
            }
            (Loop::Looks { beat, rows, .. }, _) => {
                self.failed = true;
                if rows > 0 {
                    self.lose(now);
                }
                if beat {
                    self.peers.not_beaten();
                }
                self.look_at = now + TICK;
                None
            }
            (Loop::Folds { folds, asked_at, answered_at, then }, Ok(Reply::Folded(standing))) => {
                for Fold { mut claim, slot, missed, .. } in folds {
                    if standing.contains(&claim.alarm) {
                        (claim.due_at, claim.missed) = (micros(slot.effective_at()), missed);
                        claim.scheduled_for = micros(slot.scheduled_for);
                        claim.series_at = claim.scheduled_for;
                        if self.flaw != Some(Flaw::NewId) {
                            claim.delivery = claim.deliver_as(claim.scheduled_for);
                        }
                        self.hold(claim, asked_at, answered_at, now);
                    }
                }
                self.after_taking(then, now)
            }
            (Loop::Folds { folds, then, .. }, _) => {
                self.main = Loop::GivesBack { then };
                Some(Statement::GiveBack(folds.into_iter().map(|fold| fold.claim).collect()))
            }
            (Loop::GivesBack { then }, answer) => {
                if answer.is_err() {
                    self.lose(now);
                }
                self.after_taking(then, now)
            }
            (Loop::TakesOver { mut then }, answer) => {
                then.released |= matches!(answer, Ok(Reply::Released(true)));
                self.after_taking(then, now)
            }
            (Loop::LetsGo { mut then }, answer) => {
                if let Ok(Reply::Released(released)) = answer {
                    then.released |= *released;
                    self.lost_until = self.lost_until.filter(|until| now <= *until);
                }
                self.rest(&then, now);
                None
            }
            // Whatever came of it: the others find out by themselves.
            (Loop::Leaves, Ok(_)) => {
                self.main = Loop::SignsOff;
                Some(Statement::SignOff(self.worker))
            }
            (Loop::Leaves | Loop::SignsOff, _) => {
                self.main = Loop::Gone;
                None
            }
            (Loop::Waits | Loop::Gone, _) => unreachable!("an answer that nobody awaits is dropped"),
        }
    }

    /// Claims are in hand: the dead are next, then what was lost, then a rest.
    fn after_taking(&mut self, mut then: Then, now: Micros) -> Option<Statement> {
        if let Some(dead) = &mut then.dead {
            if let Some(peer) = dead.pop() {
                self.main = Loop::TakesOver { then };
                return Some(Statement::ReleaseDead(peer));
            }
            if self.lost_until.is_some() {
                self.main = Loop::LetsGo { then };
                return Some(Statement::ReleaseLost { worker: self.worker, known: self.tokens() });
            }
        }
        self.rest(&then, now);
        None
    }

    fn rest(&mut self, then: &Then, now: Micros) {
        let again_at = if then.released { now } else { then.again_at };
        self.look_at = again_at.min(self.next_beat_at).max(now + GATHER);
    }

    fn beaten(&mut self, sent_at: Micros, answered_at: Micros, peers: &[Sighting]) -> Vec<Sighting> {
        (self.beaten_at, self.next_beat_at) = (sent_at, answered_at + BEAT);
        if answered_at - sent_at > BEAT {
            self.peers.not_beaten();
        }
        if self.flaw == Some(Flaw::BuriesTooSoon) {
            self.peers.beaten(peers);
            self.peers.beaten(peers);
        }
        self.peers.beaten(peers)
    }

    /// Judges claims; those whose wake is to be another's are for the caller to write.
    fn take(&mut self, claims: &[Claim], asked_at: Micros, now: Micros) -> Vec<Fold> {
        let mut folds = Vec::new();
        for claim in claims.iter().cloned() {
            match occurrence::judge(&claim.occurrence(), at(claim.due_at), at(claim.first_claimed_at)) {
                Verdict::Fire => self.hold(claim, asked_at, now, now),
                Verdict::Fold { slot, missed, passed } => folds.push(Fold { claim, slot, missed, passed }),
                Verdict::Miss(missed) => {
                    let next = missed.next;
                    let settlement = Settlement {
                        over: missed.over,
                        scheduled_for: next.map_or(claim.scheduled_for, |slot| micros(slot.scheduled_for)),
                        next_fire_at: next.map_or(claim.due_at, |slot| micros(slot.effective_at())),
                        failure_count: 0,
                        outcome: missed.passed.outcome,
                        missed: missed.missed,
                        passed: Some(missed.passed),
                        started_at: None,
                    };
                    self.finish((claim, settlement), asked_at, now);
                }
            }
        }
        folds
    }

    fn hold(&mut self, claim: Claim, asked_at: Micros, answered_at: Micros, now: Micros) {
        self.deliveries.push(Delivery { claim, asked_at, answered_at, started_at: 0, stage: Stage::Held, since: now });
    }

    fn finish(&mut self, result: Finished, asked_at: Micros, now: Micros) {
        if self.results.is_empty() {
            self.settle_at = self.settle_at.max(now);
        }
        self.results.push((result, asked_at + LEASE));
    }

    /// The router has answered, or nobody has.
    pub fn woken(&mut self, token: u64, answer: &Answer, now: Micros, chance: &mut Chance) {
        let Some(place) = self.deliveries.iter().position(|delivery| delivery.claim.token == token) else { return };
        let Delivery { claim, asked_at, answered_at, started_at, .. } = self.deliveries.swap_remove(place);
        let by_postgres = |instant: Micros| claim.claimed_at + (instant - answered_at);
        let mut occurrence = claim.occurrence();
        if self.flaw == Some(Flaw::AdvancesFromNow) {
            occurrence.series_at = at(by_postgres(now));
        }
        let mut settled = occurrence::next(&occurrence, answer, &LADDER, at(by_postgres(now)), chance.unit());
        if let Next::Retry { at, .. } = &mut settled.next {
            *at += chrono::TimeDelta::microseconds(answered_at - asked_at);
        }
        let settlement = settlement(&claim, settled, by_postgres(started_at));
        self.finish((claim, settlement), asked_at, now);
    }

    fn settler_answered(&mut self, answer: Answered<'_>, now: Micros) -> Option<Statement> {
        match (std::mem::replace(&mut self.settler, Settler::Waits), answer) {
            (Settler::Settles(count), Ok(Reply::Settled(standing))) => {
                let lost = self.results[..count].iter().map(|(result, _)| result);
                let lost: Vec<Finished> = lost.filter(|(claim, _)| !standing.contains(&claim.token)).cloned().collect();
                if lost.is_empty() {
                    self.written(count, now);
                    return None;
                }
                self.settler = Settler::Records(count);
                Some(Statement::RecordLost(lost))
            }
            (Settler::Records(count), Ok(_)) => {
                self.written(count, now);
                None
            }
            (Settler::Settles(_) | Settler::Records(_), _) => {
                // Another has the alarm by then, and this answer is worth nothing.
                self.results.retain(|(_, holds_until)| *holds_until > now);
                self.settle_at = now + PAUSE;
                None
            }
            (Settler::Waits, _) => unreachable!("an answer that nobody awaits is dropped"),
        }
    }

    fn written(&mut self, count: usize, now: Micros) {
        for ((_, settlement), _) in self.results.drain(..count) {
            if settlement.over.is_none() {
                self.look_at = self.look_at.min(settlement.next_fire_at.max(now + GATHER));
            }
        }
        self.settle_at = now + GATHER;
    }
}

/// As `store::claims::Settlement::answered` has it.
fn settlement(claim: &Claim, settled: Settled, started_at: Micros) -> Settlement {
    let common = Settlement {
        over: None,
        scheduled_for: claim.scheduled_for,
        next_fire_at: claim.scheduled_for,
        failure_count: 0,
        outcome: settled.next.outcome(),
        missed: settled.missed,
        passed: settled.passed,
        started_at: Some(started_at),
    };
    let number = claim.failure_count + 1;
    match settled.next {
        Next::Fired | Next::Retired { .. } => Settlement { over: Some(Status::Fired), ..common },
        Next::Advance { slot } | Next::Skip { slot, .. } => Settlement {
            scheduled_for: micros(slot.scheduled_for),
            next_fire_at: micros(slot.effective_at()),
            ..common
        },
        Next::Retry { at, .. } => Settlement { next_fire_at: micros(at), failure_count: number, ..common },
        Next::Failed { .. } => Settlement { over: Some(Status::Failed), failure_count: number, ..common },
        Next::Stands { status } => Settlement { over: Some(status), failure_count: claim.failure_count, ..common },
    }
}

/// Slots that a run stands for, in words.
pub fn told(passed: &Passed) -> String {
    let run = passed.run;
    format!("{} {}: {} to {}", run.slots, passed.outcome.as_str(), micros(run.first) / MS, micros(run.last) / MS)
}
