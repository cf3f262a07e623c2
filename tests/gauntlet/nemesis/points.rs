//! Replicas that die or stop at a certain point of their work. Every replica is told to; whoever comes there first is struck.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Nemesis, READY, Record,
    plan::Strike,
    reserve::{Hold, Thing},
};
use crate::{
    log::{Kind, Point},
    world::{
        shell::{now, wait_for},
        slot::Slot,
    },
};

/// A point that is not passed in this time is tried again later.
const PASSED: Duration = Duration::from_secs(10);
/// The same where only an elected one comes by: after the death of one, others wait 15 s (`leader::LEASE`).
const PASSED_BY_LEADER: Duration = Duration::from_secs(20);
/// From the moment at which it takes the file to the one at which it is dead or stands still.
const STRUCK: Duration = Duration::from_secs(10);

impl Nemesis {
    pub(super) async fn at_point(&self, strike: &Strike, point: Point, mut hold: Hold) -> anyhow::Result<bool> {
        match point {
            Point::Sent => self.when_sent(strike, &mut hold).await,
            Point::Claimed | Point::Answered | Point::Settled | Point::Reconciled | Point::Finalizer => {
                self.armed(strike, point, &mut hold).await
            }
        }
    }

    fn patience(&self, point: Point) -> Duration {
        match point {
            Point::Reconciled | Point::Finalizer => PASSED_BY_LEADER,
            Point::Claimed | Point::Sent | Point::Answered | Point::Settled if self.world.setup.mode == "leader" => {
                PASSED_BY_LEADER
            }
            Point::Claimed | Point::Sent | Point::Answered | Point::Settled => PASSED,
        }
    }

    /// Those that a fail point can strike.
    fn with_points(&self) -> Vec<Arc<Slot>> {
        self.world.slots.iter().filter(|slot| slot.has_points()).map(Arc::clone).collect()
    }

    async fn armed(&self, strike: &Strike, point: Point, hold: &mut Hold) -> anyhow::Result<bool> {
        let slots = self.with_points();
        let armed_at = now();
        let record = self.plan(strike.kind, None);
        for slot in &slots {
            slot.arm(point, if matches!(strike.kind, Kind::KillAt(_)) { "kill" } else { "stop" })?;
        }
        let deadline = Instant::now() + self.patience(point);
        while Instant::now() < deadline && !slots.iter().any(|slot| slot.was_struck(point)) {
            sleep(Duration::from_millis(5)).await;
        }
        // Two may have come there at once.
        let mut struck: Vec<&Arc<Slot>> = slots.iter().filter(|slot| !slot.disarm(point)).collect();
        for slot in &struck {
            hold.add(Thing::Process(slot.number - 1));
        }
        let Some(first) = struck.pop() else {
            record.over();
            return Ok(false);
        };
        let others = struck.into_iter().map(|slot| {
            let record = self.plan_since(armed_at, strike.kind, None);
            self.see_to(strike, slot, record)
        });
        let (first, others) = tokio::join!(self.see_to(strike, first, record), futures::future::join_all(others));
        others.into_iter().collect::<anyhow::Result<Vec<bool>>>()?;
        first
    }

    /// One that has struck itself: writes it down, and helps it up again. False: something else was faster.
    async fn see_to(&self, strike: &Strike, slot: &Slot, mut record: Record<'_>) -> anyhow::Result<bool> {
        let life = slot.life.borrow().clone();
        let is_another = || slot.life.borrow().incarnation != life.incarnation || slot.pid().is_none();
        let struck = if matches!(strike.kind, Kind::KillAt(_)) {
            let dead = || async { is_another() || slot.has_fallen() };
            wait_for("a replica kills itself at a fail point", STRUCK, dead).await.is_ok()
        } else {
            let frozen = || async { slot.is_frozen() || is_another() };
            wait_for("a replica stops itself at a fail point", STRUCK, frozen).await.is_ok() && slot.is_frozen()
        };
        let dead = slot.disarmed();
        if struck {
            // It may have been started anew before we looked.
            record.target = Some(format!("{}.{}", slot.name, dead.unwrap_or(life.incarnation)));
            record.struck(format!("for {:?}", strike.length));
            sleep(strike.length).await;
            slot.thaw();
        }
        if struck && matches!(strike.kind, Kind::KillAt(_)) {
            slot.wait_ready(READY).await?;
        }
        record.over();
        Ok(struck)
    }

    /// When the process in this slot has sent a wake, whichever it is by then.
    async fn caught<'a>(&self, slot: &'a Slot) -> anyhow::Result<(&'a Slot, String)> {
        let mut lives = slot.life.subscribe();
        loop {
            let number = lives.borrow_and_update().incarnation;
            let name = format!("{}.{number}", slot.name);
            tokio::select! {
                caught = self.world.setup.sink.catch(&name) => return caught.map(|()| (slot, name)),
                next = lives.wait_for(|life| life.incarnation != number) => drop(next?),
            }
        }
    }

    /// The sink says who has sent; its answer is held back meanwhile.
    async fn when_sent(&self, strike: &Strike, hold: &mut Hold) -> anyhow::Result<bool> {
        let slots = &self.world.slots;
        let mut record = self.plan(strike.kind, None);
        let mut watched: FuturesUnordered<_> = slots.iter().map(|slot| self.caught(slot)).collect();
        let Ok(Some(caught)) = timeout(self.patience(Point::Sent), watched.next()).await else {
            record.over();
            return Ok(false);
        };
        let (slot, name) = caught?;
        if slot.incarnation() != name {
            record.over();
            return Ok(false);
        }
        record.target = Some(name);
        hold.add(Thing::Process(slot.number - 1));
        if strike.kind == Kind::KillAt(Point::Sent) {
            slot.kill().await?;
            record.struck("");
            slot.wait_ready(READY).await?;
        } else if slot.freeze().await? {
            record.struck(format!("for {:?}", strike.length));
            sleep(strike.length).await;
            slot.thaw();
        } else {
            record.over();
            return Ok(false);
        }
        record.over();
        Ok(true)
    }
}
