//! Which fault comes next.

use std::{
    collections::{HashMap, VecDeque},
    sync::atomic::Ordering,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::reserve::{Hold, Reserve, Thing};
use crate::{
    log::{Kind, Pair},
    world::World,
};

/// More would hide each other's effects.
const AT_ONCE: usize = 3;
/// Those that wait for something to come by do nothing meanwhile.
const WAITING: usize = 2;
/// How close faults come to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Pace {
    /// Up to three at once: 250 faults take five minutes and a half.
    Dense,
    /// Half as many: a successor of a dead leader, who waits for 15 s, gets a word in.
    Steady,
    /// One at a time, and the next when nothing is overdue any more: shows how long it takes to get over each.
    Apart,
}

impl Pace {
    /// Between two starts, in milliseconds.
    fn pause(self) -> std::ops::Range<u64> {
        match self {
            Self::Dense => 300..2100,
            Self::Steady => 1000..4000,
            Self::Apart => 500..1000,
        }
    }
}

/// Longer than the 10 s after which replicas that elect a leader go on without a Lease.
const OUTAGE: Duration = Duration::from_secs(14);
/// A kind that does not strike is tried so often.
const TRIES: usize = 4;
/// So many faults pass before the first build is back: the other one has no fail points.
const ON_OTHER: usize = 6;

pub struct Plan {
    kinds: Vec<Kind>,
    /// Each kind once, or as often as there is room for it where faults are apart; and whatever did not strike.
    queue: VecDeque<Kind>,
    wanted: usize,
    struck: usize,
    failed: HashMap<Kind, usize>,
    replaced_at: usize,
    had_outage: bool,
    pace: Pace,
    dice: StdRng,
}

/// How many are under way.
#[derive(Default)]
pub struct Going {
    /// Those that wait for something to come by, or have just seen it.
    waiting: usize,
    others: usize,
}

impl Going {
    fn of(&mut self, kind: Kind) -> &mut usize {
        if waits(kind) { &mut self.waiting } else { &mut self.others }
    }

    pub fn begins(&mut self, kind: Kind) {
        *self.of(kind) += 1;
    }

    pub fn ends(&mut self, kind: Kind) {
        *self.of(kind) -= 1;
    }

    pub fn all(&self) -> usize {
        self.waiting + self.others
    }

    fn has_room_for(&self, kind: Kind) -> bool {
        if waits(kind) { self.waiting < WAITING } else { self.others < AT_ONCE }
    }
}

/// A fault that is about to be.
pub struct Strike {
    pub kind: Kind,
    /// Of slots; 0, 1, 2.
    pub slot: usize,
    /// How long it lasts.
    pub length: Duration,
    /// For what else there is to choose.
    pub dice: u32,
}

impl Plan {
    pub fn new(kinds: &[Kind], wanted: usize, pace: Pace, seed: u64) -> Self {
        let mut dice = StdRng::seed_from_u64(seed);
        // Times are compared kind by kind: each strikes as often as the others.
        let times = if pace == Pace::Apart { (wanted / kinds.len().max(1)).max(1) } else { 1 };
        let mut order = kinds.repeat(times);
        order.shuffle(&mut dice);
        let (kinds, failed) = (kinds.to_vec(), HashMap::new());
        Self { kinds, queue: order.into(), wanted, struck: 0, failed, replaced_at: 0, had_outage: false, pace, dice }
    }

    pub fn is_done(&self) -> bool {
        self.struck >= self.wanted && self.queue.is_empty()
    }

    /// In the middle of a run the API server is killed for a while and nothing else is broken: what is stored must fire all the same.
    /// `None`: not yet, or not again, or that is not to be broken.
    pub fn outage(&self) -> Option<Strike> {
        let kind = Kind::ApiserverKill;
        let is_time = !self.had_outage && self.struck * 2 >= self.wanted && self.kinds.contains(&kind);
        is_time.then_some(Strike { kind, slot: 0, length: OUTAGE, dice: 0 })
    }

    pub fn had_outage(&mut self) {
        self.had_outage = true;
        self.note(Kind::ApiserverKill, true);
    }

    pub fn left(&self) -> String {
        let queue: Vec<String> = self.queue.iter().map(|kind| kind.name()).collect();
        format!("{} of {}, among them {}", self.wanted.saturating_sub(self.struck), self.wanted, queue.join(", "))
    }

    pub fn note(&mut self, kind: Kind, struck: bool) {
        if struck {
            self.struck += 1;
            if kind == Kind::Replace {
                self.replaced_at = self.struck;
            }
            return;
        }
        let failed = self.failed.entry(kind).or_default();
        *failed += 1;
        if *failed < TRIES {
            self.queue.push_back(kind);
        }
    }

    /// `None`: nothing may be broken at the moment that is to be broken.
    pub fn next(&mut self, world: &World, reserve: &Reserve, going: &Going) -> Option<(Strike, Hold, Duration)> {
        let (kind, slot, hold) = self.choose(world, reserve, going)?;
        let length = self.length(kind);
        let strike = Strike { kind, slot, length, dice: self.dice.random() };
        let pause = Duration::from_millis(self.dice.random_range(self.pace.pause()));
        Some((strike, hold, pause))
    }

    fn choose(&mut self, world: &World, reserve: &Reserve, going: &Going) -> Option<(Kind, usize, Hold)> {
        let on_other = world.on_other.load(Ordering::SeqCst);
        if on_other && self.struck >= self.replaced_at + ON_OTHER && !self.queue.contains(&Kind::Replace) {
            self.queue.push_front(Kind::Replace);
        }
        for place in 0..self.queue.len() {
            let kind = self.queue[place];
            if going.has_room_for(kind)
                && let Some((slot, hold)) = self.hold(kind, world, reserve)
            {
                self.queue.remove(place);
                return Some((kind, slot, hold));
            }
        }
        if self.struck + going.all() + self.queue.len() >= self.wanted {
            return None;
        }
        let kind = self.weighted().filter(|kind| going.has_room_for(*kind))?;
        self.hold(kind, world, reserve).map(|(slot, hold)| (kind, slot, hold))
    }

    fn weighted(&mut self) -> Option<Kind> {
        let known_to_fail = |kind: &Kind| self.failed.get(kind).is_some_and(|failed| *failed >= TRIES);
        let kinds: Vec<(Kind, u32)> =
            self.kinds.iter().filter(|kind| !known_to_fail(kind)).map(|kind| (*kind, weight(*kind))).collect();
        let sum: u32 = kinds.iter().map(|(_, weight)| weight).sum();
        let mut at = (sum > 0).then(|| self.dice.random_range(0..sum))?;
        for (kind, weight) in kinds {
            if at < weight {
                return Some(kind);
            }
            at -= weight;
        }
        None
    }

    /// On which slot, and what nobody else may break meanwhile.
    fn hold(&mut self, kind: Kind, world: &World, reserve: &Reserve) -> Option<(usize, Hold)> {
        let slots = world.slots.len();
        let any = self.dice.random_range(0..slots);
        let untouched = reserve.untouched(slots);
        // One goes on without a fault of its own.
        let mut one = || (untouched.len() > 1).then(|| untouched[self.dice.random_range(0..untouched.len())]);
        match kind {
            Kind::Kill | Kind::Freeze | Kind::Terminate | Kind::ClockSkew | Kind::ClockJump => {
                let slot = one()?;
                Some((slot, reserve.take(&[Thing::Process(slot)])?))
            }
            Kind::Partition | Kind::PartitionOut | Kind::PartitionIn => {
                let slot = one()?;
                Some((slot, reserve.take(&[Thing::Wire(slot)])?))
            }
            // Whoever comes to it first.
            Kind::KillAt(point) | Kind::FreezeAt(point) => {
                let passes = world.slots.iter().any(|slot| slot.has_points());
                if passes { Some((any, reserve.take(&[Thing::Point(point)])?)) } else { None }
            }
            Kind::Replace => {
                let mut all: Vec<Thing> = (0..slots).map(Thing::Process).collect();
                all.extend([Thing::Postgres, Thing::Cluster]);
                Some((any, reserve.take(&all)?))
            }
            Kind::PostgresKill
            | Kind::PostgresRestart
            | Kind::PostgresFreeze
            | Kind::BackendsTerminated
            | Kind::DiskFull
            | Kind::FailoverSync
            | Kind::FailoverAsync => Some((any, reserve.take(&[Thing::Postgres])?)),
            Kind::ReplyLost(Pair::Router) => {
                let all: Vec<Thing> = (0..slots).map(|slot| Thing::Line(slot, Pair::Router)).collect();
                Some((any, reserve.take(&all)?))
            }
            Kind::Delay(pair) | Kind::Cut(pair) | Kind::BlackHole(pair) | Kind::ReplyLost(pair) => {
                // With a leader only one of them talks to the router.
                let busiest = (0..slots).max_by_key(|slot| world.slots[*slot].lines.of(pair).last_reply());
                let slot = if self.dice.random_ratio(3, 4) { busiest? } else { any };
                Some((slot, reserve.take(&[Thing::Line(slot, pair)])?))
            }
            Kind::ApiserverKill
            | Kind::ApiserverFreeze
            | Kind::EtcdKill
            | Kind::EtcdFreeze
            | Kind::EtcdCompact
            | Kind::EtcdRestore
            | Kind::LeaseStolen => Some((any, reserve.take(&[Thing::Cluster])?)),
            Kind::RouterSlow | Kind::RouterFails | Kind::RouterResets | Kind::RouterHuge => {
                Some((any, reserve.take(&[Thing::Router])?))
            }
        }
    }

    fn length(&mut self, kind: Kind) -> Duration {
        let milliseconds = match kind {
            // Also longer than a claim's lease of 3 s.
            Kind::Freeze | Kind::FreezeAt(_) | Kind::PostgresFreeze => 300..4000,
            Kind::Partition | Kind::PartitionOut | Kind::PartitionIn => 300..4000,
            Kind::ApiserverFreeze | Kind::EtcdFreeze | Kind::LeaseStolen => 500..4000,
            Kind::Delay(_) | Kind::Cut(_) | Kind::BlackHole(_) => 300..3000,
            // For how long replies are waited for.
            Kind::ReplyLost(Pair::Facade | Pair::Postgres) => 3000..4000,
            Kind::ReplyLost(Pair::Apiserver) => 6000..7000,
            Kind::ReplyLost(Pair::Router) => 20_000..21_000,
            Kind::RouterSlow | Kind::RouterFails | Kind::RouterResets | Kind::RouterHuge => 500..2500,
            Kind::ClockSkew | Kind::ClockJump => 1000..4000,
            Kind::DiskFull => 300..2000,
            Kind::PostgresKill | Kind::PostgresRestart | Kind::ApiserverKill | Kind::EtcdKill => 0..1200,
            Kind::EtcdRestore | Kind::EtcdCompact => 300..1500,
            Kind::Kill
            | Kind::Terminate
            | Kind::KillAt(_)
            | Kind::Replace
            | Kind::BackendsTerminated
            | Kind::FailoverSync
            | Kind::FailoverAsync => 0..1,
        };
        Duration::from_millis(self.dice.random_range(milliseconds))
    }
}

fn waits(kind: Kind) -> bool {
    matches!(kind, Kind::KillAt(_) | Kind::FreezeAt(_) | Kind::ReplyLost(Pair::Router))
}

/// Those that cost seconds are had less often.
fn weight(kind: Kind) -> u32 {
    match kind {
        Kind::Replace | Kind::EtcdRestore | Kind::DiskFull | Kind::FailoverSync | Kind::FailoverAsync => 1,
        Kind::ApiserverKill | Kind::EtcdKill | Kind::EtcdCompact => 1,
        Kind::KillAt(_) | Kind::FreezeAt(_) | Kind::ReplyLost(_) | Kind::Kill | Kind::Freeze => 6,
        Kind::Terminate | Kind::ClockSkew | Kind::ClockJump | Kind::LeaseStolen => 4,
        Kind::PostgresKill | Kind::PostgresRestart | Kind::PostgresFreeze | Kind::BackendsTerminated => 4,
        Kind::Delay(_) | Kind::Cut(_) | Kind::BlackHole(_) => 4,
        Kind::Partition | Kind::PartitionOut | Kind::PartitionIn => 6,
        Kind::ApiserverFreeze | Kind::EtcdFreeze => 4,
        Kind::RouterSlow | Kind::RouterFails | Kind::RouterResets | Kind::RouterHuge => 4,
    }
}
