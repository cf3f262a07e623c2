//! Store → router: claims what is due, delivers it, settles what became of it.
//!
//! ```text
//!           ┌──────── wait: until the next due instant, a hint, at most a tick ◄─┐
//!           ▼                                                                    │
//!   claim: one short statement stamps due rows with a fresh token, and beats     │
//!           │  each claim judged; what is to go out in its stead is written      │
//!           ▼  each on its own task, no transaction open                         │
//!   deliver: POST to the router, one deadline ──► decide (domain::occurrence)    │
//!           │                                                                    │
//!           ▼                                                                    │
//!   settle under the token: alarms and attempts of a batch in one statement ─────┘
//! ```
//!
//! | file | does |
//! |---|---|
//! | here | the loop |
//! | [`claim`] | one look: claim, judge, start |
//! | [`deliver`] | one wake, from its claim to its result |
//! | [`settle`] | results to the table, in batches |
//! | [`desk`] | what is in hand: slots, owners, bytes |
//! | [`pulse`] | our heartbeat, and who is dead |
//! | [`wait`] | hints |
//! | [`wakes`] | the wakes of sessions, beside the loop |
//!
//! A session's timer takes another way: the claim is *promoted*, settled in one transaction with the event that it becomes and the wake
//! that is to follow. That wake lies in the outbox then, whatever dies, and [`wakes`] delivers it.
//!
//! The process may die at any line. Before the claim commits: nothing happened. After it, before the settle commits: peers see
//! that our beats have stopped and take the claim, or its lease runs out, and the same occurrence goes out under the same
//! delivery id. After the settle: done. A dispatcher that was frozen finds its token gone and changes nothing.
//!
//! Three things end a claim that was not settled: its lease; a peer, after three beats in which we stood still; and
//! ourselves, when we give it back unsent. We send nothing once our own beats have failed for two intervals, so that we are
//! silent before a peer may act.

mod claim;
mod deliver;
mod desk;
mod pulse;
mod settle;
mod wait;
mod wakes;

use std::{pin::pin, sync::Arc, time::Duration};

use thiserror::Error;
use tokio::{
    sync::{
        Notify,
        mpsc::{self, UnboundedReceiver, UnboundedSender},
        watch,
    },
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::{error, warn};

use crate::{
    clock::Clock,
    domain::{ids::WorkerId, ladder::Ladder},
    leader::Leadership,
    router::Receive,
    store::{self, Store, claims::Beat},
    telemetry::{chain, metrics},
};
use claim::Looks;
use desk::Desk;
pub use pulse::Pulse;
use settle::{Finished, Written};
use wait::Hints;

/// Looks, and settles, are at least this far apart unless there is more than one takes: neighbours a few milliseconds apart share
/// one. A lone alarm is not delayed by it.
const GATHER: Duration = Duration::from_millis(5);

/// While more is due than there is room for, a look is put off until it is worth its cost: until so many have landed, or for this long
/// if they are slow.
const FILL: Duration = Duration::from_millis(20);

#[derive(Debug, Error)]
pub enum Error {
    #[error("looking for due alarms")]
    Look(#[from] store::Error),
    #[error("the task that settles results has ended")]
    SettlerEnded,
    #[error("the task that delivers wakes of sessions has ended")]
    WakesEnded(#[source] Option<tokio::task::JoinError>),
}

#[derive(Clone, Debug)]
pub struct Limits {
    pub tick: Duration,
    pub lease: Duration,
    /// A wake must be able to finish inside its lease, or it is not sent.
    pub wake_timeout: Duration,
    pub beat: Duration,
    pub batch: usize,
    pub concurrency: usize,
    pub owner_concurrency: usize,
    /// How long a stop waits for deliveries in flight.
    pub shutdown: Duration,
    /// Whether to listen for hints.
    pub hints: bool,
    /// Whether timers of sessions are promoted, and their wakes delivered.
    pub sessions: bool,
    /// Failures after which a session's wake is given up.
    pub max_failures: u32,
}

/// Whether this replica is among those that claim.
pub enum Gate {
    /// Whatever others do.
    Open,
    /// While it is the one that was elected, or nobody can tell.
    Elected(Leadership),
}

impl Gate {
    fn may_claim(&self) -> bool {
        match self {
            Self::Open => true,
            Self::Elected(leadership) => leadership.may_claim(),
        }
    }

    /// Until that may have changed.
    async fn changed(&mut self) {
        match self {
            Self::Open => std::future::pending().await,
            Self::Elected(leadership) => leadership.changed().await,
        }
    }
}

/// What a dispatcher works with.
pub struct Parts {
    pub store: Store,
    pub router: Arc<dyn Receive>,
    pub ladder: Ladder,
    pub limits: Limits,
    pub pulse: Arc<Pulse>,
    pub clock: Arc<dyn Clock>,
    pub worker: WorkerId,
    /// Pod or machine, for people.
    pub host: String,
}

/// One dispatcher: the only kind of task that talks to the router.
pub struct Dispatcher {
    store: Store,
    router: Arc<dyn Receive>,
    ladder: Ladder,
    limits: Limits,
    worker: WorkerId,
    beat: Beat,
    pulse: Arc<Pulse>,
    stop: CancellationToken,
    results: UnboundedSender<Finished>,
    promotions: UnboundedSender<Finished>,
    /// Told when there are wakes of sessions to deliver.
    wakes_waiting: Notify,
    clock: Arc<dyn Clock>,
}

/// What comes back from the settler.
type Settled = UnboundedReceiver<Written>;

impl Dispatcher {
    /// Looks, delivers and waits until told to stop; then finishes what is in flight.
    pub async fn run(parts: Parts, mut gate: Gate, stop: CancellationToken) -> Result<(), Error> {
        let (results, finished) = mpsc::unbounded_channel();
        let (promotions, promoted) = mpsc::unbounded_channel();
        let (written, mut settled) = mpsc::unbounded_channel();
        let dispatcher = Arc::new(Self {
            store: parts.store,
            router: parts.router,
            ladder: parts.ladder,
            worker: parts.worker,
            beat: Beat { version: env!("CARGO_PKG_VERSION"), host: parts.host },
            pulse: parts.pulse,
            limits: parts.limits,
            clock: parts.clock,
            stop,
            results,
            promotions,
            wakes_waiting: Notify::new(),
        });
        let run = |at_once, results, written| {
            AbortOnDropHandle::new(tokio::spawn(settle::run(Arc::clone(&dispatcher), at_once, results, written)))
        };
        // Timers of one session would wait for each other.
        let _promoter = run(1, promoted, written.clone());
        let _settler = run(settle::AT_ONCE, finished, written);
        let (claiming, may_claim) = watch::channel(false);
        let mut wakes = AbortOnDropHandle::new(tokio::spawn(wakes::run(Arc::clone(&dispatcher), may_claim)));
        let mut desk = Desk::default();
        let mut wakes_ended = false;
        {
            let mut work = pin!(dispatcher.work(&mut desk, &mut settled, &mut gate, &claiming));
            loop {
                tokio::select! {
                    worked = &mut work => break worked?,
                    // Told to stop it ends at once, while a look may still be under way; whatever is in flight is not its business.
                    ended = &mut wakes, if !wakes_ended => {
                        wakes_ended = dispatcher.stop.is_cancelled() && ended.is_ok();
                        if !wakes_ended {
                            return Err(Error::WakesEnded(ended.err()));
                        }
                    }
                }
            }
        }
        drop(claiming);
        let wakes = (!wakes_ended).then_some(wakes);
        dispatcher.leave(&mut desk, &mut settled, wakes).await
    }

    /// Until told to stop.
    async fn work(
        self: &Arc<Self>,
        desk: &mut Desk,
        settled: &mut Settled,
        gate: &mut Gate,
        tell_claiming: &watch::Sender<bool>,
    ) -> Result<(), Error> {
        let hints = Hints::listen(self.limits.hints.then(|| self.store.clone()));
        while !self.stop.is_cancelled() {
            // What has come in while we were looking.
            while let Ok(written) = settled.try_recv() {
                desk.settled(&written);
            }
            desk.land_ready();
            let looked_at = Instant::now();
            let claiming = gate.may_claim();
            // While looks follow each other nobody waits for hints.
            if claiming && hints.take_due(looked_at) {
                desk.progress.begin_anew();
            }
            tell_claiming.send_if_modified(|told| std::mem::replace(told, claiming) != claiming);
            let look = self.look(desk, claiming).await;
            metrics::in_flight(desk.in_flight());
            // After a failure the tick is waited for, whatever lands.
            let (full, more) = (claiming && !self.pulse.has_failed() && desk.is_full(&self.limits), look.more);
            let worth_a_look = |desk: &Desk| (full || more) && desk.has_room_worth_a_look(&self.limits);
            let mut until = match (full, more) {
                // There is no use in looking until something lands; the beat goes on.
                (true, _) => self.pulse.next_beat_at().max(looked_at + GATHER),
                (false, true) if desk.has_room_worth_a_look(&self.limits) => looked_at,
                (false, true) => looked_at + FILL,
                (false, false) => look.again_at,
            };
            let sooner = |until: Instant, at: Instant| until.min(at.max(looked_at + GATHER));
            loop {
                tokio::select! {
                    biased;
                    () = self.stop.cancelled() => return Ok(()),
                    () = sleep_until(until) => break,
                    written = settled.recv() => {
                        let written = written.ok_or(Error::SettlerEnded)?;
                        desk.settled(&written);
                        if let Some(at) = written.wanted_at {
                            until = sooner(until, at);
                        }
                    }
                    awaited = desk.landed() => {
                        metrics::in_flight(desk.in_flight());
                        if awaited {
                            until = sooner(until, looked_at);
                        }
                    }
                    at = hints.next(), if claiming => {
                        if at <= Instant::now() {
                            // Due when it was written: the last look may have passed its instant before it was there.
                            desk.progress.begin_anew();
                        }
                        until = sooner(until, at);
                    }
                    () = gate.changed() => if gate.may_claim() != claiming {
                        break;
                    },
                }
                if worth_a_look(desk) {
                    break;
                }
                if full && !desk.is_full(&self.limits) {
                    until = until.min(looked_at + FILL).max(Instant::now());
                }
            }
        }
        Ok(())
    }

    /// One look, whatever comes of it.
    async fn look(self: &Arc<Self>, desk: &mut Desk, may_claim: bool) -> Looks {
        self.run_once(desk, may_claim).await.unwrap_or_else(|error| {
            // The database is away. Alarms are safe there; look again with the next tick.
            error!(error = %chain(&error), "cannot look for due alarms");
            Looks { claimed: 0, more: false, again_at: Instant::now() + self.limits.tick }
        })
    }

    /// Finishes what is in flight, beating on, and leaves nothing behind that others would have to wait for.
    async fn leave(
        self: &Arc<Self>,
        desk: &mut Desk,
        settled: &mut Settled,
        mut wakes: Option<AbortOnDropHandle<()>>,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + self.limits.shutdown;
        while !(desk.is_clear() && wakes.is_none()) && Instant::now() < deadline {
            let beat_at = self.look(desk, false).await.again_at;
            loop {
                tokio::select! {
                    () = sleep_until(beat_at.min(deadline)) => break,
                    _ = desk.landed() => {}
                    written = settled.recv() => desk.settled(&written.ok_or(Error::SettlerEnded)?),
                    () = ended(&mut wakes), if wakes.is_some() => wakes = None,
                }
                if desk.is_clear() && wakes.is_none() {
                    break;
                }
            }
        }
        if !desk.is_clear() || wakes.is_some() {
            warn!("stopped with deliveries in flight; others deliver them again");
            desk.abort().await;
            drop(wakes);
        }
        let left = async {
            self.store.release_claims_of(self.worker, &[]).await?;
            self.store.release_wakes_of(self.worker, &[]).await?;
            self.store.sign_off(self.worker).await
        };
        if let Err(error) = left.await {
            warn!(error = %chain(&error), "cannot sign off; the others find out by themselves");
        }
        Ok(())
    }
}

/// However it ended: by a stop, or by a panic, which is the same to who leaves.
async fn ended(task: &mut Option<AbortOnDropHandle<()>>) {
    match task {
        Some(task) => drop(task.await),
        None => std::future::pending().await,
    }
}
