//! The tables, in memory, and the statements of `store::claims` as they are meant: each atomic, each with its fence. What somebody has
//! locked is passed over by who skips, and waited for by who does not.

use std::{collections::BTreeMap, rc::Rc};

use chrono::{DateTime, TimeDelta, Utc};
use chronos::domain::{
    alarm::{Slot, Status, Subject, Timing},
    ids::{AlarmId, DeliveryId, ScheduleEpoch, WorkerId},
    occurrence::{Occurrence, Outcome, Passed},
    peers::Sighting,
};

use super::Flaw;

/// Microseconds since the simulation began: Postgres' clock, and everybody's stopwatch.
pub type Micros = i64;

pub const MS: Micros = 1_000;

/// When the simulation begins: 2027-01-15 08:00 UTC.
const BEGIN: i64 = 1_800_000_000_000_000;

pub fn at(instant: Micros) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(BEGIN + instant).expect("within the calendar")
}

pub fn micros(instant: DateTime<Utc>) -> Micros {
    instant.timestamp_micros() - BEGIN
}

pub struct Row {
    pub id: AlarmId,
    pub epoch: i64,
    pub timing: Rc<Timing>,
    pub offset: TimeDelta,
    pub status: Status,
    pub scheduled_for: Micros,
    pub series_at: Option<Micros>,
    pub next_fire_at: Micros,
    pub failure_count: u32,
    pub max_failures: u32,
    /// What the wake now due tells of.
    pub missed: u64,
    pub claim: Option<Claimed>,
    pub claims: u32,
    pub first_claimed_at: Option<Micros>,
    /// A client's transaction has it.
    pub locked: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub struct Claimed {
    pub token: u64,
    pub by: WorkerId,
    pub until: Micros,
}

impl Row {
    /// A wake may be under way.
    pub fn in_flight(&self, now: Micros) -> bool {
        self.claim.is_some_and(|claim| claim.until > now)
    }

    pub fn release(&mut self) {
        (self.claim, self.claims, self.first_claimed_at) = (None, 0, None);
    }

    /// The fence of fold and settle.
    fn stands(&self, claim: &Claim, flaw: Option<Flaw>) -> bool {
        let token = self.claim.is_some_and(|mine| mine.token == claim.token);
        match flaw {
            Some(Flaw::SettleWithoutToken) => self.epoch == claim.epoch && self.status.is_living(),
            Some(Flaw::SettleRevives) => token || self.status == Status::Cancelled,
            _ => token && self.epoch == claim.epoch && self.status.is_living(),
        }
    }
}

/// What a claim brings its dispatcher.
#[derive(Clone)]
pub struct Claim {
    pub alarm: usize,
    pub id: AlarmId,
    pub token: u64,
    pub epoch: i64,
    pub claimed_at: Micros,
    pub first_claimed_at: Micros,
    pub due_at: Micros,
    pub failure_count: u32,
    pub max_failures: u32,
    pub timing: Rc<Timing>,
    pub offset: TimeDelta,
    pub series_at: Micros,
    pub scheduled_for: Micros,
    pub missed: u64,
    pub delivery: DeliveryId,
}

impl Claim {
    pub fn occurrence(&self) -> Occurrence<'_> {
        Occurrence {
            subject: Subject::Agent,
            status: Status::Active,
            timing: &self.timing,
            offset: self.offset,
            scheduled_for: at(self.scheduled_for),
            series_at: at(self.series_at),
            missed: self.missed,
            failure_count: self.failure_count,
            max_failures: self.max_failures,
        }
    }

    pub fn deliver_as(&self, scheduled_for: Micros) -> DeliveryId {
        DeliveryId::of(self.id, ScheduleEpoch(self.epoch), at(scheduled_for))
    }
}

#[derive(Clone)]
pub struct Fold {
    pub claim: Claim,
    pub slot: Slot,
    pub missed: u64,
    pub passed: Vec<Passed>,
}

/// What a claim comes to.
#[derive(Clone)]
pub struct Settlement {
    pub over: Option<Status>,
    pub scheduled_for: Micros,
    pub next_fire_at: Micros,
    pub failure_count: u32,
    pub outcome: Outcome,
    pub missed: u64,
    pub passed: Option<Passed>,
    /// When it was sent; `None`: it was not.
    pub started_at: Option<Micros>,
}

pub type Finished = (Claim, Settlement);

/// A row of history.
pub struct Told {
    pub alarm: usize,
    pub epoch: i64,
    pub token: u64,
    pub what: What,
}

pub enum What {
    Tried { scheduled_for: Micros, delivery: DeliveryId, number: u32, started_at: Micros, outcome: Outcome },
    Passed(Passed),
}

/// A statement, as it was sent.
#[derive(Clone)]
pub enum Statement {
    Look { worker: WorkerId, beat: bool, rows: usize, lease: Micros },
    Fold(Vec<Fold>),
    GiveBack(Vec<Claim>),
    ReleaseDead(Sighting),
    ReleaseLost { worker: WorkerId, known: Vec<u64> },
    Settle(Vec<Finished>),
    RecordLost(Vec<Finished>),
    SignOff(WorkerId),
}

pub enum Reply {
    Looked {
        claims: Vec<Claim>,
        peers: Vec<Sighting>,
        next_at: Option<Micros>,
        now: Micros,
    },
    /// The alarms whose claim stood.
    Folded(Vec<usize>),
    /// The tokens whose claim stood.
    Settled(Vec<u64>),
    Released(bool),
    Done,
}

#[derive(Default)]
pub struct Table {
    pub rows: Vec<Row>,
    pub history: Vec<Told>,
    pub dispatchers: BTreeMap<WorkerId, (i64, Micros)>,
    pub flaw: Option<Flaw>,
    tokens: u64,
}

impl Table {
    pub fn with(flaw: Option<Flaw>) -> Self {
        Self { flaw, ..Self::default() }
    }

    /// Carries a statement out; `None`: it waits for a row that somebody has locked.
    pub fn execute(&mut self, statement: &Statement, now: Micros) -> Option<Reply> {
        Some(match statement {
            Statement::Look { worker, beat, rows, lease } => self.look(*worker, *beat, *rows, *lease, now),
            Statement::Fold(folds) => {
                self.free(folds.iter().map(|fold| &fold.claim))?;
                Reply::Folded(folds.iter().filter(|fold| self.fold(fold)).map(|fold| fold.claim.alarm).collect())
            }
            Statement::GiveBack(claims) => {
                self.free(claims)?;
                for claim in claims {
                    let row = &mut self.rows[claim.alarm];
                    if row.claim.is_some_and(|mine| mine.token == claim.token) {
                        row.claim = None;
                        row.first_claimed_at = row.first_claimed_at.filter(|_| row.claims > 1);
                        row.claims = row.claims.saturating_sub(1);
                    }
                }
                Reply::Done
            }
            Statement::ReleaseDead(dead) => self.release_if_still_at(dead, now),
            Statement::ReleaseLost { worker, known } => {
                let mut any = false;
                for row in self.due(*worker, now).filter(|row| !row.locked) {
                    if !known.contains(&row.claim.expect("it is claimed").token) {
                        (row.claim, any) = (None, true);
                    }
                }
                Reply::Released(any)
            }
            Statement::Settle(batch) => {
                self.free(batch.iter().map(|(claim, _)| claim))?;
                Reply::Settled(
                    batch.iter().filter(|result| self.settle(result)).map(|(claim, _)| claim.token).collect(),
                )
            }
            Statement::RecordLost(batch) => {
                for result in batch {
                    self.record_lost(result);
                }
                Reply::Done
            }
            Statement::SignOff(worker) => {
                self.dispatchers.remove(worker);
                Reply::Done
            }
        })
    }

    /// `None`: one of them is locked by somebody who takes no turn meanwhile.
    fn free<'a>(&self, claims: impl IntoIterator<Item = &'a Claim>) -> Option<()> {
        (!claims.into_iter().any(|claim| self.rows[claim.alarm].locked)).then_some(())
    }

    /// A worker's claims, as those who release them find them.
    fn due(&mut self, worker: WorkerId, now: Micros) -> impl Iterator<Item = &mut Row> {
        let is_its = move |row: &Row| row.claim.is_some_and(|claim| claim.by == worker);
        let due = move |row: &Row| row.status == Status::Active && row.next_fire_at <= now;
        self.rows.iter_mut().filter(move |row| is_its(row) && due(row))
    }

    fn look(&mut self, worker: WorkerId, beat: bool, rows: usize, lease: Micros, now: Micros) -> Reply {
        let is_seen = self.dispatchers.contains_key(&worker);
        let peers = self.dispatchers.iter().filter(|(peer, _)| beat && **peer != worker);
        let peers = peers.map(|(worker, (beats, started_at))| Sighting {
            worker: *worker,
            beats: *beats,
            started_at: at(*started_at),
        });
        let peers = peers.collect();
        let early = if self.flaw == Some(Flaw::LooksAhead) { 700 * MS } else { 0 };
        let mut due: Vec<usize> = Vec::new();
        if beat || is_seen {
            let taken = |row: &Row| row.in_flight(now) && self.flaw != Some(Flaw::ClaimsWhatIsClaimed);
            let free = |row: &Row| row.status == Status::Active && row.next_fire_at <= now + early && !taken(row);
            due.extend(
                self.rows.iter().enumerate().filter(|(_, row)| free(row) && !row.locked).map(|(place, _)| place),
            );
            due.sort_by_key(|place| self.rows[*place].next_fire_at);
            due.truncate(rows);
        }
        let next_at = self.rows.iter().filter(|row| row.status == Status::Active && row.next_fire_at > now);
        let next_at = next_at.map(|row| row.next_fire_at).min();
        let claims = due.into_iter().map(|place| self.claim(place, worker, lease, now)).collect();
        if beat {
            self.dispatchers.entry(worker).and_modify(|(beats, _)| *beats += 1).or_insert((1, now));
        }
        Reply::Looked { claims, peers, next_at, now }
    }

    fn claim(&mut self, place: usize, worker: WorkerId, lease: Micros, now: Micros) -> Claim {
        self.tokens += 1;
        let (token, row) = (self.tokens, &mut self.rows[place]);
        let until = if self.flaw == Some(Flaw::NoRelease) { Micros::MAX } else { now + lease };
        row.claim = Some(Claimed { token, by: worker, until });
        row.claims += 1;
        if self.flaw == Some(Flaw::JudgesAgain) {
            row.first_claimed_at = None;
        }
        let first_claimed_at = *row.first_claimed_at.get_or_insert(now);
        let id = match self.flaw {
            Some(Flaw::NewId) => DeliveryId::from_uuid(uuid::Uuid::from_u128(u128::from(token))),
            _ => DeliveryId::of(row.id, ScheduleEpoch(row.epoch), at(row.scheduled_for)),
        };
        Claim {
            alarm: place,
            id: row.id,
            token,
            epoch: row.epoch,
            claimed_at: now,
            first_claimed_at,
            due_at: row.next_fire_at,
            failure_count: row.failure_count,
            max_failures: row.max_failures,
            timing: Rc::clone(&row.timing),
            offset: row.offset,
            series_at: row.series_at.unwrap_or(row.scheduled_for),
            scheduled_for: row.scheduled_for,
            missed: row.missed,
            delivery: id,
        }
    }

    fn fold(&mut self, fold: &Fold) -> bool {
        let row = &mut self.rows[fold.claim.alarm];
        if !row.stands(&fold.claim, None) {
            return false;
        }
        (row.scheduled_for, row.series_at) = (micros(fold.slot.scheduled_for), None);
        (row.next_fire_at, row.missed) = (micros(fold.slot.effective_at()), fold.missed);
        for passed in &fold.passed {
            self.tell(&fold.claim, What::Passed(*passed));
        }
        true
    }

    fn settle(&mut self, (claim, settlement): &Finished) -> bool {
        let row = &mut self.rows[claim.alarm];
        if !row.stands(claim, self.flaw) {
            return false;
        }
        row.status = match (settlement.over, self.flaw) {
            (Some(over), _) => over,
            (None, Some(Flaw::SettleRevives)) => Status::Active,
            (None, _) => row.status,
        };
        row.series_at = row.series_at.filter(|_| row.scheduled_for == settlement.scheduled_for);
        (row.scheduled_for, row.next_fire_at) = (settlement.scheduled_for, settlement.next_fire_at);
        (row.failure_count, row.missed) = (settlement.failure_count, settlement.missed);
        row.release();
        if settlement.started_at.is_some() {
            self.try_told(claim, settlement, settlement.outcome);
        }
        if let Some(passed) = settlement.passed {
            self.tell(claim, What::Passed(passed));
        }
        true
    }

    /// A settle that was sent again finds its own row, and adds none.
    fn record_lost(&mut self, (claim, settlement): &Finished) {
        let known = |told: &Told| {
            let same = |started_at: Micros| Some(started_at) == settlement.started_at;
            told.token == claim.token && matches!(told.what, What::Tried { started_at, .. } if same(started_at))
        };
        if settlement.started_at.is_some() && !self.history.iter().any(known) {
            let is_cancelled = self.rows[claim.alarm].status == Status::Cancelled;
            let outcome = if is_cancelled { Outcome::Cancelled } else { Outcome::Fenced };
            self.try_told(claim, settlement, outcome);
        }
    }

    fn try_told(&mut self, claim: &Claim, settlement: &Settlement, outcome: Outcome) {
        let (scheduled_for, delivery, number) = (claim.scheduled_for, claim.delivery, claim.failure_count + 1);
        let started_at = settlement.started_at.unwrap_or_default();
        self.tell(claim, What::Tried { scheduled_for, delivery, number, started_at, outcome });
    }

    fn tell(&mut self, claim: &Claim, what: What) {
        self.history.push(Told { alarm: claim.alarm, epoch: claim.epoch, token: claim.token, what });
    }

    fn release_if_still_at(&mut self, dead: &Sighting, now: Micros) -> Reply {
        let stands = self.dispatchers.get(&dead.worker);
        let stands =
            stands.is_some_and(|(beats, started_at)| *beats == dead.beats && at(*started_at) == dead.started_at);
        if !stands || self.flaw == Some(Flaw::NoRelease) {
            return Reply::Released(false);
        }
        let (mut any, mut all) = (false, true);
        for row in self.due(dead.worker, now) {
            if row.locked {
                all = false;
            } else {
                (row.claim, any) = (None, true);
            }
        }
        if all {
            self.dispatchers.remove(&dead.worker);
        }
        Reply::Released(any)
    }
}
