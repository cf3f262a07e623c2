//! Somebody who cancels, pauses, resumes and plans anew, as `store::alarms::edit` does: the row is locked, the domain decides, the row is
//! written, and in between others find it locked. What each plan of an alarm owes is written down beside the table.

use std::rc::Rc;

use chrono::TimeDelta;
use chronos::domain::{
    alarm::{
        Cause, Misfire, Status, Timing,
        lifecycle::{self, Resumed, Standing},
    },
    ids::AlarmId,
    schedule::{Recurrence, Schedule, Window, Zone},
};
use uuid::Uuid;

use super::{
    chance::Chance,
    table::{MS, Micros, Row, Table, Told, What, at, micros},
};

/// The longest that a row is locked.
const HOLD: Micros = 200 * MS;

/// One plan of an alarm, and what became of it.
pub struct Epoch {
    pub alarm: usize,
    pub number: i64,
    pub timing: Rc<Timing>,
    pub offset: Micros,
    pub first: Micros,
    /// When another plan took its place; `None`: it is the last.
    pub ended_at: Option<Micros>,
    /// The occurrence that was on its ladder then: its attempts are recorded, and tell of it.
    pub spared: Option<Micros>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Cancel,
    Pause,
    Resume,
    Edit,
    /// Another policy, and the same schedule.
    Policy,
}

#[derive(Default)]
pub struct Client {
    under_way: Option<(usize, Op, Micros)>,
    /// Which alarm was cancelled when.
    pub cancelled: Vec<(usize, Micros)>,
    /// Which was paused from when to when.
    pub paused: Vec<(usize, Micros, Micros)>,
}

/// An alarm of the beginning.
pub fn alarm(place: usize, chance: &mut Chance) -> (Row, Epoch) {
    let (timing, first, offset) = plan(0, chance);
    let max_failures = u32::try_from(chance.below(4)).expect("a few");
    let row = Row {
        id: AlarmId::from_uuid(Uuid::from_u128(0xa1a5_0000 + place as u128)),
        epoch: 0,
        timing: Rc::clone(&timing),
        offset: TimeDelta::microseconds(offset),
        status: Status::Active,
        scheduled_for: first,
        series_at: None,
        next_fire_at: first + offset,
        failure_count: 0,
        max_failures,
        missed: 0,
        claim: None,
        claims: 0,
        first_claimed_at: None,
        locked: false,
    };
    (row, Epoch { alarm: place, number: 0, timing, offset, first, ended_at: None, spared: None })
}

/// Some schedule ahead, its first slot, and how far effective instants lie behind nominal ones.
fn plan(now: Micros, chance: &mut Chance) -> (Rc<Timing>, Micros, Micros) {
    let (misfire, max_lateness) = policy(chance);
    let timing = |schedule| Rc::new(Timing { schedule, spread: TimeDelta::zero(), misfire, max_lateness });
    if chance.percent(50) {
        let fire_at = now + chance.between(0, 2_500 * MS);
        return (timing(Schedule::Once { fire_at: at(fire_at) }), fire_at, 0);
    }
    let ends_at = now + chance.between(2_500 * MS, 6_000 * MS);
    let window = Window::new(at(now), Some(at(now + chance.between(0, 900 * MS))), Some(at(ends_at)));
    let every = ["@every 1s", "@every 2s"][chance.below(2)];
    let recurrence = Recurrence::parse(every, Zone::utc(), window).expect("it is well formed");
    let first = micros(recurrence.next_after(at(now)).expect("it has slots ahead"));
    let offset = if chance.percent(30) { chance.between(0, 700 * MS) } else { 0 };
    (timing(Schedule::Cron(recurrence)), first, offset)
}

fn policy(chance: &mut Chance) -> (Misfire, Option<TimeDelta>) {
    let misfire = [Misfire::FireOnce, Misfire::Skip, Misfire::FireAll][chance.below(3)];
    (misfire, chance.percent(25).then(|| TimeDelta::milliseconds(chance.between(300, 2_000))))
}

impl Client {
    pub fn commits_at(&self) -> Option<Micros> {
        self.under_way.map(|(_, _, commits_at)| commits_at)
    }

    /// Locks some row to do something with it.
    pub fn begin(&mut self, table: &mut Table, now: Micros, chance: &mut Chance) -> Option<String> {
        let alarm = chance.below(table.rows.len());
        let row = &mut table.rows[alarm];
        if self.under_way.is_some() || !row.status.is_living() {
            return None;
        }
        let op = match (row.status, chance.below(8)) {
            (_, 0) => Op::Cancel,
            (_, 1) => Op::Edit,
            (_, 2) => Op::Policy,
            (Status::Paused, _) => Op::Resume,
            _ => Op::Pause,
        };
        row.locked = true;
        self.under_way = Some((alarm, op, now + chance.between(0, HOLD)));
        Some(format!("begins to {op:?} alarm {alarm}"))
    }

    /// So that everything comes to an end.
    pub fn resume_one(&mut self, table: &mut Table, now: Micros) -> bool {
        let paused = table.rows.iter().position(|row| row.status == Status::Paused);
        let Some(alarm) = paused.filter(|_| self.under_way.is_none()) else { return false };
        table.rows[alarm].locked = true;
        self.under_way = Some((alarm, Op::Resume, now));
        true
    }

    pub fn commit(&mut self, table: &mut Table, epochs: &mut Vec<Epoch>, now: Micros, chance: &mut Chance) -> String {
        let (alarm, op, _) = self.under_way.take().expect("something is under way");
        table.rows[alarm].locked = false;
        if op != Op::Resume && chance.percent(10) {
            return format!("gives up to {op:?} alarm {alarm}");
        }
        match op {
            Op::Cancel => {
                let row = &mut table.rows[alarm];
                row.status = Status::Cancelled;
                row.release();
                self.cancelled.push((alarm, now));
                self.unpause(alarm, now);
            }
            Op::Pause => {
                table.rows[alarm].status = Status::Paused;
                self.paused.push((alarm, now, Micros::MAX));
            }
            Op::Resume => {
                resume(table, alarm, now);
                self.unpause(alarm, now);
            }
            Op::Edit => edit(table, epochs, alarm, now, chance),
            Op::Policy => police(&mut table.rows[alarm], chance),
        }
        format!("{op:?} of alarm {alarm} done")
    }

    fn unpause(&mut self, alarm: usize, now: Micros) {
        for (_, _, to) in self.paused.iter_mut().filter(|(paused, _, to)| *paused == alarm && *to == Micros::MAX) {
            *to = now;
        }
    }
}

fn standing<'a>(row: &Row, timing: &'a Timing, now: Micros) -> Standing<'a> {
    Standing {
        status: row.status,
        paused_by: if row.status == Status::Paused { &[Cause::Owner] } else { &[] },
        timing,
        offset: row.offset,
        scheduled_for: at(row.scheduled_for),
        series_at: at(row.series_at.unwrap_or(row.scheduled_for)),
        next_fire_at: at(row.next_fire_at),
        failure_count: row.failure_count,
        begun: row.first_claimed_at.is_some(),
        in_flight: row.in_flight(now),
    }
}

/// As `resume_alarm.sql` has it.
fn resume(table: &mut Table, alarm: usize, now: Micros) {
    let row = &mut table.rows[alarm];
    let timing = Rc::clone(&row.timing);
    let is_alive = row.claim.is_some_and(|claim| table.dispatchers.contains_key(&claim.by));
    let stays = is_alive && row.in_flight(now);
    let standing = Standing { in_flight: stays, ..standing(row, &timing, now) };
    let Ok(resumed) = lifecycle::resume(&standing, Cause::Owner, at(now)) else { return };
    row.status = Status::Active;
    let is_another = matches!(resumed, Resumed::At { .. });
    let passed = match resumed {
        Resumed::Unchanged | Resumed::StillPaused(_) => unreachable!("it is paused by its owner"),
        Resumed::AsItStands => None,
        Resumed::AtOnce => {
            row.next_fire_at = now;
            None
        }
        Resumed::OnItsLadder { passed } => {
            row.series_at = Some(micros(passed.run.last));
            Some(passed)
        }
        Resumed::At { slot, passed } => {
            (row.scheduled_for, row.next_fire_at) = (micros(slot.scheduled_for), micros(slot.effective_at()));
            (row.series_at, row.missed) = (None, 0);
            Some(passed)
        }
        Resumed::Over { status, passed, .. } => {
            row.status = status;
            Some(passed)
        }
    };
    row.claim = row.claim.filter(|_| stays && row.status.is_living());
    if is_another || !row.status.is_living() {
        row.release();
    }
    let epoch = row.epoch;
    table.history.extend(passed.map(|passed| Told { alarm, epoch, token: 0, what: What::Passed(passed) }));
}

/// As `edit_alarm.sql` has it, when the schedule stays.
fn police(row: &mut Row, chance: &mut Chance) {
    let (misfire, max_lateness) = policy(chance);
    let is_same = (row.timing.misfire, row.timing.max_lateness) == (misfire, max_lateness);
    row.timing = Rc::new(Timing { misfire, max_lateness, ..Timing::clone(&row.timing) });
    row.first_claimed_at = row.first_claimed_at.map(|first| if is_same { first } else { first.min(row.next_fire_at) });
}

/// As `edit_alarm.sql` has it, when the schedule is another.
fn edit(table: &mut Table, epochs: &mut Vec<Epoch>, alarm: usize, now: Micros, chance: &mut Chance) {
    let row = &mut table.rows[alarm];
    let timing = Rc::clone(&row.timing);
    let forgone = lifecycle::forgone(&standing(row, &timing, now), at(now));
    let epoch = row.epoch;
    let was_tried = row.failure_count > 0;
    if let Some(before) = epochs.iter_mut().find(|before| before.alarm == alarm && before.ended_at.is_none()) {
        before.ended_at = Some(now);
        before.spared = was_tried.then_some(row.scheduled_for);
    }
    let (timing, first, offset) = plan(now, chance);
    row.epoch += 1;
    (row.timing, row.offset) = (Rc::clone(&timing), TimeDelta::microseconds(offset));
    (row.scheduled_for, row.series_at, row.next_fire_at) = (first, None, first + offset);
    (row.failure_count, row.missed) = (0, 0);
    row.release();
    let number = row.epoch;
    epochs.push(Epoch { alarm, number, timing, offset, first, ended_at: None, spared: None });
    table.history.extend(forgone.into_iter().map(|passed| Told { alarm, epoch, token: 0, what: What::Passed(passed) }));
}
