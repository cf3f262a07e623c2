//! What went wrong on purpose.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// Where a process can be told to die or to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// Rows are claimed, nothing is sent.
    Claimed,
    /// The router has the wake, nobody has its answer. The sink tells, not the process.
    Sent,
    /// The answer is here, nothing is settled.
    Answered,
    /// The settle is committed, nobody knows yet.
    Settled,
    /// A resource is stored, its status is not written.
    Reconciled,
    /// A deleted resource's row is cancelled, its finalizer still there.
    Finalizer,
}

/// The two ends of a line with a proxy in it: a replica and this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pair {
    Postgres,
    Router,
    Apiserver,
    /// The driver and a replica's facade.
    Facade,
}

/// Every kind of fault there is. `name` is how logs, tables and `KINDS=` call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    // Of a replica's process. Target: an incarnation (`r1.4`).
    Kill,
    Freeze,
    Terminate,
    KillAt(Point),
    FreezeAt(Point),
    /// All replicas, one after another, by another build.
    Replace,
    /// Started anew with a clock that is off.
    ClockSkew,
    /// Its clock jumps while it runs.
    ClockJump,
    // Of Postgres. Target: none.
    PostgresKill,
    PostgresRestart,
    PostgresFreeze,
    BackendsTerminated,
    DiskFull,
    FailoverSync,
    FailoverAsync,
    // Of the line between a replica and something else. Target: a slot (`r1`).
    Delay(Pair),
    Cut(Pair),
    BlackHole(Pair),
    ReplyLost(Pair),
    // Of a replica's network namespace. Target: a slot.
    Partition,
    /// What it sends gets lost.
    PartitionOut,
    /// What is sent to it gets lost.
    PartitionIn,
    // Of the cluster. Target: none; for the lease its name.
    ApiserverKill,
    ApiserverFreeze,
    EtcdKill,
    EtcdFreeze,
    EtcdCompact,
    EtcdRestore,
    LeaseStolen,
    // Of the router. Target: none.
    RouterSlow,
    RouterFails,
    RouterResets,
    RouterHuge,
}

/// A line of `faults.jsonl`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum FaultLine {
    /// Before anything is done about it. One that waits for a fail point may never strike.
    Planned { number: u64, at: DateTime<Utc>, kind: Kind, target: Option<String> },
    /// It has an effect from some instant between `Planned` and this one on. `undoes_from`: what was committed since then, until it
    /// is over, may be undone (an asynchronous failover: rows; a restore of etcd: objects).
    Struck {
        number: u64,
        at: DateTime<Utc>,
        target: Option<String>,
        undoes_from: Option<DateTime<Utc>>,
        detail: String,
    },
    /// Nothing stands in the way any more: processes run, lines are open. `Over` without `Struck`: it never struck.
    Over { number: u64, at: DateTime<Utc> },
}

#[derive(Clone, Debug)]
pub struct Fault {
    pub number: u64,
    pub kind: Kind,
    pub target: Option<String>,
    pub planned_at: DateTime<Utc>,
    /// `None`: it never struck.
    pub struck_at: Option<DateTime<Utc>>,
    pub undoes_from: Option<DateTime<Utc>>,
    pub detail: String,
    /// `None`: not over when the run ended.
    pub over_at: Option<DateTime<Utc>>,
}

pub fn assemble(lines: Vec<FaultLine>) -> Vec<Fault> {
    let mut faults = BTreeMap::new();
    for line in lines {
        match line {
            FaultLine::Planned { number, at, kind, target } => {
                let (detail, planned_at) = (String::new(), at);
                let (struck_at, undoes_from, over_at) = (None, None, None);
                faults.insert(
                    number,
                    Fault { number, kind, target, planned_at, struck_at, undoes_from, detail, over_at },
                );
            }
            FaultLine::Struck { number, at, target, undoes_from, detail } => {
                if let Some(fault) = faults.get_mut(&number) {
                    fault.target = target.or(fault.target.take());
                    (fault.struck_at, fault.undoes_from, fault.detail) = (Some(at), undoes_from, detail);
                }
            }
            FaultLine::Over { number, at } => {
                if let Some(fault) = faults.get_mut(&number) {
                    fault.over_at = Some(at);
                }
            }
        }
    }
    faults.into_values().collect()
}

const POINTS: [Point; 6] =
    [Point::Claimed, Point::Sent, Point::Answered, Point::Settled, Point::Reconciled, Point::Finalizer];
const PAIRS: [Pair; 4] = [Pair::Postgres, Pair::Router, Pair::Apiserver, Pair::Facade];

impl Kind {
    pub fn all() -> Vec<Self> {
        let alone = [
            Self::Kill,
            Self::Freeze,
            Self::Terminate,
            Self::Replace,
            Self::ClockSkew,
            Self::ClockJump,
            Self::PostgresKill,
            Self::PostgresRestart,
            Self::PostgresFreeze,
            Self::BackendsTerminated,
            Self::DiskFull,
            Self::FailoverSync,
            Self::FailoverAsync,
            Self::Partition,
            Self::PartitionOut,
            Self::PartitionIn,
            Self::ApiserverKill,
            Self::ApiserverFreeze,
            Self::EtcdKill,
            Self::EtcdFreeze,
            Self::EtcdCompact,
            Self::EtcdRestore,
            Self::LeaseStolen,
            Self::RouterSlow,
            Self::RouterFails,
            Self::RouterResets,
            Self::RouterHuge,
        ];
        let at_points = POINTS.into_iter().flat_map(|point| [Self::KillAt(point), Self::FreezeAt(point)]);
        let on_lines = PAIRS
            .into_iter()
            .flat_map(|pair| [Self::Delay(pair), Self::Cut(pair), Self::BlackHole(pair), Self::ReplyLost(pair)]);
        alone.into_iter().chain(at_points).chain(on_lines).collect()
    }

    /// Those that cost seconds, and not many: for CI.
    pub fn cheap() -> Vec<Self> {
        let dear = [
            Self::FailoverSync,
            Self::FailoverAsync,
            Self::DiskFull,
            Self::EtcdKill,
            Self::ApiserverKill,
            Self::EtcdRestore,
            // Nobody notices while the API server remembers by itself, which it does until it is started anew.
            Self::EtcdCompact,
            Self::Replace,
        ];
        Self::all().into_iter().filter(|kind| !dear.contains(kind)).collect()
    }

    /// `kill`, `kill-at-claimed`, `reply-lost-postgres`.
    pub fn name(self) -> String {
        let value = serde_json::to_value(self).expect("an enum has a JSON");
        // A text; one with a field is an object of one entry.
        let Some((word, field)) = value.as_object().and_then(|one| one.iter().next()) else {
            return value.as_str().expect("a variant has a name").to_owned();
        };
        format!("{word}-{}", field.as_str().expect("its field has a name"))
    }
}
