//! What is stored fires while the cluster is away: a wake needs neither API server nor etcd nor controller.

use chrono::{DateTime, TimeDelta, Utc};

use super::{
    book::{About, Book, Found},
    deliveries, fates,
    sent::To,
};
use crate::log::{Fault, Kind, Pair};

/// While nothing else is broken an occurrence is taken within this, whatever becomes of the cluster. At work on its own a replica takes it
/// in milliseconds; but here an API server that starts has both cores to itself for a while.
const WITHIN: TimeDelta = TimeDelta::seconds(5);
/// The same with a leader. It gives its Lease up when it could not renew it for 10 s, and claims without one as soon as nobody could
/// reach the API server for so long: the two come together, or one look at the Lease apart.
const WITHIN_WITH_LEADER: TimeDelta = TimeDelta::seconds(10);
/// A resource that was applied, or edited, so long before is stored.
const STORED: TimeDelta = TimeDelta::seconds(20);
/// A wake that is older than this was late before the cluster went away.
const OVERDUE: TimeDelta = TimeDelta::seconds(1);

const JUST_NOW: TimeDelta = TimeDelta::seconds(6);

/// An occurrence, when it was due, and when the router first took it.
struct Taken {
    about: About,
    due: DateTime<Utc>,
    taken_at: DateTime<Utc>,
    /// When somebody last had a say through the API server.
    applied_at: Option<DateTime<Utc>>,
}

/// What was found, and how many occurrences were judged.
pub fn wakes_need_no_cluster(book: &Book<'_>) -> (Vec<Found>, usize) {
    let all = taken(book);
    let elects = book.log.run.mode == "leader";
    let within = if elects { WITHIN_WITH_LEADER } else { WITHIN };
    let (mut found, mut judged) = (Vec::new(), 0);
    for fault in book.faults.struck().iter().filter(|fault| is_of_the_cluster(fault.kind, elects)) {
        let (Some(from), Some(until)) = (fault.struck_at, fault.over_at) else { continue };
        if is_behind(&all, from) {
            continue;
        }
        let first = all.partition_point(|one| one.due < from);
        for one in all[first..].iter().take_while(|one| one.due <= until) {
            let mut others = book.faults.within(one.due, one.due + within);
            let is_new = one.applied_at.is_some_and(|applied_at| applied_at > from - STORED);
            if is_new || others.any(|other| touches_wakes(other.kind, elects)) || book.excused(&one.about) {
                continue;
            }
            judged += 1;
            if one.taken_at - one.due > within {
                found.push(Found { rule: "late", about: one.about.clone(), what: told(one, fault) });
            }
        }
    }
    (found, judged)
}

fn told(one: &Taken, fault: &Fault) -> String {
    let (due, late, name) = (one.due, one.taken_at - one.due, fault.kind.name());
    format!(
        "due at {due}, it was taken {late} later, and nothing was broken but the cluster (fault {}, {name})",
        fault.number
    )
}

/// In order of when they were due. Not those of sessions: their promotion waits for whoever has the session.
fn taken(book: &Book<'_>) -> Vec<Taken> {
    let mut all = Vec::with_capacity(book.wakes_by_delivery.len());
    for places in book.wakes_by_delivery.values() {
        let first = places.iter().map(|place| &book.wakes[*place]).find(|sent| sent.was_taken());
        let Some(sent) = first.filter(|sent| sent.to != To::Session) else { continue };
        let about = deliveries::about(book, sent);
        let applied_at = match &about {
            About::Story(story) => Some(&book.stories[*story]).filter(|story| story.resource.is_some()),
            About::Timers(_) | About::Session(_) | About::Else(_) => None,
        };
        let applied_at = applied_at.and_then(|story| story.last_word(sent.at()));
        if let Some(due) = fates::due_at(book, sent, &about) {
            all.push(Taken { about, due, taken_at: sent.at(), applied_at });
        }
    }
    all.sort_by_key(|one| one.due);
    all
}

/// Whether something is being caught up with: more than one in ten of what came due a moment ago. Single ones are on their ladder.
fn is_behind(all: &[Taken], at: DateTime<Utc>) -> bool {
    let place = |instant| all.partition_point(|one| one.due < instant);
    let before = &all[place(at - JUST_NOW)..place(at - OVERDUE)];
    before.iter().filter(|one| one.taken_at > at).count() * 10 > before.len()
}

/// While it lasts the API server does not answer, or not everybody. A Lease that is stolen is another thing: whoever has it leads; and in a
/// cluster that was restored somebody else may have it.
const fn is_of_the_cluster(kind: Kind, elects: bool) -> bool {
    let takes_it_away = matches!(
        kind,
        Kind::ApiserverKill
            | Kind::ApiserverFreeze
            | Kind::EtcdKill
            | Kind::EtcdFreeze
            | Kind::EtcdCompact
            | Kind::Delay(Pair::Apiserver)
            | Kind::Cut(Pair::Apiserver)
            | Kind::BlackHole(Pair::Apiserver)
            | Kind::ReplyLost(Pair::Apiserver)
    );
    takes_it_away || (!elects && matches!(kind, Kind::EtcdRestore | Kind::LeaseStolen))
}

pub const fn touches_wakes(kind: Kind, elects: bool) -> bool {
    let of_a_facade = matches!(
        kind,
        Kind::Delay(Pair::Facade)
            | Kind::Cut(Pair::Facade)
            | Kind::BlackHole(Pair::Facade)
            | Kind::ReplyLost(Pair::Facade)
    );
    !is_of_the_cluster(kind, elects) && !of_a_facade
}
