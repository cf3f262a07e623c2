//! Faults of a replica's process and of its clock.

use std::time::Duration;

use tokio::time::sleep;

use super::{Nemesis, READY, plan::Strike};
use crate::world::{clock::NOTICED, slot::Slot};

/// For a process that is just being started.
const THERE: Duration = Duration::from_secs(5);

impl Nemesis {
    fn slot(&self, strike: &Strike) -> &Slot {
        &self.world.slots[strike.slot]
    }

    /// Whether there is a process to break. One that is not there comes soon.
    async fn is_there(&self, slot: &Slot) -> bool {
        slot.wait_ready(THERE).await.is_ok() || slot.pid().is_some()
    }

    pub(super) async fn kill(&self, strike: &Strike) -> anyhow::Result<bool> {
        let slot = self.slot(strike);
        if !self.is_there(slot).await {
            return Ok(false);
        }
        let record = self.plan(strike.kind, Some(slot.incarnation()));
        slot.kill().await?;
        record.struck("");
        slot.wait_ready(READY).await?;
        record.over();
        Ok(true)
    }

    pub(super) async fn freeze(&self, strike: &Strike) -> anyhow::Result<bool> {
        let slot = self.slot(strike);
        if !self.is_there(slot).await {
            return Ok(false);
        }
        let record = self.plan(strike.kind, Some(slot.incarnation()));
        let frozen = slot.freeze().await?;
        if frozen {
            record.struck(format!("for {:?}", strike.length));
            sleep(strike.length).await;
            slot.thaw();
        }
        record.over();
        Ok(frozen)
    }

    pub(super) async fn terminate(&self, strike: &Strike) -> anyhow::Result<bool> {
        let slot = self.slot(strike);
        if !self.is_there(slot).await {
            return Ok(false);
        }
        let record = self.plan(strike.kind, Some(slot.incarnation()));
        let life = slot.life.borrow().clone();
        slot.tell_to_stop();
        record.struck("");
        slot.ended(&life).await?;
        slot.wait_ready(READY).await?;
        record.over();
        Ok(true)
    }

    /// All of them, one after another, each ready before the next.
    pub(super) async fn replace(&self, strike: &Strike) -> anyhow::Result<bool> {
        let (binary, has_points) = self.world.swap_builds();
        let record = self.plan(strike.kind, None);
        for slot in &self.world.slots {
            slot.use_binary(binary.clone(), has_points);
            let life = slot.life.borrow().clone();
            slot.tell_to_stop();
            if slot.number == 1 {
                record.struck(format!("by {}", binary.display()));
            }
            slot.ended(&life).await?;
            slot.wait_ready(READY).await?;
        }
        record.over();
        Ok(true)
    }

    pub(super) async fn clock_skew(&self, strike: &Strike) -> anyhow::Result<bool> {
        let slot = self.slot(strike);
        if !self.is_there(slot).await {
            return Ok(false);
        }
        let seconds = if strike.dice.is_multiple_of(2) { 10 } else { -10 };
        let before = slot.incarnation();
        let mut record = self.plan(strike.kind, Some(before.clone()));
        // Told to stop, so that what follows is the clock's doing.
        let life = slot.life.borrow().clone();
        slot.tell_to_stop();
        slot.ended(&life).await?;
        slot.clock.set(seconds)?;
        slot.wait_ready(READY).await?;
        record.target = Some(slot.incarnation());
        record.struck(format!("{seconds:+} s, from the start; {before} was told to stop for it"));
        sleep(strike.length).await;
        let life = slot.life.borrow().clone();
        slot.tell_to_stop();
        slot.ended(&life).await?;
        slot.clock.set(0)?;
        slot.wait_ready(READY).await?;
        record.over();
        Ok(true)
    }

    pub(super) async fn clock_jump(&self, strike: &Strike) -> anyhow::Result<bool> {
        let slot = self.slot(strike);
        if !self.is_there(slot).await {
            return Ok(false);
        }
        let far = i64::from(strike.dice % 29) + 2;
        let seconds = if strike.dice.is_multiple_of(2) { far } else { -far };
        let record = self.plan(strike.kind, Some(slot.incarnation()));
        slot.clock.set(seconds)?;
        sleep(NOTICED).await;
        record.struck(format!("{seconds:+} s, and back"));
        sleep(strike.length).await;
        slot.clock.set(0)?;
        sleep(NOTICED).await;
        record.over();
        Ok(true)
    }
}
