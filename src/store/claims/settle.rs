//! What became of claims, written many at once. The fence is in the statements: token, epoch and a living status must
//! still stand. A settle may be sent again when its answer was lost: the second finds the first's rows and answers the same.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Postgres, postgres::PgArguments, query::QueryAs};
use uuid::Uuid;

use super::{Claim, RESOURCE_CHANGED};
use crate::{
    domain::{
        alarm::{Slot, Status},
        ids::{AlarmId, ClaimToken, DeliveryId, WorkerId},
        occurrence::{Missed, Next, Outcome, Passed, Settled},
    },
    mutants::{self, Mutant},
    store::{Result, Store, unreadable},
};

/// One attempt, as it is written into history.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub started_at: DateTime<Utc>,
    pub duration: Duration,
    pub http_status: Option<u16>,
    pub error: String,
}

/// What a claim comes to.
#[derive(Clone, Debug)]
pub struct Settlement {
    /// `None`: living on, as active or paused as it is.
    over: Option<Status>,
    scheduled_for: DateTime<Utc>,
    next_fire_at: DateTime<Utc>,
    failure_count: u32,
    last_error: String,
    fired: bool,
    outcome: Outcome,
    /// What the next wake tells of.
    missed: u64,
    passed: Option<Passed>,
    /// Postgres' time of it.
    settled_at: DateTime<Utc>,
    /// `None`: nothing was sent.
    attempt: Option<Attempt>,
}

/// A claim whose wake is to be another slot's.
#[derive(Clone, Debug)]
pub struct Folded<'a> {
    pub claim: &'a Claim,
    pub slot: Slot,
    pub missed: u64,
    pub passed: &'a [Passed],
}

impl Settlement {
    /// After the router's answer.
    pub fn answered(claim: &Claim, settled: Settled, settled_at: DateTime<Utc>, attempt: Attempt) -> Self {
        let outcome = settled.next.outcome();
        let common = Self {
            over: None,
            scheduled_for: claim.wake.scheduled_for,
            next_fire_at: claim.wake.scheduled_for,
            failure_count: 0,
            last_error: String::new(),
            fired: false,
            outcome,
            missed: settled.missed,
            passed: settled.passed,
            settled_at,
            attempt: Some(attempt),
        };
        let at = |slot: Slot| (slot.scheduled_for, slot.effective_at());
        match settled.next {
            Next::Fired => Self { over: Some(Status::Fired), fired: true, ..common },
            Next::Advance { slot } => {
                let (scheduled_for, next_fire_at) = at(slot);
                Self { scheduled_for, next_fire_at, fired: true, ..common }
            }
            Next::Retry { at, why } => {
                let failure_count = if mutants::on(Mutant::CountForgotten) { 0 } else { claim.wake.attempt };
                Self { next_fire_at: at, failure_count, last_error: why, ..common }
            }
            Next::Failed { why } => {
                Self { over: Some(Status::Failed), failure_count: claim.wake.attempt, last_error: why, ..common }
            }
            Next::Skip { slot, why } => {
                let (scheduled_for, next_fire_at) = at(slot);
                Self { scheduled_for, next_fire_at, last_error: why, ..common }
            }
            Next::Retired { why } => Self { over: Some(Status::Fired), last_error: why, ..common },
            // A claim is of the living; the fence in the statement keeps this from being written.
            Next::Stands { status } => Self { over: Some(status), failure_count: claim.failure_count, ..common },
        }
    }

    /// Nothing was sent: it was too late.
    pub fn missed(claim: &Claim, missed: Missed) -> Self {
        let Missed { passed, next, missed, over, why } = missed;
        Self {
            over,
            scheduled_for: next.map_or(claim.wake.scheduled_for, |slot| slot.scheduled_for),
            next_fire_at: next.map_or(claim.due_at, Slot::effective_at),
            failure_count: 0,
            last_error: why,
            fired: false,
            outcome: passed.outcome,
            missed,
            passed: Some(passed),
            settled_at: claim.claimed_at,
            attempt: None,
        }
    }

    /// When the alarm wants attention again, by Postgres' clock; `None`: never.
    pub fn wanted_at(&self) -> Option<DateTime<Utc>> {
        self.over.is_none().then_some(self.next_fire_at)
    }

    pub fn attempt(&self) -> Option<&Attempt> {
        self.attempt.as_ref()
    }

    /// Slots that were missed, as against skipped.
    pub fn slots_missed(&self) -> u64 {
        self.passed.as_ref().map_or(0, Passed::slots_missed)
    }

    /// How many slots passed without a try.
    fn slots_passed(&self) -> u64 {
        self.passed.map_or(0, |passed| passed.run.slots)
    }
}

impl Store {
    /// Records what became of these claims: of each, its alarm's next state if the claim still stands, and its attempt in any
    /// case. The answer are the outcomes as recorded, in the same order. Repeating it changes nothing and answers the same.
    pub async fn settle_under_token(
        &self,
        worker: WorkerId,
        settlements: &[(&Claim, &Settlement)],
    ) -> Result<Vec<Outcome>> {
        // In one order for everybody: two batches that share rows do not wait for each other in a circle.
        let mut sorted = settlements.to_vec();
        sorted.sort_by_key(|(claim, _)| claim.wake.alarm_id);
        let standing: HashSet<Uuid> = self
            .ask("settling attempts", async |db| {
                let found: Vec<(Uuid, Option<String>)> = bind_settle(&sorted, worker).fetch_all(db).await?;
                Ok(found.into_iter().map(|(token, _)| token).collect())
            })
            .await?;
        let mut lost = HashMap::new();
        if standing.len() < settlements.len() {
            sorted.retain(|(claim, _)| !standing.contains(&claim.token.as_uuid()));
            if mutants::on(Mutant::FencedUnrecorded) {
                sorted.clear();
            }
            lost = self.ask("recording fenced attempts", async |db| record_lost(db, &sorted, worker).await).await?;
        }
        let outcome = |claim: &Claim, settlement: &Settlement| {
            if standing.contains(&claim.token.as_uuid()) {
                return settlement.outcome;
            }
            // What was not sent and lost its claim left nothing to record.
            lost.get(&claim.token).copied().unwrap_or(Outcome::Fenced)
        };
        Ok(settlements.iter().map(|(claim, settlement)| outcome(claim, settlement)).collect())
    }

    /// Which of these alarms cannot be settled at this moment: somebody else holds on to its row, or to that of its session. One that is
    /// gone nobody holds.
    pub async fn held_by_others(&self, alarms: &[AlarmId]) -> Result<HashSet<AlarmId>> {
        let ids: Vec<Uuid> = alarms.iter().map(|id| id.as_uuid()).collect();
        let held: Vec<(Uuid,)> = self
            .ask("looking which rows are held", async |db| {
                sqlx::query_as(include_str!("../sql/held_by_others.sql")).bind(ids).fetch_all(db).await
            })
            .await?;
        Ok(held.into_iter().map(|(id,)| AlarmId::from_uuid(id)).collect())
    }

    /// Writes which slots' wakes are to go out instead of those that were claimed. The answer are the alarms whose claim still
    /// stood: no other may be sent.
    pub async fn fold_under_token(&self, worker: WorkerId, folds: &[Folded<'_>]) -> Result<Vec<AlarmId>> {
        let mut folds = folds.to_vec();
        folds.sort_by_key(|fold| fold.claim.wake.alarm_id);
        self.ask("folding slots that passed", async |db| {
            let found: Vec<(Uuid,)> = bind_fold(&folds, worker).fetch_all(db).await?;
            Ok(found.into_iter().map(|(id,)| AlarmId::from_uuid(id)).collect())
        })
        .await
    }
}

/// One column of many rows: an array of what each says.
macro_rules! column {
    ($rows:expr, |$row:pat_param| $value:expr) => {
        $rows.iter().map(|$row| $value).collect::<Vec<_>>()
    };
}

type Rows<O> = QueryAs<'static, Postgres, O, PgArguments>;

fn bind_settle(settlements: &[(&Claim, &Settlement)], worker: WorkerId) -> Rows<(Uuid, Option<String>)> {
    let runs: Vec<Run> = settlements
        .iter()
        .filter_map(|(claim, settlement)| {
            let error = if settlement.attempt.is_none() { settlement.last_error.as_str() } else { "" };
            settlement.passed.as_ref().map(|passed| Run::of(claim, passed, settlement.settled_at, error))
        })
        .collect();
    let query = sqlx::query_as(settle())
        .bind(column!(settlements, |(claim, _)| claim.wake.alarm_id.as_uuid()))
        .bind(column!(settlements, |(claim, _)| claim.token.as_uuid()))
        .bind(column!(settlements, |(claim, _)| claim.epoch.0))
        .bind(column!(settlements, |(_, settlement)| settlement.over.map(Status::as_str)))
        .bind(column!(settlements, |(_, settlement)| settlement.scheduled_for))
        .bind(column!(settlements, |(_, settlement)| settlement.next_fire_at))
        .bind(column!(settlements, |(_, settlement)| int(settlement.failure_count)))
        .bind(column!(settlements, |(_, settlement)| settlement.last_error.clone()))
        .bind(column!(settlements, |(_, settlement)| settlement.fired))
        .bind(column!(settlements, |(_, settlement)| long(settlement.missed)))
        .bind(column!(settlements, |(_, settlement)| long(settlement.slots_passed())))
        .bind(column!(settlements, |(claim, _)| claim.wake.owner_did.clone()))
        .bind(column!(settlements, |(claim, _)| claim.wake.delivery_id.as_uuid()))
        .bind(column!(settlements, |(claim, _)| claim.wake.scheduled_for))
        .bind(column!(settlements, |(claim, settlement)| settlement
            .attempt
            .as_ref()
            .map_or(0, |_| int(claim.wake.attempt))))
        .bind(column!(settlements, |(_, settlement)| settlement.attempt.as_ref().map(|attempt| attempt.started_at)))
        .bind(column!(settlements, |(_, settlement)| settlement.attempt.as_ref().map(milliseconds)))
        .bind(column!(settlements, |(_, settlement)| settlement.outcome.as_str()))
        .bind(column!(settlements, |(_, settlement)| settlement.attempt.as_ref().and_then(http_status)))
        .bind(column!(settlements, |(_, settlement)| settlement.attempt.as_ref().map(|attempt| attempt.error.clone())))
        .bind(worker.as_uuid());
    Run::bind(query, &runs).bind(RESOURCE_CHANGED)
}

/// The statement, and what mutants make of it.
fn settle() -> &'static str {
    let token = ("alarms.claim_token = result.token AND", "");
    let fence = "alarms.claim_token = result.token AND alarms.schedule_epoch = result.epoch AND alarms.status IN ('active', 'paused')";
    let revive = [
        ("coalesce(result.over, alarms.status)", "coalesce(result.over, 'active'), cancelled_by = NULL"),
        ("CASE WHEN result.over IS NULL THEN paused_by ELSE '{}' END", "'{}'"),
        (fence, "(alarms.claim_token = result.token OR alarms.status = 'cancelled')"),
    ];
    let statement = mutants::changed(Mutant::SettleWithoutToken, include_str!("../sql/settle.sql"), &[token]);
    mutants::changed(Mutant::SettleRevivesCancelled, statement, &revive)
}

pub(super) async fn record_lost(
    db: &mut PgConnection,
    lost: &[(&Claim, &Settlement)],
    worker: WorkerId,
) -> Result<HashMap<ClaimToken, Outcome>, sqlx::Error> {
    let lost: Vec<(&Claim, &Attempt)> =
        lost.iter().filter_map(|(claim, settlement)| Some((*claim, settlement.attempt.as_ref()?))).collect();
    let found: Vec<(Uuid, String)> = sqlx::query_as(include_str!("../sql/record_lost.sql"))
        .bind(column!(lost, |(claim, _)| claim.wake.alarm_id.as_uuid()))
        .bind(column!(lost, |(claim, _)| claim.token.as_uuid()))
        .bind(column!(lost, |(claim, _)| claim.wake.owner_did.clone()))
        .bind(column!(lost, |(claim, _)| claim.wake.delivery_id.as_uuid()))
        .bind(column!(lost, |(claim, _)| claim.wake.scheduled_for))
        .bind(column!(lost, |(claim, _)| int(claim.wake.attempt)))
        .bind(column!(lost, |(_, attempt)| attempt.started_at))
        .bind(column!(lost, |(_, attempt)| milliseconds(attempt)))
        .bind(column!(lost, |(_, attempt)| http_status(attempt)))
        .bind(column!(lost, |(_, attempt)| attempt.error.clone()))
        .bind(worker.as_uuid())
        .fetch_all(db)
        .await?;
    let read = |(token, outcome)| Ok((ClaimToken::from_uuid(token), Outcome::try_from(outcome).map_err(unreadable)?));
    found.into_iter().map(read).collect()
}

fn bind_fold(folds: &[Folded<'_>], worker: WorkerId) -> Rows<(Uuid,)> {
    let slots = |passed: &[Passed]| long(passed.iter().map(|passed| passed.run.slots).sum());
    let told = if mutants::on(Mutant::FoldUntold) { &[] } else { folds };
    let runs: Vec<Run> = told
        .iter()
        .flat_map(|fold| fold.passed.iter().map(|passed| Run::of(fold.claim, passed, fold.claim.claimed_at, "")))
        .collect();
    let query = sqlx::query_as(include_str!("../sql/fold.sql"))
        .bind(column!(folds, |fold| fold.claim.wake.alarm_id.as_uuid()))
        .bind(column!(folds, |fold| fold.claim.token.as_uuid()))
        .bind(column!(folds, |fold| fold.claim.epoch.0))
        .bind(column!(folds, |fold| fold.slot.scheduled_for))
        .bind(column!(folds, |fold| fold.slot.effective_at()))
        .bind(column!(folds, |fold| long(fold.missed)))
        .bind(column!(folds, |fold| slots(fold.passed)))
        .bind(column!(folds, |fold| fold.claim.wake.owner_did.clone()));
    Run::bind(query, &runs).bind(worker.as_uuid())
}

/// Slots that passed, as nine columns.
struct Run {
    token: Uuid,
    first: DateTime<Utc>,
    last: DateTime<Utc>,
    slots: i64,
    outcome: &'static str,
    reason: &'static str,
    delivery: Uuid,
    at: DateTime<Utc>,
    error: String,
}

impl Run {
    fn of(claim: &Claim, passed: &Passed, at: DateTime<Utc>, error: &str) -> Self {
        let run = passed.run;
        Self {
            token: claim.token.as_uuid(),
            first: run.first,
            last: run.last,
            slots: long(run.slots),
            outcome: passed.outcome.as_str(),
            reason: passed.reason.as_str(),
            delivery: DeliveryId::of(claim.wake.alarm_id, claim.epoch, run.last).as_uuid(),
            at,
            error: error.to_owned(),
        }
    }

    fn bind<O>(query: Rows<O>, runs: &[Self]) -> Rows<O> {
        query
            .bind(column!(runs, |run| run.token))
            .bind(column!(runs, |run| run.first))
            .bind(column!(runs, |run| run.last))
            .bind(column!(runs, |run| run.slots))
            .bind(column!(runs, |run| run.outcome))
            .bind(column!(runs, |run| run.reason))
            .bind(column!(runs, |run| run.delivery))
            .bind(column!(runs, |run| run.at))
            .bind(column!(runs, |run| run.error.clone()))
    }
}

fn int(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn long(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn milliseconds(attempt: &Attempt) -> i64 {
    i64::try_from(attempt.duration.as_millis()).unwrap_or(i64::MAX)
}

fn http_status(attempt: &Attempt) -> Option<i32> {
    attempt.http_status.map(i32::from)
}
