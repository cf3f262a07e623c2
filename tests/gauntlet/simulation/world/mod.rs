//! A small world: a table, a few dispatchers, a router, somebody who edits. A seeded scheduler picks who goes next; nobody who could go
//! is kept waiting for long, unless it is frozen. Faults strike between any two steps.

/// Written down only when somebody will read it: most seeds break nothing.
macro_rules! note {
    ($world:expr, $($words:tt)*) => {
        if let Some(trace) = &mut $world.trace {
            trace.push(format!("{:>6}.{:03} ms  {}", $world.now / MS, $world.now % MS, format_args!($($words)*)));
        }
    };
}

mod faults;
mod words;

use chronos::domain::{
    ids::{DeliveryId, WorkerId},
    occurrence::{Answer, Outcome},
};
use uuid::Uuid;

use super::{
    Counts, Flaw,
    chance::Chance,
    client::{Client, Epoch},
    dispatcher::{Process, STATEMENT_TIMEOUT, Stage, WAKE_TIMEOUT, Who},
    table::{MS, Micros, Reply, Statement, Table, What},
};
use words::{name, words};

/// Who could take a step takes it within this time.
const LAG: Micros = 40 * MS;
/// At rest there is nothing left to do. Whoever is not there by then never gets there: two leases, a whole ladder, and the longest series.
const RESTLESS: Micros = 40_000 * MS;

/// A statement on its way, to the table or back.
struct Query {
    slot: usize,
    worker: WorkerId,
    who: Who,
    statement: Statement,
    /// Since when it could go on.
    since: Micros,
    sent_at: Micros,
    reply: Option<Reply>,
    /// `Some`: nobody awaits it any more, and until then it may still be carried out.
    stray_until: Option<Micros>,
}

/// A wake on its way, to the router or back.
struct Wake {
    slot: usize,
    worker: WorkerId,
    token: u64,
    arrival: Arrival,
    since: Micros,
    sent_at: Micros,
    answer: Option<Answer>,
    stray_until: Option<Micros>,
}

/// What the router saw.
#[derive(Clone)]
pub struct Arrival {
    pub alarm: usize,
    pub epoch: i64,
    pub scheduled_for: Micros,
    pub effective_at: Micros,
    pub claimed_at: Micros,
    pub delivery: DeliveryId,
    pub worker: WorkerId,
    pub at: Micros,
    pub taken: bool,
}

struct Slot {
    process: Option<Process>,
    frozen_until: Micros,
    restart_at: Micros,
}

#[derive(Clone, Copy)]
enum Action {
    Execute(usize),
    Answer(usize),
    GiveUp(usize),
    Arrive(usize),
    Return(usize),
    TimeOut(usize),
    Look(usize),
    Settle(usize),
    Clear(usize, usize),
    Send(usize, usize),
    Restart(usize),
    Commit,
}

pub struct World {
    pub now: Micros,
    pub table: Table,
    pub arrivals: Vec<Arrival>,
    pub epochs: Vec<Epoch>,
    pub client: Client,
    /// Who was hit, from when to when.
    pub faults: Vec<(WorkerId, Micros, Micros)>,
    pub counts: Counts,
    pub trace: Option<Vec<String>>,
    chance: Chance,
    slots: Vec<Slot>,
    queries: Vec<Query>,
    wakes: Vec<Wake>,
    actions: Vec<(Action, Micros)>,
    workers: u128,
    calm: bool,
}

impl World {
    pub fn new(seed: u64, flaw: Option<Flaw>, traced: bool) -> Self {
        let mut chance = Chance::of(seed);
        let mut world = Self {
            now: 0,
            table: Table::with(flaw),
            arrivals: Vec::new(),
            epochs: Vec::new(),
            client: Client::default(),
            faults: Vec::new(),
            counts: Counts::default(),
            trace: traced.then(Vec::new),
            slots: Vec::new(),
            queries: Vec::new(),
            wakes: Vec::new(),
            actions: Vec::new(),
            workers: 0,
            calm: false,
            chance: Chance::of(0),
        };
        for alarm in 0..2 + chance.below(3) {
            let (row, epoch) = super::client::alarm(alarm, &mut chance);
            note!(world, "alarm {alarm}: {:?}, up to {} failures", row.timing, row.max_failures);
            world.table.rows.push(row);
            world.epochs.push(epoch);
        }
        for _ in 0..2 + chance.below(2) {
            let restart_at = chance.between(0, 50 * MS);
            world.slots.push(Slot { process: None, frozen_until: 0, restart_at });
        }
        world.chance = chance;
        world
    }

    /// So many steps among faults, then healed and run to rest. `Err`: it does not come to rest.
    pub fn run(&mut self) -> Result<(), String> {
        for _ in 0..60 + self.chance.below(120) {
            match self.chance.below(100) {
                0..5 => self.strike(),
                5..9 => self.edit(),
                _ => self.step(),
            }
        }
        self.calm = true;
        for slot in &mut self.slots {
            slot.frozen_until = slot.frozen_until.min(self.now);
            slot.restart_at = slot.restart_at.min(self.now);
        }
        note!(self, "everything is healed");
        let healed_at = self.now;
        while !self.is_at_rest() {
            if self.now > healed_at + RESTLESS {
                return Err("it does not come to rest".to_owned());
            }
            self.resume_the_paused();
            self.step();
        }
        Ok(())
    }

    /// What went on in it.
    pub fn counted(&self) -> Counts {
        let again = |(place, arrival): &(usize, &Arrival)| {
            self.arrivals[..*place].iter().any(|before| before.taken && before.delivery == arrival.delivery)
        };
        let tried = |outcome: &Outcome| matches!(outcome, Outcome::Fenced | Outcome::Cancelled);
        let history = &self.table.history;
        let fenced = history.iter().filter(|row| matches!(&row.what, What::Tried { outcome, .. } if tried(outcome)));
        Counts {
            wakes: self.arrivals.len() as u64,
            repeats: self.arrivals.iter().enumerate().filter(again).count() as u64,
            fenced: fenced.count() as u64,
            runs: history.iter().filter(|row| matches!(row.what, What::Passed(_))).count() as u64,
            ..self.counts
        }
    }

    fn is_at_rest(&self) -> bool {
        let rows = self.table.rows.iter().all(|row| !row.status.is_living() && !row.locked);
        rows && self.slots.iter().filter_map(|slot| slot.process.as_ref()).all(Process::is_clear)
    }

    fn step(&mut self) {
        self.counts.steps += 1;
        self.queries.retain(|query| query.stray_until.is_none_or(|until| until > self.now));
        self.wakes.retain(|wake| wake.stray_until.is_none_or(|until| until > self.now));
        let mut actions = std::mem::take(&mut self.actions);
        actions.clear();
        self.collect(&mut actions);
        let eldest = actions.iter().map(|(_, since)| *since).min();
        let may_wait = eldest.is_none_or(|since| self.now - since < LAG);
        let choice = self.chance.below(actions.len() + usize::from(may_wait));
        match actions.get(choice).copied() {
            Some((action, _)) => self.act(action),
            None => self.wait(eldest),
        }
        self.actions = actions;
    }

    /// Time passes: a little, or, when nobody could do anything, until somebody can.
    fn wait(&mut self, eldest: Option<Micros>) {
        let some = self.chance.between(MS, LAG);
        let until = match eldest {
            Some(eldest) => (self.now + some).min(eldest + LAG),
            None => self.next_timer().unwrap_or(self.now + some),
        };
        self.now = until.max(self.now + 1);
    }

    fn is_awake(&self, slot: usize, worker: WorkerId) -> bool {
        let slot = &self.slots[slot];
        slot.frozen_until <= self.now && slot.process.as_ref().is_some_and(|process| process.worker == worker)
    }

    fn next_timer(&self) -> Option<Micros> {
        let slots = self.slots.iter().map(|slot| match &slot.process {
            None => slot.restart_at,
            Some(_) if slot.frozen_until > self.now => slot.frozen_until,
            Some(process) => {
                let look = if process.waits() { process.look_at } else { Micros::MAX };
                if process.has_results() { look.min(process.settle_at) } else { look }
            }
        });
        let queries = self.queries.iter().filter(|query| query.stray_until.is_none());
        let queries = queries.map(|query| query.sent_at + STATEMENT_TIMEOUT);
        let wakes = self.wakes.iter().filter(|wake| wake.stray_until.is_none());
        let wakes = wakes.map(|wake| wake.since.max(self.now + 1).min(wake.sent_at + WAKE_TIMEOUT));
        let client = self.client.commits_at();
        slots.chain(queries).chain(wakes).chain(client).filter(|timer| *timer > self.now).min()
    }

    /// Whatever could happen next, and since when.
    fn collect(&self, actions: &mut Vec<(Action, Micros)>) {
        let now = self.now;
        for (place, query) in self.queries.iter().enumerate() {
            let awaited = query.stray_until.is_none();
            if query.reply.is_none() && !self.is_blocked(&query.statement) {
                // Nobody promises that a stray is carried out.
                actions.push((Action::Execute(place), if awaited { query.since } else { now }));
            } else if awaited && self.is_awake(query.slot, query.worker) {
                if query.reply.is_some() {
                    actions.push((Action::Answer(place), query.since));
                } else if query.sent_at + STATEMENT_TIMEOUT <= now {
                    actions.push((Action::GiveUp(place), query.sent_at + STATEMENT_TIMEOUT));
                }
            }
        }
        for (place, wake) in self.wakes.iter().enumerate() {
            let awaited = wake.stray_until.is_none();
            if wake.answer.is_none() && wake.since <= now {
                actions.push((Action::Arrive(place), if awaited { wake.since } else { now }));
            }
            if awaited && self.is_awake(wake.slot, wake.worker) {
                if wake.sent_at + WAKE_TIMEOUT <= now {
                    actions.push((Action::TimeOut(place), wake.sent_at + WAKE_TIMEOUT));
                } else if wake.answer.is_some() && wake.since <= now {
                    actions.push((Action::Return(place), wake.since));
                }
            }
        }
        for (place, slot) in self.slots.iter().enumerate() {
            match &slot.process {
                None if slot.restart_at <= now => actions.push((Action::Restart(place), slot.restart_at)),
                Some(process) if slot.frozen_until <= now => {
                    if process.waits() && process.look_at <= now {
                        actions.push((Action::Look(place), process.look_at));
                    }
                    if process.has_results() && process.settle_at <= now {
                        actions.push((Action::Settle(place), process.settle_at));
                    }
                    for (flight, delivery) in process.deliveries.iter().enumerate() {
                        match delivery.stage {
                            Stage::Held => actions.push((Action::Clear(place, flight), delivery.since)),
                            Stage::Cleared => actions.push((Action::Send(place, flight), delivery.since)),
                            Stage::Flying | Stage::GivingBack => {}
                        }
                    }
                }
                None | Some(_) => {}
            }
        }
        if let Some(at) = self.client.commits_at().filter(|at| *at <= now) {
            actions.push((Action::Commit, at));
        }
    }

    fn is_blocked(&self, statement: &Statement) -> bool {
        let locked = |alarm: usize| self.table.rows[alarm].locked;
        match statement {
            Statement::Fold(folds) => folds.iter().any(|fold| locked(fold.claim.alarm)),
            Statement::GiveBack(claims) => claims.iter().any(|claim| locked(claim.alarm)),
            Statement::Settle(batch) => batch.iter().any(|(claim, _)| locked(claim.alarm)),
            Statement::Look { .. }
            | Statement::ReleaseDead(_)
            | Statement::ReleaseLost { .. }
            | Statement::RecordLost(_)
            | Statement::SignOff(_) => false,
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Execute(place) => {
                let query = &mut self.queries[place];
                query.reply = self.table.execute(&query.statement, now);
                query.since = now;
                let stray = query.stray_until.is_some();
                note!(
                    self,
                    "{} {} done{}",
                    name(query.slot, query.worker),
                    words(&query.statement),
                    if stray { ", astray" } else { "" }
                );
                if stray {
                    self.queries.swap_remove(place);
                }
            }
            Action::Answer(place) => {
                let Query { slot, worker, who, statement, reply, .. } = self.queries.swap_remove(place);
                note!(self, "{} {} answered", name(slot, worker), words(&statement));
                let reply = reply.expect("only what was carried out is answered");
                self.hear(slot, who, Ok(&reply));
            }
            Action::GiveUp(place) => self.lose_query(place),
            Action::Arrive(place) => self.arrive(place),
            Action::Return(place) => {
                let Wake { slot, token, answer, .. } = self.wakes.swap_remove(place);
                let answer = answer.expect("only what arrived is answered");
                self.woken(slot, token, &answer);
            }
            Action::TimeOut(place) => self.lose_wake(place, "timeout"),
            Action::Look(slot) => {
                if self.process(slot).is_overdue(now) {
                    let worker = self.process(slot).worker;
                    self.hit(worker, now, now);
                    self.abandon(worker);
                }
                let statement = self.process(slot).look(now);
                self.ask(slot, Who::Loop, statement);
            }
            Action::Settle(slot) => {
                let statement = self.process(slot).settle();
                self.ask(slot, Who::Settler, Some(statement));
            }
            Action::Clear(slot, flight) => {
                let who = Who::Delivery(self.process(slot).deliveries[flight].claim.token);
                let statement = self.process(slot).clear(flight, now);
                self.ask(slot, who, statement);
            }
            Action::Send(slot, flight) => self.send(slot, flight),
            Action::Restart(slot) => {
                self.workers += 1;
                let worker = WorkerId::from_uuid(Uuid::from_u128(self.workers));
                note!(self, "{} starts", name(slot, worker));
                self.slots[slot].process = Some(Process::start(worker, self.table.flaw, now));
            }
            Action::Commit => {
                let done = self.client.commit(&mut self.table, &mut self.epochs, now, &mut self.chance);
                note!(self, "client: {done}");
            }
        }
    }

    fn process(&mut self, slot: usize) -> &mut Process {
        self.slots[slot].process.as_mut().expect("only the living act")
    }

    fn ask(&mut self, slot: usize, who: Who, statement: Option<Statement>) {
        let Some(statement) = statement else { return };
        let (worker, now) = (self.process(slot).worker, self.now);
        note!(self, "{} {} sent", name(slot, worker), words(&statement));
        let query = Query { slot, worker, who, statement, since: now, sent_at: now, reply: None, stray_until: None };
        self.queries.push(query);
    }

    fn hear(&mut self, slot: usize, who: Who, answer: Result<&Reply, ()>) {
        let now = self.now;
        let next = self.process(slot).answered(who, answer, now);
        self.ask(slot, who, next);
        if self.process(slot).is_gone() {
            note!(self, "d{} is gone", slot + 1);
            let restart_at = now + self.chance.between(0, 1_000 * MS);
            self.slots[slot] = Slot { process: None, frozen_until: 0, restart_at };
        }
    }

    fn send(&mut self, slot: usize, flight: usize) {
        let now = self.now;
        let process = self.process(slot);
        let worker = process.worker;
        let delivery = &mut process.deliveries[flight];
        (delivery.stage, delivery.started_at) = (Stage::Flying, now);
        let claim = &delivery.claim;
        let arrival = Arrival {
            alarm: claim.alarm,
            epoch: claim.epoch,
            scheduled_for: claim.scheduled_for,
            effective_at: claim.scheduled_for + claim.offset.num_microseconds().unwrap_or_default(),
            claimed_at: claim.claimed_at,
            delivery: claim.delivery,
            worker,
            at: 0,
            taken: false,
        };
        let token = claim.token;
        note!(
            self,
            "{} sends the wake of alarm {} for {}",
            name(slot, worker),
            arrival.alarm,
            arrival.scheduled_for / MS
        );
        self.wakes.push(Wake {
            slot,
            worker,
            token,
            arrival,
            since: now,
            sent_at: now,
            answer: None,
            stray_until: None,
        });
    }

    fn arrive(&mut self, place: usize) {
        let status = self.chance.below(100);
        let wake = &mut self.wakes[place];
        let unavailable = || Answer::Unavailable { why: "HTTP 503".into(), http_status: Some(503), retry_after: None };
        let answer = match status {
            0..15 => unavailable(),
            15..18 => Answer::Gone { why: "HTTP 410".into() },
            _ => Answer::Accepted { http_status: 200 },
        };
        (wake.arrival.at, wake.arrival.taken, wake.since) =
            (self.now, matches!(answer, Answer::Accepted { .. }), self.now);
        note!(self, "{}'s wake of alarm {} arrives: {answer:?}", name(wake.slot, wake.worker), wake.arrival.alarm);
        self.arrivals.push(wake.arrival.clone());
        wake.answer = Some(answer);
        if wake.stray_until.is_some() {
            self.wakes.swap_remove(place);
        }
    }

    fn woken(&mut self, slot: usize, token: u64, answer: &Answer) {
        let now = self.now;
        let process = self.slots[slot].process.as_mut().expect("only the living are answered");
        note!(self, "{} hears {answer:?}", name(slot, process.worker));
        process.woken(token, answer, now, &mut self.chance);
    }

    fn edit(&mut self) {
        if let Some(begun) = self.client.begin(&mut self.table, self.now, &mut self.chance) {
            self.counts.edits += 1;
            note!(self, "client: {begun}");
        }
    }

    fn resume_the_paused(&mut self) {
        if self.client.resume_one(&mut self.table, self.now) {
            note!(self, "client: resumes what is paused");
        }
    }
}
