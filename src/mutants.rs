//! Bugs and crashes on order, for the gauntlet (`tests/gauntlet`). Nothing of it is in a release: only with the feature `mutants`, which
//! nothing enables by default, is there anything to order; without it every question here is a constant that the compiler drops.
//!
//! **Mutants.** Whether a checker finds anything is known only once it has found something. So the same binary can be given one of the
//! bugs below, each of the kind that a person makes and a review lets pass: a fence forgotten in a WHERE, a lock not taken, a claim that
//! nobody frees. `CHRONOS_MUTANT=<name>` chooses one at start, and the gauntlet must then find a promise broken. A name that does not
//! exist stops the process: a run against no bug at all would say that all is well. Where the code asks, it reads
//! `if mutants::on(Mutant::X)`, or `mutants::changed(Mutant::X, statement, …)` where the bug is in SQL.
//!
//! **Fail points.** Some lines are passed in microseconds, and no kill from outside hits them: between a claim and its wake, between an
//! answer and its settle. `CHRONOS_FAIL_POINTS=<directory>` names a directory in which somebody may put a file named after a [`Point`].
//! Whoever passes that point next takes the file away and does what it says: `kill` ends the process on the spot, `stop` freezes it
//! until somebody sends SIGCONT. A file can be taken away once: one process does it, once. It should come into the directory by a
//! rename, whole; one that says nothing yet is left alone.
//!
//! A process that has either says so at start, as a warning: nobody shall take it for a release.

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` is for tests: an optimised build, such as a release, must not have it");

#[cfg(not(feature = "mutants"))]
pub use none::{announce, changed, is_order, on, one_in, point};
#[cfg(feature = "mutants")]
pub use ordered::{announce, changed, is_order, on, one_in, point};

/// What becomes of the owner in a WHERE when one is forgotten.
pub const ANYBODY: (&str, &str) = ("owner_did = $2", "$2::text IS NOT NULL");

/// A line that a crash may hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Claims are here, nothing is sent.
    Claimed,
    /// The router's answer is here, nothing is settled.
    Answered,
    /// A settle is committed, nobody knows yet.
    Settled,
    /// A resource is stored, its status is not written.
    Reconciled,
    /// A deleted resource's row is cancelled, its finalizer still there.
    Finalizer,
}

/// The bugs, and their names.
macro_rules! mutants {
    ($($(#[doc = $doc:literal])* $variant:ident = $name:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Mutant {
            $($(#[doc = $doc])* $variant,)*
        }

        #[cfg(feature = "mutants")]
        impl Mutant {
            const ALL: &[(Self, &'static str)] = &[$((Self::$variant, $name),)*];
        }
    };
}

mutants! {
    /// Now and then a claim is settled as delivered and never sent.
    DropRow = "drop-row",
    /// What is due within 700 ms counts as due.
    FireEarly = "fire-early",
    /// Each attempt at an occurrence has an id of its own.
    NewId = "new-id",
    /// A settle asks for no token: whoever comes late writes over whoever has the claim now.
    SettleWithoutToken = "settle-without-token",
    /// A settle writes the status as it was at the claim, also over a cancel or a pause that came between.
    SettleRevivesCancelled = "settle-revives-cancelled",
    /// The slots of a series are told up to now, not up to its last slot: those in between vanish.
    AdvanceFromNow = "advance-from-now",
    /// Claims have no end, and nobody frees those of the dead.
    NoRelease = "no-release",
    /// A challenge is looked up and left open.
    NonceReuse = "nonce-reuse",
    /// A send goes out whoever has it already, and again while its acknowledgement is awaited.
    EffectWithoutLease = "effect-without-lease",
    /// An event's number is drawn before its session is locked.
    SeqWithoutLock = "seq-without-lock",
    /// Nobody counts what an agent says unasked.
    CapIgnored = "cap-ignored",
    /// Nobody waits between two things that an agent says unasked.
    CooldownIgnored = "cooldown-ignored",
    /// Now and then an alarm is stored without its idempotency key.
    KeyIgnored = "key-ignored",
    /// The alarm of a deleted resource is not cancelled, neither by the finalizer nor by the sweep.
    FinalizerLetsGo = "finalizer-lets-go",
    /// The status of an alarm that has fired is not written.
    StatusNotMirrored = "status-not-mirrored",
    /// A payload is read and written again on its way: other key order, other spelling of numbers.
    PayloadRewritten = "payload-rewritten",
    /// Now and then a wake goes out twice in a row.
    DoubleSend = "double-send",
    /// An alarm is read and changed by its id, whoever asks.
    OwnerIgnored = "owner-ignored",
    /// A session's timer is promoted without a look at the claim, or at whether it was promoted before.
    PromoteTwice = "promote-twice",
    /// A 5xx counts as delivered.
    FailureCountsAsFired = "failure-counts-as-fired",
    /// What is paused is claimed, too.
    PauseIgnored = "pause-ignored",
    /// The first failure is the last.
    GivesUpEarly = "gives-up-early",
    /// A service call's timer counts as reached after three failures.
    TimerGivenUp = "timer-given-up",
    /// A failure is not counted: every attempt is the first.
    CountForgotten = "count-forgotten",
    /// Slots that another stands for leave no trace.
    FoldUntold = "fold-untold",
    /// What an edit of the schedule gives up leaves no row.
    EditUntold = "edit-untold",
    /// A resumption or an edit takes what was claimed by one that died for something nobody has tried.
    LostUntried = "lost-untried",
    /// An attempt whose claim was lost leaves no row.
    FencedUnrecorded = "fenced-unrecorded",
    /// Now and then an event is answered and not committed.
    CommitForgotten = "commit-forgotten",
}

/// With the feature.
#[cfg(feature = "mutants")]
mod ordered {
    use std::{
        collections::HashMap,
        path::PathBuf,
        sync::{LazyLock, Mutex, PoisonError},
    };

    use anyhow::Context;
    use rustix::process::{Signal, getpid, kill_process};
    use tracing::warn;

    use super::{Mutant, Point};

    const MUTANT: &str = "CHRONOS_MUTANT";
    const FAIL_POINTS: &str = "CHRONOS_FAIL_POINTS";

    static CHOSEN: LazyLock<Result<Option<Mutant>, String>> = LazyLock::new(|| match std::env::var(MUTANT) {
        Ok(name) if !name.is_empty() => Mutant::named(&name).map(Some),
        Ok(_) | Err(_) => Ok(None),
    });
    static POINTS: LazyLock<Option<PathBuf>> = LazyLock::new(|| std::env::var_os(FAIL_POINTS).map(PathBuf::from));

    impl Mutant {
        fn named(name: &str) -> Result<Self, String> {
            let known = Self::ALL.iter().find(|(_, known)| *known == name);
            known.map(|(mutant, _)| *mutant).ok_or_else(|| {
                let names: Vec<&str> = Self::ALL.iter().map(|(_, name)| *name).collect();
                format!("{MUTANT}: there is no mutant {name}; there are {}", names.join(", "))
            })
        }
    }

    /// Says at start what was ordered; an order that nobody can carry out is an error.
    pub fn announce() -> anyhow::Result<()> {
        warn!("built with the feature `mutants`, for tests: this is no release");
        if let Some(mutant) = CHOSEN.as_ref().map_err(|why| anyhow::anyhow!("{why}"))? {
            warn!(?mutant, "this process has a bug on order: {mutant:?}");
        }
        if let Some(directory) = &*POINTS {
            let directory = std::path::absolute(directory).context(FAIL_POINTS)?;
            warn!(directory = %directory.display(), "this process ends or freezes itself when a file in {} says so", directory.display());
        }
        Ok(())
    }

    /// Whether this variable is one of ours.
    pub fn is_order(variable: &str) -> bool {
        [MUTANT, FAIL_POINTS].contains(&variable)
    }

    pub fn on(mutant: Mutant) -> bool {
        matches!(&*CHOSEN, Ok(Some(chosen)) if *chosen == mutant)
    }

    /// True one time in so many.
    pub fn one_in(times: u32) -> bool {
        rand::random_range(0..times) == 0
    }

    /// A statement, or with the mutant what a person would have written who forgot something. It must have something to forget.
    pub fn changed(mutant: Mutant, statement: &'static str, changes: &[(&str, &str)]) -> &'static str {
        static WRONG: LazyLock<Mutex<HashMap<&'static str, &'static str>>> = LazyLock::new(Mutex::default);
        if !on(mutant) {
            return statement;
        }
        let mut known = WRONG.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(statement).or_insert_with(|| {
            let change = |text: String, (right, wrong): &(&str, &str)| {
                assert!(text.contains(right), "{mutant:?} finds nothing to change: {right}");
                text.replace(right, wrong)
            };
            changes.iter().fold(statement.to_owned(), change).leak()
        })
    }

    /// Ends or freezes the process here, if somebody has asked for it.
    pub fn point(point: Point) {
        let Some(directory) = &*POINTS else { return };
        let file = directory.join(point.name());
        let Ok(order) = std::fs::read_to_string(&file) else { return };
        let signal = match order.trim() {
            "kill" => Signal::KILL,
            "stop" => Signal::STOP,
            _ => return,
        };
        // Of several who read it at once one takes it away.
        if std::fs::remove_file(&file).is_ok()
            && let Err(error) = kill_process(getpid(), signal)
        {
            warn!(%error, "cannot do what a fail point asked for");
        }
    }

    impl Point {
        const fn name(self) -> &'static str {
            match self {
                Self::Claimed => "claimed",
                Self::Answered => "answered",
                Self::Settled => "settled",
                Self::Reconciled => "reconciled",
                Self::Finalizer => "finalizer",
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn every_name_is_a_mutants_and_an_unknown_one_is_told_all_of_them() {
            for (mutant, name) in Mutant::ALL {
                assert_eq!(Mutant::named(name), Ok(*mutant));
            }
            let refused = Mutant::named("none-such").unwrap_err();
            assert!(Mutant::ALL.iter().all(|(_, name)| refused.contains(name)), "{refused}");
        }
    }
}

/// Without it.
#[cfg(not(feature = "mutants"))]
mod none {
    use super::{Mutant, Point};

    pub const fn announce() -> anyhow::Result<()> {
        Ok(())
    }

    pub const fn is_order(_variable: &str) -> bool {
        false
    }

    pub const fn on(_: Mutant) -> bool {
        false
    }

    pub const fn one_in(_: u32) -> bool {
        false
    }

    pub const fn changed(_: Mutant, statement: &'static str, _changes: &[(&str, &str)]) -> &'static str {
        statement
    }

    pub const fn point(_: Point) {}
}
