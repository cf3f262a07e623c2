//! Faults between a replica and others: on one line, or on its whole network. And a router that misbehaves.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Nemesis, plan::Strike};
use crate::{
    log::Pair,
    sink,
    world::{network::Direction, proxy::Mode, shell::now, slot::Slot},
};

pub(super) fn delay(strike: &Strike) -> Mode {
    Mode::Delay(Duration::from_millis(u64::from(20 + strike.dice % 380)))
}

pub(super) fn black_hole(strike: &Strike) -> Mode {
    Mode::BlackHole { late: strike.dice.is_multiple_of(2) }
}

/// Around the deadline of a delivery, which is 1 s.
pub(super) fn slow(strike: &Strike) -> sink::Mode {
    sink::Mode::Slow(u64::from(200 + strike.dice % 1600))
}

pub(super) fn fails(strike: &Strike) -> sink::Mode {
    sink::Mode::Fails([500, 502, 503, 429][strike.dice as usize % 4])
}

impl Nemesis {
    pub(super) async fn line(&self, strike: &Strike, pair: Pair, mode: Mode) -> anyhow::Result<bool> {
        let slot = &self.world.slots[strike.slot];
        let line = slot.lines.of(pair);
        let record = self.plan(strike.kind, Some(slot.name.clone()));
        line.set(mode);
        record.struck(format!("{mode:?} for {:?}", strike.length));
        sleep(strike.length).await;
        line.set(Mode::Pass);
        record.over();
        Ok(true)
    }

    /// Strikes when a reply was lost. The length is how long one is waited for. With a leader only one replica talks to the router, and
    /// who that is may change: there all lines lose, until one has.
    pub(super) async fn reply_lost(&self, strike: &Strike, pair: Pair) -> anyhow::Result<bool> {
        let slots = match pair {
            Pair::Router => &self.world.slots[..],
            Pair::Postgres | Pair::Apiserver | Pair::Facade => &self.world.slots[strike.slot..=strike.slot],
        };
        let planned_at = now();
        let mut first = Some(self.plan(strike.kind, slots.first().map(|slot| slot.name.clone())));
        let connections = 1 + strike.dice as usize % 4;
        for slot in slots {
            slot.lines.of(pair).set(Mode::ReplyLost { connections });
        }
        let deadline = Instant::now() + strike.length;
        let lost = |slot: &&Arc<Slot>| slot.lines.of(pair).lost() > 0;
        while Instant::now() < deadline && !slots.iter().any(|slot| lost(&slot)) {
            sleep(Duration::from_millis(2)).await;
        }
        // Those that have not lost any lose none.
        for slot in slots.iter().filter(|slot| !lost(slot)) {
            slot.lines.of(pair).stop_losing();
        }
        let mut records = Vec::new();
        for slot in slots.iter().filter(lost) {
            let mut record = first.take().unwrap_or_else(|| self.plan_since(planned_at, strike.kind, None));
            record.target = Some(slot.name.clone());
            record.struck(format!("on {connections} connections at most"));
            records.push(record);
        }
        let struck = !records.is_empty();
        if struck {
            sleep(Duration::from_millis(300)).await;
        }
        for slot in slots {
            slot.lines.of(pair).set(Mode::Pass);
        }
        for record in records.iter().chain(&first) {
            record.over();
        }
        Ok(struck)
    }

    pub(super) async fn partition(&self, strike: &Strike, dead: &[Direction]) -> anyhow::Result<bool> {
        let slot = &self.world.slots[strike.slot];
        let record = self.plan(strike.kind, Some(slot.name.clone()));
        for direction in dead {
            self.world.network.cut(slot.number, *direction).await?;
        }
        record.struck(format!("for {:?}", strike.length));
        sleep(strike.length).await;
        for direction in dead {
            self.world.network.mend(slot.number, *direction).await?;
        }
        record.over();
        Ok(true)
    }

    pub(super) async fn router(&self, strike: &Strike, mode: sink::Mode) -> anyhow::Result<bool> {
        let record = self.plan(strike.kind, None);
        self.world.setup.sink.behave(mode).await?;
        record.struck(format!("{mode:?} for {:?}", strike.length));
        sleep(strike.length).await;
        self.world.setup.sink.behave(sink::Mode::Well).await?;
        record.over();
        Ok(true)
    }
}
