//! The load of a run: agents who make alarms, timers and sessions of every sort, change them and end them. What it asks for and what
//! it is told stands in `calls.jsonl`, and nothing of it in memory that anybody judges by.
//!
//! ```text
//! once ────┐
//! series ──┤
//! calls ───┼── Caller ── any replica's facade
//! sessions ┘       └──── calls.jsonl
//! resources ──── API server
//! ```
//! Chance is by the seed. When nothing answers, calls become `Unknown` at a bounded rate, and what must be known is asked again.

mod alarms;
mod caller;
mod cluster;
mod definitions;
mod dice;
mod once;
mod owners;
mod requests;
mod resources;
mod series;
mod service_calls;
mod sessions;
mod stream;

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{caller::Caller, dice::Dice, owners::Owner, sessions::Session};
use crate::{
    log::{Asked, Journal, Trespass},
    world::Entry,
};

/// How much of what.
#[derive(Clone, Debug)]
pub struct Load {
    pub seed: u64,
    pub once_per_second: f64,
    pub series: usize,
    pub resources: usize,
    pub sessions: usize,
    pub service_calls: usize,
}

/// Besides the fast ones.
const MINUTELY: usize = 3;
/// Lives of alarms that go on at once.
const MOST_LIVES: usize = 800;
/// How long what was begun may take to end.
const GRACE: Duration = Duration::from_secs(13);

/// What goes on, until all of it is over.
struct Lives {
    tracker: TaskTracker,
    cut: CancellationToken,
}

impl Lives {
    fn spawn(&self, life: impl Future<Output = ()> + Send + 'static) {
        let cut = self.cut.clone();
        self.tracker.spawn(async move {
            tokio::select! {
                () = cut.cancelled() => {}
                () = life => {}
            }
        });
    }
}

/// Until stopped; then brings what it began to an end.
pub async fn run(entry: Entry, load: Load, journal: Arc<Journal>, stop: CancellationToken) -> anyhow::Result<()> {
    let mut dice = Dice::new(load.seed, 0);
    let caller = Arc::new(Caller::new(entry, journal, stop.clone())?);
    let owners = Owner::all(load.seed);
    for owner in &owners {
        caller.enrol(owner).await;
    }
    for owner in &owners {
        owners::sign_in_first(&caller, owner, &mut dice).await?;
    }

    let lives = Lives { tracker: TaskTracker::new(), cut: CancellationToken::new() };
    for owner in &owners {
        lives.spawn(owners::keep_signed_in(Arc::clone(&caller), Arc::clone(owner), dice.fork()));
    }
    for place in 0..load.series + MINUTELY.min(load.series) {
        let minutely = place >= load.series;
        lives.spawn(series::keep_one(Arc::clone(&caller), owners.clone(), dice.fork(), minutely));
    }
    for _ in 0..load.resources {
        lives.spawn(resources::keep_one(Arc::clone(&caller), owners.clone(), dice.fork()));
    }
    for _ in 0..load.service_calls {
        lives.spawn(service_calls::keep_one(Arc::clone(&caller), owners.clone(), dice.fork()));
    }
    let mut sessions = Vec::new();
    for place in 0..load.sessions {
        let owner = Arc::clone(&owners[place % owners.len()]);
        let key = format!("{}:agent{}:thread{place}", owner.name, place / owners.len());
        sessions.push((Arc::clone(&owner), key.clone()));
        let session = Arc::new(Session { caller: Arc::clone(&caller), owner, key });
        lives.spawn(sessions::speak(Arc::clone(&session), dice.fork()));
        lives.spawn(sessions::think(Arc::clone(&session), dice.fork()));
        lives.spawn(stream::listen(session, dice.fork()));
    }
    lives.spawn(trespass(Arc::clone(&caller), owners.clone(), sessions, dice.fork()));

    make_once_alarms(&caller, &owners, &lives, &load, dice).await;
    lives.tracker.close();
    if timeout(GRACE, lives.tracker.wait()).await.is_err() {
        // Calls that are cut off have no answer in the log, as if they were lost.
        lives.cut.cancel();
        lives.tracker.wait().await;
    }
    Ok(())
}

/// So many a second, until stopped.
async fn make_once_alarms(caller: &Arc<Caller>, owners: &[Arc<Owner>], lives: &Lives, load: &Load, mut dice: Dice) {
    let mut ticks = interval(Duration::from_secs_f64(1.0 / load.once_per_second.max(0.01)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !caller.is_stopping() {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = caller.rest(Duration::from_secs(600)) => continue,
        }
        // While everything is away there are no new ones.
        if caller.is_calm() && lives.tracker.len() < MOST_LIVES {
            let owner = Arc::clone(&owners[dice.below(owners.len())]);
            lives.spawn(once::live(Arc::clone(caller), owner, dice.fork()));
        }
    }
}

/// At alarms and sessions of others.
async fn trespass(caller: Arc<Caller>, owners: Vec<Arc<Owner>>, sessions: Vec<(Arc<Owner>, String)>, mut dice: Dice) {
    while caller.rest(dice.millis(200..800)).await {
        let owner = &owners[dice.below(owners.len())];
        let (on, ways) = if dice.percent(20) {
            let others: Vec<&String> =
                sessions.iter().filter(|(of, _)| of.did != owner.did).map(|(_, key)| key).collect();
            if others.is_empty() {
                continue;
            }
            (others[dice.below(others.len())].clone(), &Trespass::ON_SESSIONS[..])
        } else if let Some(id) = caller.not_of(owner, &mut dice) {
            (id.to_string(), &Trespass::ON_ALARMS[..])
        } else {
            continue;
        };
        let how = ways[dice.below(ways.len())];
        caller.ask(owner, dice.below(caller.slots()), Asked::Trespass { on, how }).await;
    }
}

/// The true time, whatever clocks the replicas have.
#[expect(clippy::disallowed_methods, reason = "the rig's clock is the machine's")]
fn now() -> DateTime<Utc> {
    Utc::now()
}
