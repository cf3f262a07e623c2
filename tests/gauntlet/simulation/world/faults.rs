//! What is done to a world: processes are killed, frozen and told to stop; statements, wakes and their answers are lost or late.

use chronos::domain::{ids::WorkerId, occurrence::Answer};

use super::{
    super::{
        dispatcher::{STATEMENT_TIMEOUT, WAKE_TIMEOUT},
        table::{MS, Micros},
    },
    Slot, World, name, words,
};

impl World {
    /// Its sender learns nothing; it may still be carried out.
    pub(super) fn lose_query(&mut self, place: usize) {
        let query = &mut self.queries[place];
        query.stray_until = Some(self.now + STATEMENT_TIMEOUT);
        let (slot, worker, who) = (query.slot, query.worker, query.who);
        note!(self, "{} {} lost", name(slot, worker), words(&query.statement));
        if query.reply.is_some() {
            self.queries.swap_remove(place);
        }
        self.hit(worker, self.now, self.now);
        self.hear(slot, who, Err(()));
    }

    pub(super) fn lose_wake(&mut self, place: usize, why: &str) {
        let wake = &mut self.wakes[place];
        wake.stray_until = Some(self.now + WAKE_TIMEOUT);
        let (slot, worker, token) = (wake.slot, wake.worker, wake.token);
        if wake.answer.is_some() {
            self.wakes.swap_remove(place);
        }
        self.hit(worker, self.now, self.now);
        self.woken(slot, token, &Answer::Unavailable { why: why.to_owned(), http_status: None, retry_after: None });
    }

    pub(super) fn hit(&mut self, worker: WorkerId, from: Micros, to: Micros) {
        self.faults.push((worker, from, to));
    }

    pub(super) fn strike(&mut self) {
        self.counts.faults += 1;
        let slot = self.chance.below(self.slots.len());
        match self.chance.below(12) {
            0..3 => self.crash(slot),
            3..5 => self.freeze(slot),
            10.. => self.terminate(slot),
            5..8 if !self.queries.is_empty() => {
                let place = self.chance.below(self.queries.len());
                let query = &self.queries[place];
                if query.stray_until.is_none() && self.is_awake(query.slot, query.worker) {
                    self.lose_query(place);
                }
            }
            8.. if !self.wakes.is_empty() => {
                let place = self.chance.below(self.wakes.len());
                let wake = &self.wakes[place];
                if wake.stray_until.is_some() || !self.is_awake(wake.slot, wake.worker) {
                } else if self.chance.percent(50) {
                    self.lose_wake(place, "connection reset");
                } else {
                    // Maybe longer than anybody waits for it.
                    let late = self.now + self.chance.between(100 * MS, 1_500 * MS);
                    note!(self, "a wake, or its answer, is late");
                    self.wakes[place].since = late;
                }
            }
            _ => {}
        }
    }

    fn crash(&mut self, slot: usize) {
        let Some(process) = self.slots[slot].process.take() else { return };
        let worker = process.worker;
        note!(self, "{} is killed", name(slot, worker));
        self.counts.crashes += 1;
        self.hit(worker, self.now, Micros::MAX);
        let (frozen_until, restart_at) = (0, self.now + self.chance.between(0, 2_500 * MS));
        self.slots[slot] = Slot { process: None, frozen_until, restart_at };
        self.abandon(worker);
    }

    /// Nobody awaits any more what this one has sent.
    pub(super) fn abandon(&mut self, worker: WorkerId) {
        let now = self.now;
        for query in self.queries.iter_mut().filter(|query| query.worker == worker) {
            query.stray_until.get_or_insert(now + STATEMENT_TIMEOUT);
        }
        for wake in self.wakes.iter_mut().filter(|wake| wake.worker == worker) {
            wake.stray_until.get_or_insert(now + WAKE_TIMEOUT);
        }
        self.queries.retain(|query| query.stray_until.is_none() || query.reply.is_none());
        self.wakes.retain(|wake| wake.stray_until.is_none() || wake.answer.is_none());
    }

    /// An orderly stop is no fault: nothing is lost by it, and nothing repeated.
    fn terminate(&mut self, slot: usize) {
        let now = self.now;
        let Some(process) = self.slots[slot].process.as_mut() else { return };
        process.stop(now);
        note!(self, "{} is told to stop", name(slot, process.worker));
        self.counts.stops += 1;
    }

    fn freeze(&mut self, slot: usize) {
        let until = self.now + self.chance.between(100 * MS, 5_000 * MS);
        let Some(worker) = self.slots[slot].process.as_ref().map(|process| process.worker) else { return };
        note!(self, "{} is frozen until {}", name(slot, worker), until / MS);
        self.counts.freezes += 1;
        self.slots[slot].frozen_until = until;
        // It lags behind for a while after that, too.
        self.hit(worker, self.now, until);
    }
}
