//! What somebody has to do now and then, beside the work: alarms made to follow agents that were suspended or resumed, partitions of
//! the history made ahead and dropped when old, alarms that are long over removed, slots computed anew when newer zone rules are
//! deployed, and the gauges that need the table.
//!
//! Every dispatcher has this task; the eldest of them does it. Nothing here is urgent and all of it may be done twice: a
//! failure is logged and tried again with the next round.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    domain::{
        alarm::Status,
        ids::WorkerId,
        schedule::{Schedule, Zone},
    },
    store::{
        self, Store,
        agents::Followed,
        alarms::{Due, Resting},
    },
    telemetry::{chain, metrics},
};

/// Days for which partitions stand ready: a week without any upkeep harms nothing.
const DAYS_AHEAD: u32 = 7;
/// Between two looks at what is due, for the gauges, and at agents whose alarms do not follow them: a wake of an agent suspended while
/// somebody was dying may go out for so long.
const ROUND: Duration = Duration::from_secs(15);
/// Between two counts of the whole table.
const COUNT: Duration = Duration::from_secs(60);
/// Between two rounds of what is done by the day.
const HOUSEKEEPING: Duration = Duration::from_secs(3600);
/// After newer zone rules were first seen, replicas of the older version may go on for this long and plan by their own.
const ROLLING_UPDATE: Duration = Duration::from_secs(15 * 60);
/// Between two steps along the table: it is nobody's hurry.
const BREATH: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
pub struct Retention {
    pub attempt_days: u32,
    /// `None`: alarms that are over are kept.
    pub alarm_days: Option<u32>,
    /// `None`: what happened in sessions is kept.
    pub session_days: Option<u32>,
}

pub struct Upkeep {
    store: Store,
    worker: WorkerId,
    retention: Retention,
    counted_at: Option<Instant>,
    kept_at: Option<Instant>,
    zones: Zones,
}

/// How far the slots follow our zone rules.
enum Zones {
    Unknown,
    /// Computed once; once more when nobody can plan by older rules any more.
    Again(Instant),
    Done,
}

impl Upkeep {
    pub fn new(store: Store, worker: WorkerId, retention: Retention) -> Self {
        Self { store, worker, retention, counted_at: None, kept_at: None, zones: Zones::Unknown }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                done = self.run_once() => if let Err(error) = done {
                    warn!(error = %chain(&error), "upkeep is put off");
                },
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(ROUND) => {}
            }
        }
    }

    /// One round: whatever is due of it, if it is ours to do.
    pub async fn run_once(&mut self) -> store::Result<()> {
        if !self.store.is_eldest(self.worker).await? {
            // One replica tells of what all share: summed over the replicas the gauges are right.
            tell_due(&Due { alarms: 0, oldest_seconds: 0.0 });
            for status in Status::ALL {
                metrics::alarms(*status, 0);
            }
            self.counted_at = None;
            return Ok(());
        }
        tell_due(&self.store.due().await?);
        self.follow_agents().await?;
        let now = Instant::now();
        let is_due = |last: Option<Instant>, every| last.is_none_or(|last| now.duration_since(last) >= every);
        if is_due(self.kept_at, HOUSEKEEPING) {
            self.keep_house().await?;
            self.kept_at = Some(now);
        }
        if is_due(self.counted_at, COUNT) {
            for (status, count) in self.store.alarms_by_status().await? {
                metrics::alarms(status, count.unsigned_abs());
            }
            self.counted_at = Some(now);
        }
        self.follow_zones(now).await
    }

    /// Pauses and resumes what does not say what its agent's row says: whoever changed the row died half way, or left it to us.
    async fn follow_agents(&self) -> store::Result<()> {
        for did in self.store.agents_astray().await? {
            match self.store.follow_agent(&did).await {
                Ok(Followed { paused, resumed }) => info!(
                    owner_did = %did, paused, resumed,
                    "alarms follow their agent {did}: {paused} paused, {resumed} resumed"
                ),
                // One whose alarms somebody keeps locked holds up neither the others nor the rest of the round.
                Err(error) => {
                    warn!(owner_did = %did, error = %chain(&error), "alarms of agent {did} do not follow it yet");
                }
            }
        }
        Ok(())
    }

    async fn keep_house(&self) -> store::Result<()> {
        let kept = self.store.make_attempt_partitions(DAYS_AHEAD).await?;
        if !kept.is_empty() {
            debug!(?kept, "days whose attempts stay in the default partition");
        }
        self.store.drop_attempts_older_than(self.retention.attempt_days).await?;
        // Neither keeps the other, nor the rest of the round, from being done.
        for done in [self.remove_alarms().await, self.remove_events().await] {
            if let Err(error) = done {
                warn!(error = %chain(&error), "what is old cannot be removed; tried again in an hour");
            }
        }
        Ok(())
    }

    async fn remove_alarms(&self) -> store::Result<()> {
        let Some(days) = self.retention.alarm_days else { return Ok(()) };
        let (mut place, mut all) = (None, 0);
        loop {
            let (removed, next) = self.store.remove_over_for(days, place).await?;
            all += removed;
            if next.is_none() {
                break;
            }
            place = next;
            sleep(BREATH).await;
        }
        if all > 0 {
            info!(removed = all, days, "removed alarms that have been over for {days} days");
        }
        Ok(())
    }

    async fn remove_events(&self) -> store::Result<()> {
        let Some(days) = self.retention.session_days else { return Ok(()) };
        let (mut place, mut all) = (None, 0);
        loop {
            let (removed, next) = self.store.remove_processed_for(days, place.as_ref()).await?;
            all += removed;
            if next.is_none() {
                break;
            }
            place = next;
            sleep(BREATH).await;
        }
        if all > 0 {
            info!(removed = all, days, "removed events of sessions that were processed and are {days} days old");
        }
        Ok(())
    }

    /// Slots that lie ahead are computed anew by newer zone rules than those they were computed by.
    async fn follow_zones(&mut self, now: Instant) -> store::Result<()> {
        let ours = Zone::tzdb_version();
        match self.zones {
            Zones::Done => {}
            Zones::Again(at) if now < at => {}
            Zones::Again(_) => {
                self.move_series().await?;
                self.store.advance_zone_database(ours).await?;
                self.zones = Zones::Done;
            }
            Zones::Unknown => match self.store.zone_database().await? {
                None => {
                    self.store.advance_zone_database(ours).await?;
                    self.zones = Zones::Done;
                }
                Some(theirs) if theirs.as_str() < ours => {
                    info!(theirs, ours, "zone rules {ours} follow {theirs}: slots that lie ahead are computed anew");
                    self.move_series().await?;
                    self.zones = Zones::Again(now + ROLLING_UPDATE);
                }
                Some(_) => self.zones = Zones::Done,
            },
        }
        Ok(())
    }

    async fn move_series(&self) -> store::Result<()> {
        let (mut place, mut count) = (None, 0_u64);
        loop {
            let (series, next) = self.store.resting_series(place).await?;
            let now = self.store.now().await?;
            for one in &series {
                let Some(slot) = moved(one, now) else { continue };
                if self.store.move_if_resting(one, slot).await? {
                    count += 1;
                    debug!(alarm_id = %one.id, "alarm {} moved from {} to {slot}", one.id, one.scheduled_for);
                }
            }
            if next.is_none() {
                break;
            }
            place = next;
            sleep(BREATH).await;
        }
        info!(count, "cron alarms whose next slot moved with the zone rules");
        Ok(())
    }
}

fn tell_due(due: &Due) {
    metrics::alarms_due(due.alarms.unsigned_abs());
    metrics::oldest_due_age(Duration::try_from_secs_f64(due.oldest_seconds).unwrap_or_default());
}

/// Where a series at rest belongs by our rules; `None`: where it is, because that is one of its slots by our rules too, or because it
/// cannot be read or has no slot ahead.
fn moved(series: &Resting, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let (timing, offset) = (series.when.timing().ok()?, series.when.offset().ok()?);
    let Schedule::Cron(recurrence) = timing.schedule else { return None };
    let just_before = series.scheduled_for - TimeDelta::microseconds(1);
    if recurrence.next_after(just_before) == Some(series.scheduled_for) {
        return None;
    }
    recurrence.next_after(now - offset)
}
