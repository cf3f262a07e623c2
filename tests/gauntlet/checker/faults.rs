//! Which fault explains what.

use chrono::{DateTime, TimeDelta, Utc};

use crate::log::{Fault, Kind, Pair, Run};

/// For how long after its end a fault may still show: what was on its way then has arrived by now.
const AFTERMATH: TimeDelta = TimeDelta::milliseconds(1500);
/// The same after a line that held everything back, or lost it: TCP backs off, and a packet is sent again a second and more after the line
/// is open.
const AFTERMATH_OF_A_LINE: TimeDelta = TimeDelta::milliseconds(2500);
/// A wake that is being sent when a fault strikes was claimed a moment before.
const CLAIMED_BEFORE: TimeDelta = TimeDelta::milliseconds(500);

/// What a fault may have to explain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symptom {
    /// One attempt at one occurrence reached the router twice: whoever sent it first could not write down what it was answered, or was
    /// taken for dead before it did.
    Repeated,
    /// The router took one occurrence under two numbers: an answer was lost, or the first is explained as above.
    TakenTwice,
    /// An attempt was made of which no row tells: its sender died, or could not reach Postgres until its lease ended.
    Unrecorded,
    /// An attempt failed without an answer.
    Unanswered,
    /// A wake came later than its claim allows: it, or who sent it, was held up on the way.
    HeldUp,
}

/// One that waits for a point to be passed, or a reply to come by, is planned long before it has any effect: that it has one is seen
/// within this.
const SEEN_WITHIN: TimeDelta = TimeDelta::seconds(3);

/// From when on a fault that struck may show.
fn begins(fault: &Fault) -> DateTime<Utc> {
    let waits = matches!(fault.kind, Kind::KillAt(_) | Kind::FreezeAt(_) | Kind::ReplyLost(_));
    let struck_at = fault.struck_at.unwrap_or(fault.planned_at);
    if waits { fault.planned_at.max(struck_at - SEEN_WITHIN) } else { fault.planned_at }
}

/// Until when a fault that struck may show.
fn ends(fault: &Fault, end: DateTime<Utc>) -> DateTime<Utc> {
    let of_a_line = matches!(
        fault.kind,
        Kind::Partition | Kind::PartitionIn | Kind::PartitionOut | Kind::BlackHole(_) | Kind::Delay(_)
    );
    fault.over_at.unwrap_or(end) + if of_a_line { AFTERMATH_OF_A_LINE } else { AFTERMATH }
}

/// All that struck, in order of time.
pub struct Faults<'a> {
    /// By when they begin.
    struck: Vec<&'a Fault>,
    /// The longest of them: how far back one has to look.
    longest: TimeDelta,
    end: DateTime<Utc>,
    lease: TimeDelta,
    beat: TimeDelta,
}

impl<'a> Faults<'a> {
    pub fn of(faults: &'a [Fault], run: &Run, end: DateTime<Utc>) -> Self {
        let mut struck: Vec<&Fault> = faults.iter().filter(|fault| fault.struck_at.is_some()).collect();
        struck.sort_by_key(|fault| begins(fault));
        let milliseconds = |number: u64| TimeDelta::milliseconds(i64::try_from(number).unwrap_or(i64::MAX));
        let longest = struck.iter().map(|fault| fault.over_at.unwrap_or(end) - begins(fault)).max().unwrap_or_default();
        Self { struck, longest, end, lease: milliseconds(run.lease_ms), beat: milliseconds(run.beat_ms) }
    }

    pub fn struck(&self) -> &[&'a Fault] {
        &self.struck
    }

    /// Those whose time, with an aftermath, meets this one.
    pub fn within(&self, from: DateTime<Utc>, until: DateTime<Utc>) -> impl Iterator<Item = &'a Fault> {
        let first = self.struck.partition_point(|fault| begins(fault) + self.longest + AFTERMATH_OF_A_LINE < from);
        let struck = self.struck[first..].iter().copied();
        let end = self.end;
        struck.take_while(move |fault| begins(fault) <= until).filter(move |fault| ends(fault, end) >= from)
    }

    /// Whether a fault explains that what `first` sent at `at` was sent again, by `second` at `again`. The fault must have been there
    /// while the first was claimed, sent or settled: what was settled in peace is not sent again for a crash a minute later.
    pub fn explain_again(&self, symptom: Symptom, first: (&str, DateTime<Utc>), second: (&str, DateTime<Utc>)) -> bool {
        let (from, until) = (first.1.min(second.1), first.1.max(second.1));
        let until = until.min(from + self.lease + TimeDelta::seconds(1));
        self.within(from - CLAIMED_BEFORE, until).any(|fault| {
            let hit = Self::hits(fault, first.0) || (reaches_both(fault.kind) && Self::hits(fault, second.0));
            hit && self.explains(fault, symptom)
        })
    }

    /// Whether a fault explains this of what `sender` did between these instants. `None`: nobody knows who it was.
    pub fn explain(&self, symptom: Symptom, sender: Option<&str>, from: DateTime<Utc>, until: DateTime<Utc>) -> bool {
        self.within(from, until)
            .any(|fault| self.explains(fault, symptom) && sender.is_none_or(|sender| Self::hits(fault, sender)))
    }

    /// Whether it is a fault of this incarnation, its slot, or everybody.
    fn hits(fault: &Fault, incarnation: &str) -> bool {
        let slot = |name: &str| name.split('.').next().map(str::to_owned);
        let Some(target) = fault.target.as_deref() else { return true };
        // Only that process; the next one in its slot is another.
        let of_process =
            matches!(fault.kind, Kind::Kill | Kind::Freeze | Kind::Terminate | Kind::KillAt(_) | Kind::FreezeAt(_));
        if of_process { target == incarnation } else { slot(target) == slot(incarnation) }
    }

    /// How long it was there.
    fn lasted(&self, fault: &Fault) -> TimeDelta {
        fault.over_at.unwrap_or(self.end) - begins(fault)
    }

    fn explains(&self, fault: &Fault, symptom: Symptom) -> bool {
        use Symptom::{HeldUp, Repeated, TakenTwice, Unanswered, Unrecorded};
        match fault.kind {
            // The dead record nothing. What they had sent is sent again by others.
            Kind::Kill | Kind::KillAt(_) => matches!(symptom, Repeated | TakenTwice | Unrecorded),
            // Taken for dead after three beats. Awake again it records its attempt, and may find that its deadline has passed.
            Kind::Freeze | Kind::FreezeAt(_) => match symptom {
                Repeated => self.lasted(fault) > self.beat * 2,
                TakenTwice | Unanswered | HeldUp => true,
                Unrecorded => false,
            },
            // Told to stop, a replica finishes what it has sent: nothing is repeated, unless its grace period was cut short.
            Kind::Terminate | Kind::Replace => {
                was_cut_short(fault) && matches!(symptom, Repeated | TakenTwice | Unrecorded)
            }
            // The time of day alone: what is due Postgres says, and stopwatches stay right. For another clock from the start a process is
            // told to stop, which is as above.
            Kind::ClockSkew | Kind::ClockJump => false,
            // Answers that were here are settled again and again until their lease ends. But replicas find back one after another, and
            // with short beats whoever is first takes the others for dead: away for longer than two beats is enough.
            Kind::PostgresKill
            | Kind::PostgresRestart
            | Kind::PostgresFreeze
            | Kind::DiskFull
            | Kind::FailoverSync
            | Kind::FailoverAsync => {
                matches!(symptom, Repeated | TakenTwice | Unrecorded) && self.lasted(fault) > self.beat * 2
            }
            // Every line to Postgres is new at once, or some are. That explains nothing: a settle is sent again, and the second changes
            // nothing; a beat whose reply is lost is a beat to the others.
            Kind::BackendsTerminated | Kind::ReplyLost(Pair::Postgres) => false,
            // As a Postgres that is away, for one replica: its peers go on beating, and after three beats take what it has in hand.
            Kind::Delay(Pair::Postgres) | Kind::Cut(Pair::Postgres) | Kind::BlackHole(Pair::Postgres) => {
                matches!(symptom, Repeated | TakenTwice | Unrecorded) && self.lasted(fault) > self.beat * 2
            }
            // The wake, or its answer, is late or lost; the next attempt has the next number. One number twice it does not explain.
            Kind::Delay(Pair::Router)
            | Kind::Cut(Pair::Router)
            | Kind::BlackHole(Pair::Router)
            | Kind::ReplyLost(Pair::Router) => matches!(symptom, TakenTwice | Unanswered | HeldUp),
            // All lines at once.
            Kind::Partition | Kind::PartitionIn | Kind::PartitionOut => {
                symptom != Repeated || self.lasted(fault) > self.beat * 2
            }
            // Taken, and answered too late, or answered and torn down. An answer with megabytes behind it is an answer: its status counts.
            Kind::RouterSlow | Kind::RouterResets => matches!(symptom, TakenTwice | Unanswered),
            Kind::RouterFails | Kind::RouterHuge => false,
            // Nothing of a wake goes over these.
            Kind::Delay(Pair::Apiserver | Pair::Facade)
            | Kind::Cut(Pair::Apiserver | Pair::Facade)
            | Kind::BlackHole(Pair::Apiserver | Pair::Facade)
            | Kind::ReplyLost(Pair::Apiserver | Pair::Facade)
            | Kind::ApiserverKill
            | Kind::ApiserverFreeze
            | Kind::EtcdKill
            | Kind::EtcdFreeze
            | Kind::EtcdCompact
            | Kind::EtcdRestore
            | Kind::LeaseStolen => false,
        }
    }
}

/// Whether who sent it the second time may be the one that was hit: one that was frozen or cut off sends late what others have sent.
fn reaches_both(kind: Kind) -> bool {
    !matches!(kind, Kind::Kill | Kind::KillAt(_) | Kind::Terminate | Kind::Replace)
}

/// The nemesis says so when it had to kill what it told to stop.
fn was_cut_short(fault: &Fault) -> bool {
    ["cut short", "killed", "SIGKILL"].iter().any(|word| fault.detail.contains(word))
}

/// Whether it says that what was committed for a while may be undone, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undoes {
    Rows,
    Objects,
}

/// A stretch of time of which nobody can say whether what was committed in it stayed.
#[derive(Clone, Copy, Debug)]
pub struct Undone {
    pub of: Undoes,
    pub from: DateTime<Utc>,
    pub until: DateTime<Utc>,
}

/// A wake that came just before is settled just after.
const SETTLED_WITHIN: TimeDelta = TimeDelta::seconds(2);

pub fn undone(faults: &[Fault], end: DateTime<Utc>) -> Vec<Undone> {
    let stretch = |fault: &Fault| {
        let of = if fault.kind == Kind::EtcdRestore { Undoes::Objects } else { Undoes::Rows };
        let until = fault.over_at.unwrap_or(end) + AFTERMATH_OF_A_LINE;
        fault.undoes_from.map(|from| Undone { of, from: from - SETTLED_WITHIN, until })
    };
    faults.iter().filter_map(stretch).collect()
}
