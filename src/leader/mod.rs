//! Which replica does what only one should: an election over a Kubernetes Lease.
//!
//! ```text
//!            none, free, or unchanged for its whole duration          renewed every RETRY
//!   follow ───────────────── write it as ours ───────────────► lead ────────────────────┐
//!     ▲  ▲        compare-and-swap: 409 = somebody was faster    │  ▲                   │
//!     │  └── read every RETRY: another's                         │  └───────────────────┘
//!     └──────────────── another's, or not renewed for RENEW_DEADLINE, or told to stop (released)
//! ```
//!
//! Why no two replicas lead at once, as far as clocks run at about the same speed:
//!
//! - Every write is conditional on the `resourceVersion` that was read. Of two replicas that want the same Lease one gets
//!   it, the other a conflict.
//! - A leader leads for [`RENEW_DEADLINE`] after it *sent* a write that succeeded, on its own monotonic clock. The instant is
//!   part of [`Standing::Leading`] and is looked at on every question: a process that was frozen past it wakes up deposed,
//!   before it has asked anybody.
//! - Another takes the Lease only when it has *seen* it unchanged for the whole duration that the holder wrote into it
//!   ([`LEASE`]), on its own monotonic clock. It sees a write after it was sent, so its 15 s end at least 5 s after the
//!   leader's 10 s. The times in a Lease are for people: wall clocks differ, and nobody here compares them.
//!
//! What the monotonic clock of Linux does not count is time in which the whole machine sleeps. Correctness does not depend
//! on any of this: the claim's token fences dispatchers, and two controllers write the same.
//!
//! An API server that is away must not stop wakes. A replica whose calls fail by anything but a conflict for [`PATIENCE`] is
//! [`Standing::Unreachable`]: it claims as if there were no election, until a call works again; then it obeys. The controller
//! does not: without the API server it has nothing to do.
//!
//! | file | what it is |
//! |---|---|
//! | [`decide`] | what to do about a Lease as read. Pure |
//! | [`candidate`] | what a replica knows, and what that makes it. Pure; histories with failures are tried on it |
//! | [`standing`] | what the rest of the process is told |
//! | here | the calls |

pub mod candidate;
pub mod decide;
pub mod standing;

use std::{fs, sync::Arc, time::Duration};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use thiserror::Error;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use uuid::Uuid;

use crate::{
    clock::Clock,
    telemetry::{chain, metrics},
};

use candidate::Candidate;
use decide::{Decision, Record};

pub use standing::{Leadership, Standing};

/// How long others leave a Lease alone that does not change.
pub const LEASE: Duration = Duration::from_secs(15);
/// How long a leader leads without a renewal. What is missing to [`LEASE`] is for clocks that do not run at the same speed,
/// and for work to stop before another starts it.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Between two looks, and between two renewals: four renewals may fail before the deadline.
pub const RETRY: Duration = Duration::from_secs(2);
/// After this long without a call that worked the API server counts as away. As long as a leader leads without one, so that
/// the wakes of a leader that is cut off go on without a gap.
pub const PATIENCE: Duration = RENEW_DEADLINE;
/// Of one request, kube's own retries included. Two that hang fit between a renewal and the deadline after it.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// For handing back the Lease at the end: a process that is told to stop has little time left.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);
/// What a released Lease says; 0 is refused by the API server.
const RELEASED_SECONDS: i32 = 1;

#[derive(Debug, Error)]
pub enum Error {
    #[error(
        "Lease {lease} may not be used: the service account needs the verbs get, create and update on leases \
         (API group coordination.k8s.io) in that namespace"
    )]
    Forbidden {
        lease: String,
        #[source]
        source: kube::Error,
    },
    #[error("Lease {lease} cannot be created: its namespace does not exist; create it, or set CHRONOS_NAMESPACE")]
    NoNamespace {
        lease: String,
        #[source]
        source: kube::Error,
    },
    #[error("Lease {lease}: the API server does not answer")]
    Silent { lease: String },
    #[error("Lease {lease} cannot be read or written")]
    Failed {
        lease: String,
        #[source]
        source: kube::Error,
    },
}

/// One replica's part in the election over one Lease.
pub struct Election {
    api: Api<Lease>,
    namespace: String,
    name: &'static str,
    identity: String,
    clock: Arc<dyn Clock>,
    candidate: Candidate,
    /// The Lease as the API server answered our last write: what the next renewal is based on.
    mine: Option<Lease>,
    standing: watch::Sender<Standing>,
    /// The failure last logged: said once, not every other second.
    told: String,
}

/// How a write ended that the API server answered.
enum Written {
    Ours,
    /// Somebody was faster.
    Conflict,
}

impl Election {
    pub fn new(
        client: Client,
        namespace: &str,
        name: &'static str,
        identity: impl Into<String>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let identity = identity.into();
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name,
            clock,
            candidate: Candidate::new(identity.clone(), Instant::now()),
            identity,
            mine: None,
            standing: watch::Sender::new(Standing::Undecided),
            told: String::new(),
        }
    }

    pub fn leadership(&self) -> Leadership {
        Leadership::new(self.standing.subscribe())
    }

    /// Until told to stop; then gives back what it holds. While this replica is not `fit` for what the Lease is about, it leaves it
    /// to others.
    pub async fn run(mut self, fit: impl Fn() -> bool, stop: CancellationToken) {
        loop {
            let next_turn = Instant::now() + RETRY;
            if fit() {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = self.turn() => {}
                }
            } else {
                self.step_down().await;
            }
            // A standing may end by itself before the next turn.
            while let Some(change) = self.candidate.next_change(Instant::now()).filter(|change| *change < next_turn) {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep_until(change) => self.publish(),
                }
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep_until(next_turn) => {}
            }
        }
        // Whatever we believe: a turn that was cut off may have written.
        self.standing.send_replace(Standing::Undecided);
        self.release().await;
    }

    /// Gives back what it holds, and is nothing any more.
    async fn step_down(&mut self) {
        let before = self.standing.send_replace(Standing::Undecided);
        metrics::leader(self.name, false);
        self.mine = None;
        if !matches!(before, Standing::Undecided) {
            self.release().await;
        }
        self.candidate.rest(Instant::now());
    }

    /// One look, and what follows from it.
    pub async fn turn(&mut self) {
        match self.try_turn().await {
            Ok(()) => self.told.clear(),
            Err(error) => {
                self.candidate.failed();
                let error = chain(&error);
                if error != self.told {
                    warn!(lease = self.name, error, "the election over Lease {} does not get on", self.name);
                    self.told = error;
                }
            }
        }
        self.publish();
    }

    async fn try_turn(&mut self) -> Result<(), Error> {
        let started_at = Instant::now();
        // A leader need not read what it wrote itself. Whatever goes wrong, the next turn reads.
        if let Some(mine) = self.mine.take()
            && let Written::Ours = self.replace(mine, Decision::Renew).await?
        {
            return Ok(());
        }
        let lease = self.read().await?;
        let record = lease.as_ref().map(Record::of);
        let decision = self.candidate.read(record, started_at, Instant::now());
        let written = match (decision, lease) {
            (Decision::Wait { .. }, _) => return Ok(()),
            (Decision::Create, _) | (Decision::Take | Decision::Renew, None) => self.create().await?,
            (decision @ (Decision::Take | Decision::Renew), Some(lease)) => self.replace(lease, decision).await?,
        };
        match written {
            Written::Ours => {}
            Written::Conflict => self.candidate.conflicted(started_at),
        }
        Ok(())
    }

    async fn read(&self) -> Result<Option<Lease>, Error> {
        match self.call(self.api.get_opt(self.name)).await? {
            Ok(lease) => Ok(lease),
            Err(error) => Err(self.failure(error)),
        }
    }

    async fn create(&mut self) -> Result<Written, Error> {
        let now = self.now(None);
        let lease = Lease {
            metadata: ObjectMeta { name: Some(self.name.to_owned()), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.identity.clone()),
                lease_duration_seconds: Some(seconds(LEASE)),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                lease_transitions: Some(0),
                ..LeaseSpec::default()
            }),
        };
        let sent_at = Instant::now();
        match self.call(self.api.create(&PostParams::default(), &lease)).await? {
            Ok(lease) => Ok(self.ours(lease, sent_at)),
            Err(kube::Error::Api(status)) if status.code == CONFLICT => Ok(Written::Conflict),
            Err(source @ kube::Error::Api(_)) if is(&source, NOT_FOUND) => {
                Err(Error::NoNamespace { lease: self.path(), source })
            }
            Err(error) => Err(self.failure(error)),
        }
    }

    /// Writes a Lease, based on what was read of it: whatever else is in it stays.
    async fn replace(&mut self, mut lease: Lease, decision: Decision) -> Result<Written, Error> {
        let spec = lease.spec.get_or_insert_default();
        // A renewal that changed nothing would not be seen by anybody.
        let now = self.now(spec.renew_time.as_ref());
        match decision {
            Decision::Renew => {}
            Decision::Create | Decision::Take | Decision::Wait { .. } => {
                spec.acquire_time = Some(now.clone());
                spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0).saturating_add(1));
            }
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = Some(seconds(LEASE));
        spec.renew_time = Some(now);
        let sent_at = Instant::now();
        match self.call(self.api.replace(self.name, &PostParams::default(), &lease)).await? {
            Ok(lease) => Ok(self.ours(lease, sent_at)),
            // Gone is changed, too.
            Err(error) if is(&error, CONFLICT) || is(&error, NOT_FOUND) => Ok(Written::Conflict),
            Err(error) => Err(self.failure(error)),
        }
    }

    fn ours(&mut self, lease: Lease, sent_at: Instant) -> Written {
        self.candidate.wrote(Record::of(&lease), sent_at, Instant::now());
        self.mine = Some(lease);
        Written::Ours
    }

    /// So that another need not wait until it runs out. If that fails, it runs out.
    async fn release(&self) {
        let released = async {
            let Some(mut lease) = self.read().await? else { return Ok(false) };
            if Record::of(&lease).holder.as_deref() != Some(&self.identity) {
                return Ok(false);
            }
            let spec = lease.spec.get_or_insert_default();
            let now = self.now(spec.renew_time.as_ref());
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(RELEASED_SECONDS);
            spec.acquire_time = Some(now.clone());
            spec.renew_time = Some(now);
            match self.call(self.api.replace(self.name, &PostParams::default(), &lease)).await? {
                Ok(_) => Ok(true),
                Err(error) => Err(self.failure(error)),
            }
        };
        match tokio::time::timeout(RELEASE_TIMEOUT, released).await {
            Ok(Ok(true)) => info!(lease = self.name, "released Lease {}", self.name),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => warn!(lease = self.name, error = %chain(&error), "Lease {} is not released", self.name),
            Err(_) => warn!(lease = self.name, "Lease {} is not released: no answer", self.name),
        }
    }

    /// One request with a deadline, which is never beyond the moment at which what we are changes by itself.
    async fn call<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<kube::Result<T>, Error> {
        let latest = Instant::now() + CALL_TIMEOUT;
        let deadline = self.candidate.next_change(Instant::now()).map_or(latest, |change| change.min(latest));
        tokio::time::timeout_at(deadline, request).await.map_err(|_| Error::Silent { lease: self.path() })
    }

    fn failure(&self, source: kube::Error) -> Error {
        let lease = self.path();
        if is(&source, FORBIDDEN) { Error::Forbidden { lease, source } } else { Error::Failed { lease, source } }
    }

    fn publish(&mut self) {
        let standing = self.candidate.standing(Instant::now());
        let before = self.standing.send_replace(standing.clone());
        metrics::leader(self.name, matches!(standing, Standing::Leading { .. }));
        if before.word() == standing.word() {
            return;
        }
        let (lease, identity, path) = (self.name, &self.identity, self.path());
        match standing {
            Standing::Leading { .. } => info!(lease, identity, "leads by Lease {path}"),
            Standing::Following { holder } => info!(lease, identity, holder, "follows {holder} by Lease {path}"),
            Standing::Undecided => info!(lease, identity, "no longer leads by Lease {path}"),
            Standing::Unreachable => {
                warn!(lease, identity, "Lease {path}: not reached for {PATIENCE:?}, going on without election");
            }
        }
    }

    fn path(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// The time for a Lease's readers, at any rate another than `previous`.
    fn now(&self, previous: Option<&MicroTime>) -> MicroTime {
        let now = self.clock.now().timestamp_micros();
        let now = if previous.is_some_and(|previous| previous.0.as_microsecond() == now) { now + 1 } else { now };
        MicroTime(Timestamp::from_microsecond(now).expect("the machine's clock stands before the year 10000"))
    }
}

/// Who somebody is in a Lease: a name for people, and what makes it unlike any other life of the same host.
pub fn identity(unique: Uuid) -> String {
    format!("{}_{unique}", host())
}

/// What people call this machine. A pod's host name is the pod's name.
pub fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "chronosd".to_owned() } else { name.to_owned() }
}

const CONFLICT: u16 = 409;
const NOT_FOUND: u16 = 404;
const FORBIDDEN: u16 = 403;

fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

fn seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).expect("a Lease lasts seconds")
}
