//! The bugs that the product can be given on order (`src/mutants.rs`), which rules must find each, and faults that bring it out.

use crate::log::{Kind, Pair, Point};

pub struct Mutant {
    pub name: &'static str,
    /// Any of these is a find.
    pub rules: &'static [&'static str],
    /// Worth striking for it, and quick. Most bugs show without any.
    pub kinds: &'static [Kind],
    /// `active`: every replica is at work, and what goes wrong between two of them is seen sooner.
    pub mode: &'static str,
}

const fn mutant(name: &'static str, rules: &'static [&'static str], kinds: &'static [Kind]) -> Mutant {
    Mutant { name, rules, kinds, mode: "active" }
}

pub const MUTANTS: &[Mutant] = &[
    mutant("drop-row", &["lost", "uncounted", "unrecorded"], &[Kind::Kill, Kind::RouterSlow]),
    mutant("fire-early", &["early"], &[Kind::Kill, Kind::RouterSlow]),
    mutant("new-id", &["split-id", "shared-id"], &[Kind::RouterFails, Kind::KillAt(Point::Answered), Kind::Kill]),
    mutant(
        "settle-without-token",
        &["repeat", "uncounted", "numbering", "revived", "lost"],
        &[
            Kind::FreezeAt(Point::Answered),
            Kind::FreezeAt(Point::Claimed),
            Kind::Freeze,
            Kind::BlackHole(Pair::Postgres),
        ],
    ),
    mutant(
        "settle-revives-cancelled",
        &["revived", "after-cancel", "after-pause"],
        &[Kind::RouterSlow, Kind::FreezeAt(Point::Answered), Kind::Delay(Pair::Router)],
    ),
    mutant(
        "advance-from-now",
        &["uncounted", "lost"],
        &[Kind::RouterSlow, Kind::RouterFails, Kind::FreezeAt(Point::Claimed)],
    ),
    mutant(
        "no-release",
        &["stuck", "late", "lost"],
        &[Kind::Kill, Kind::KillAt(Point::Claimed), Kind::KillAt(Point::Answered)],
    ),
    mutant("nonce-reuse", &["nonce-twice"], &[Kind::Kill, Kind::Terminate]),
    mutant(
        "effect-without-lease",
        &["effect-twice"],
        &[Kind::Cut(Pair::Facade), Kind::BlackHole(Pair::Facade), Kind::Delay(Pair::Facade), Kind::Freeze],
    ),
    mutant(
        "seq-without-lock",
        &["seq-gap"],
        &[Kind::BackendsTerminated, Kind::ReplyLost(Pair::Facade), Kind::Delay(Pair::Postgres), Kind::Kill],
    ),
    mutant("cap-ignored", &["cap"], &[Kind::Kill, Kind::Cut(Pair::Facade)]),
    mutant("cooldown-ignored", &["cooldown"], &[Kind::Kill, Kind::Cut(Pair::Facade)]),
    mutant(
        "key-ignored",
        &["key-twice"],
        &[Kind::ReplyLost(Pair::Facade), Kind::ReplyLost(Pair::Postgres), Kind::Kill, Kind::Cut(Pair::Facade)],
    ),
    mutant("finalizer-lets-go", &["orphan", "after-cancel"], &[Kind::KillAt(Point::Finalizer), Kind::Kill]),
    mutant("status-not-mirrored", &["status"], &[Kind::KillAt(Point::Reconciled), Kind::Kill]),
    mutant("payload-rewritten", &["altered"], &[Kind::Kill, Kind::RouterSlow]),
    mutant("double-send", &["repeat"], &[Kind::RouterSlow, Kind::Kill]),
    mutant("owner-ignored", &["foreign"], &[Kind::Kill, Kind::Terminate]),
    mutant(
        "promote-twice",
        &["seq-gap", "effect-twice", "phantom", "repeat", "timer", "split-id", "after-cancel"],
        &[
            Kind::FreezeAt(Point::Claimed),
            Kind::ReplyLost(Pair::Postgres),
            Kind::BlackHole(Pair::Postgres),
            Kind::Freeze,
            Kind::BackendsTerminated,
        ],
    ),
    mutant(
        "failure-counts-as-fired",
        &["lost", "uncounted", "unrecorded", "unjustified-failure"],
        &[Kind::RouterFails, Kind::Kill],
    ),
    mutant("pause-ignored", &["after-pause"], &[Kind::RouterSlow, Kind::Kill]),
    mutant("gives-up-early", &["unjustified-failure", "lost"], &[Kind::RouterFails, Kind::RouterResets]),
    mutant("timer-given-up", &["timer", "lost"], &[Kind::RouterFails, Kind::RouterResets, Kind::Cut(Pair::Router)]),
    mutant("count-forgotten", &["numbering", "unjustified-failure"], &[Kind::RouterFails, Kind::RouterResets]),
    mutant(
        "fold-untold",
        &["uncounted", "lost"],
        &[Kind::PostgresFreeze, Kind::PostgresRestart, Kind::PostgresKill, Kind::Freeze],
    ),
    // While nobody leads slots pass that an edit gives up.
    Mutant {
        mode: "leader",
        ..mutant("edit-untold", &["lost"], &[Kind::PostgresFreeze, Kind::Freeze, Kind::FreezeAt(Point::Claimed)])
    },
    // What a leader's death leaves behind waits for another leader; a slow router has taken much of it.
    Mutant {
        mode: "leader",
        ..mutant("lost-untried", &["denied"], &[Kind::RouterSlow, Kind::Kill, Kind::KillAt(Point::Answered)])
    },
    mutant(
        "fenced-unrecorded",
        &["unrecorded"],
        &[Kind::RouterSlow, Kind::FreezeAt(Point::Answered), Kind::Delay(Pair::Router)],
    ),
    mutant("commit-forgotten", &["event-lost", "seq-gap"], &[Kind::Kill, Kind::Delay(Pair::Facade)]),
];
