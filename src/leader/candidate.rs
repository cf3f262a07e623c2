//! What one replica knows about a Lease, and what that makes it.

use tokio::time::Instant;

use super::{
    PATIENCE, RENEW_DEADLINE, Standing,
    decide::{Decision, Record, Seen, decide},
};

/// One failure alone is not an API server that is away: a process that was frozen during a call finds it failed, however
/// long ago the call before it was.
const FEWEST_FAILURES: u32 = 2;

pub struct Candidate {
    me: String,
    seen: Option<Seen>,
    view: View,
    /// When the last turn began that came to its end.
    worked_at: Instant,
    /// Turns since then.
    failures: u32,
}

enum View {
    Undecided,
    Others { holder: String },
    Mine { until: Instant },
}

impl Candidate {
    pub fn new(me: String, now: Instant) -> Self {
        Self { me, seen: None, view: View::Undecided, worked_at: now, failures: 0 }
    }

    /// Takes no part for a while. Since when the Lease stands still is not forgotten: while one rests again and again, its holder may be
    /// dead, and a version that is still the same says that nobody wrote it in between.
    pub fn rest(&mut self, now: Instant) {
        (self.view, self.worked_at, self.failures) = (View::Undecided, now, 0);
    }

    /// A turn that began at `started_at` has read the Lease (`None`: there is none) by `now`. Says what is to be done, and
    /// unless that is to wait, the turn ends with how it went.
    pub fn read(&mut self, lease: Option<Record>, started_at: Instant, now: Instant) -> Decision {
        let decision = decide(lease.as_ref(), &self.me, self.seen.as_ref(), now);
        match lease {
            Some(record) if self.seen.as_ref().is_some_and(|seen| seen.record == record) => {}
            Some(record) => self.seen = Some(Seen { record, at: now }),
            // What was seen of it is all there is to go by.
            None => {}
        }
        match &decision {
            Decision::Wait { holder } => {
                self.view = View::Others { holder: holder.clone() };
                self.worked(started_at);
            }
            Decision::Create | Decision::Take | Decision::Renew => {}
        }
        decision
    }

    /// The Lease is ours, by a request that was sent at `sent_at` and has been answered by `now`.
    pub fn wrote(&mut self, record: Record, sent_at: Instant, now: Instant) {
        self.seen = Some(Seen { record, at: now });
        self.view = View::Mine { until: sent_at + RENEW_DEADLINE };
        self.worked(sent_at);
    }

    /// Somebody was faster. Who, the next turn reads; whether we led until now, our own deadline says.
    pub fn conflicted(&mut self, started_at: Instant) {
        self.worked(started_at);
    }

    /// The turn failed, by anything but a conflict.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    pub fn standing(&self, now: Instant) -> Standing {
        match &self.view {
            View::Mine { until } if now < *until => Standing::Leading { until: *until },
            View::Mine { .. } | View::Others { .. } | View::Undecided if self.is_cut_off(now) => Standing::Unreachable,
            View::Others { holder } => Standing::Following { holder: holder.clone() },
            View::Mine { .. } | View::Undecided => Standing::Undecided,
        }
    }

    /// When the standing changes though nothing happens.
    pub fn next_change(&self, now: Instant) -> Option<Instant> {
        let deposed_at = match &self.view {
            View::Mine { until } => Some(*until),
            View::Others { .. } | View::Undecided => None,
        };
        let cut_off_at = (self.failures >= FEWEST_FAILURES).then(|| self.worked_at + PATIENCE);
        [deposed_at, cut_off_at].into_iter().flatten().filter(|change| *change > now).min()
    }

    fn is_cut_off(&self, now: Instant) -> bool {
        self.failures >= FEWEST_FAILURES && now >= self.worked_at + PATIENCE
    }

    fn worked(&mut self, started_at: Instant) {
        self.worked_at = started_at;
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cmp::Reverse,
        collections::{BTreeSet, BinaryHeap},
        time::Duration,
    };

    use proptest::prelude::*;

    use super::{
        super::{CALL_TIMEOUT, LEASE, RETRY},
        *,
    };

    const SECOND: Duration = Duration::from_secs(1);

    fn record(version: u64, holder: &str) -> Record {
        let holder = (!holder.is_empty()).then(|| holder.to_owned());
        Record { version: version.to_string(), holder, duration: LEASE }
    }

    /// A candidate that has led since a request sent at `sent_at`.
    fn leader(sent_at: Instant) -> Candidate {
        let mut candidate = Candidate::new("me".to_owned(), sent_at);
        assert_eq!(candidate.read(None, sent_at, sent_at), Decision::Create);
        candidate.wrote(record(1, "me"), sent_at, sent_at + SECOND);
        candidate
    }

    #[test]
    fn a_leader_leads_for_the_renew_deadline_from_before_its_write_was_sent() {
        let sent_at = Instant::now();
        let until = sent_at + RENEW_DEADLINE;
        let candidate = leader(sent_at);
        assert_eq!(candidate.next_change(sent_at + SECOND), Some(until));
        let just_before = until - Duration::from_nanos(1);
        assert_eq!(candidate.standing(just_before), Standing::Leading { until });
        assert_eq!(candidate.standing(until), Standing::Undecided);
    }

    #[test]
    fn a_leader_that_is_cut_off_goes_on_without_a_gap_and_obeys_again() {
        let sent_at = Instant::now();
        let until = sent_at + RENEW_DEADLINE;
        let mut candidate = leader(sent_at);
        candidate.failed();
        candidate.failed();
        assert_eq!(candidate.standing(sent_at + 9 * SECOND), Standing::Leading { until });
        assert_eq!(candidate.standing(until), Standing::Unreachable);

        let back = sent_at + 60 * SECOND;
        let holder = "other".to_owned();
        assert_eq!(candidate.read(Some(record(2, "other")), back, back), Decision::Wait { holder: holder.clone() });
        assert_eq!(candidate.standing(back), Standing::Following { holder });
    }

    #[test]
    fn one_that_never_had_an_answer_goes_on_without_election_after_a_while() {
        let start = Instant::now();
        let mut candidate = Candidate::new("me".to_owned(), start);
        assert_eq!(candidate.standing(start), Standing::Undecided);
        (0..4).for_each(|_| candidate.failed());
        assert_eq!(candidate.next_change(start), Some(start + PATIENCE));
        assert_eq!(candidate.standing(start + PATIENCE - Duration::from_nanos(1)), Standing::Undecided);
        assert_eq!(candidate.standing(start + PATIENCE), Standing::Unreachable);
    }

    #[test]
    fn a_leader_that_was_frozen_is_deposed_and_not_cut_off() {
        let sent_at = Instant::now();
        let woken = sent_at + 60 * SECOND;
        let mut candidate = leader(sent_at);
        assert_eq!(candidate.standing(woken), Standing::Undecided);
        candidate.failed(); // the call in which it was frozen
        assert_eq!(candidate.standing(woken), Standing::Undecided);
    }

    #[test]
    fn one_that_rests_again_and_again_takes_over_from_a_dead_holder_all_the_same() {
        let start = Instant::now();
        let mut candidate = Candidate::new("me".to_owned(), start);
        let dead = || Some(record(1, "other"));
        assert_eq!(candidate.read(dead(), start, start), Decision::Wait { holder: "other".to_owned() });
        let later = start + LEASE - SECOND;
        candidate.rest(later);
        assert_eq!(candidate.standing(later), Standing::Undecided);
        assert_eq!(candidate.read(dead(), later, later), Decision::Wait { holder: "other".to_owned() });
        let after = start + LEASE;
        candidate.rest(after);
        assert_eq!(candidate.read(dead(), after, after), Decision::Take);
        // Not from one that has written meanwhile.
        assert_eq!(
            candidate.read(Some(record(2, "other")), after, after),
            Decision::Wait { holder: "other".to_owned() }
        );
    }

    #[test]
    fn a_leader_that_rests_leads_no_more() {
        let sent_at = Instant::now();
        let mut candidate = leader(sent_at);
        candidate.rest(sent_at + 2 * SECOND);
        assert_eq!(candidate.standing(sent_at + 2 * SECOND), Standing::Undecided);
    }

    #[test]
    fn a_conflict_is_an_answer() {
        let start = Instant::now();
        let mut candidate = Candidate::new("me".to_owned(), start);
        candidate.failed();
        candidate.failed();
        candidate.conflicted(start + 9 * SECOND);
        assert_eq!(candidate.standing(start + 18 * SECOND), Standing::Undecided);
    }

    #[test]
    fn a_lease_that_can_be_read_and_not_written_does_not_count_as_reached() {
        let start = Instant::now();
        let mut candidate = Candidate::new("me".to_owned(), start);
        for turn in 0..6 {
            let now = start + turn * RETRY;
            assert_eq!(candidate.read(Some(record(1, "")), now, now), Decision::Take);
            candidate.failed();
        }
        assert_eq!(candidate.standing(start + PATIENCE), Standing::Unreachable);
    }

    // ---- made-up histories ----
    //
    // A Lease that is compared and swapped, and candidates that take turns as `Election` does: requests arrive late, twice
    // as late as anybody waits for them, or never; so do answers; processes freeze at any moment for any time, are told to
    // stop, release or do not, and come back as somebody else; every clock starts anywhere and runs at its own speed. No two
    // ever believe that they lead. Time is real time in milliseconds.

    type Time = u64;

    /// What one step of a history draws from: all zero is a calm step.
    type Luck = (u8, u16, u16);

    #[derive(Clone, Debug)]
    struct Given {
        /// Of each candidate: where its clock starts, in seconds, and its speed, in per cent.
        clocks: Vec<(u64, u64)>,
        luck: Vec<Luck>,
    }

    fn histories() -> impl Strategy<Value = Given> {
        let clocks = prop::collection::vec((0..100_000u64, 86..=114u64), 2..5);
        let luck = prop::collection::vec((any::<u8>(), 0..2_500u16, 0..2_500u16), 200..600);
        (clocks, luck).prop_map(|(clocks, luck)| Given { clocks, luck })
    }

    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Event {
        /// Something arrives at the API server.
        Read {
            who: usize,
            call: u64,
        },
        Write {
            who: usize,
            call: u64,
            based_on: u64,
            holder: String,
        },
        /// Something happens at a candidate; what belongs to a call it no longer waits for is nothing to it.
        Turn {
            who: usize,
            call: u64,
        },
        HasRead {
            who: usize,
            call: u64,
            version: u64,
            holder: String,
        },
        HasWritten {
            who: usize,
            call: u64,
            version: Option<u64>,
            holder: String,
        },
        TimedOut {
            who: usize,
            call: u64,
        },
    }

    struct Player {
        candidate: Candidate,
        start: Instant,
        /// Nanoseconds of its clock in a millisecond of real time.
        speed: u64,
        life: u32,
        /// The call it waits for, and when its turn and the call began, in its own time.
        call: u64,
        turn_at: Instant,
        sent_at: Instant,
        /// The version it wrote last: the next renewal does not read.
        mine: Option<u64>,
        renewing: bool,
        frozen_until: Time,
    }

    impl Player {
        fn clock(&self, time: Time) -> Instant {
            self.start + Duration::from_nanos(time * self.speed)
        }

        /// How long `own` of its own time takes.
        fn real(&self, own: Duration) -> Time {
            u64::try_from(own.as_nanos()).unwrap().div_ceil(self.speed)
        }

        fn leads(&self, time: Time) -> bool {
            let now = self.clock(time);
            self.candidate.standing(now).leads(now)
        }
    }

    struct World {
        /// The Lease: version 0 is none.
        version: u64,
        holder: String,
        players: Vec<Player>,
        queue: BinaryHeap<Reverse<(Time, u64, Event)>>,
        number: u64,
        luck: std::vec::IntoIter<Luck>,
        leaders: BTreeSet<String>,
    }

    impl World {
        fn new(given: &Given) -> Self {
            let base = Instant::now();
            let player = |(number, (seconds, speed)): (usize, &(u64, u64))| {
                let start = base + Duration::from_secs(*seconds);
                Player {
                    candidate: Candidate::new(format!("{number}_0"), start),
                    start,
                    speed: speed * 10_000,
                    life: 0,
                    call: 0,
                    turn_at: start,
                    sent_at: start,
                    mine: None,
                    renewing: false,
                    frozen_until: 0,
                }
            };
            let players: Vec<Player> = given.clocks.iter().enumerate().map(player).collect();
            let mut world = Self {
                version: 0,
                holder: String::new(),
                players,
                queue: BinaryHeap::new(),
                number: 0,
                luck: given.luck.clone().into_iter(),
                leaders: BTreeSet::new(),
            };
            for who in 0..world.players.len() {
                world.at(0, Event::Turn { who, call: 0 });
            }
            world
        }

        fn at(&mut self, time: Time, event: Event) {
            self.number += 1;
            self.queue.push(Reverse((time, self.number, event)));
        }

        /// The next event; false when there is no luck left.
        fn step(&mut self) -> bool {
            let Some(Reverse((time, _, event))) = self.queue.pop() else { return false };
            let Some(luck) = self.luck.next() else { return false };
            self.happen(time, event, luck);
            let leads = |player: &&Player| player.leads(time);
            let leaders: Vec<_> = self.players.iter().filter(leads).map(|player| &player.candidate.me).collect();
            assert!(leaders.len() <= 1, "{leaders:?} lead at once at {time} ms");
            self.leaders.extend(leaders.into_iter().cloned());
            true
        }

        fn happen(&mut self, time: Time, event: Event, luck: Luck) {
            let (fate, slow, more) = luck;
            let late = time + u64::from(slow % 50);
            match event {
                Event::Read { who, call } => {
                    let (version, holder) = (self.version, self.holder.clone());
                    self.at(late, Event::HasRead { who, call, version, holder });
                }
                Event::Write { who, call, based_on, holder } => {
                    let swapped = based_on == self.version;
                    if swapped {
                        self.version += 1;
                        self.holder.clone_from(&holder);
                    }
                    let version = swapped.then_some(self.version);
                    if fate % 10 != 9 {
                        self.at(late, Event::HasWritten { who, call, version, holder });
                    }
                }
                Event::Turn { who, call }
                | Event::HasRead { who, call, .. }
                | Event::HasWritten { who, call, .. }
                | Event::TimedOut { who, call } => {
                    let player = &mut self.players[who];
                    if player.call != call {
                        return;
                    }
                    if time >= player.frozen_until && fate >= 250 {
                        player.frozen_until = time + u64::from(more) * 20; // up to 50 s
                    }
                    if time < player.frozen_until {
                        let thawed = player.frozen_until;
                        return self.at(thawed, event);
                    }
                    self.act(time, event, luck);
                }
            }
        }

        fn act(&mut self, time: Time, event: Event, luck: Luck) {
            match event {
                Event::Turn { who, .. } if luck.0 % 64 == 63 => self.restart(who, time, luck),
                Event::Turn { who, .. } => {
                    let player = &mut self.players[who];
                    player.turn_at = player.clock(time);
                    let mine = player.mine.take();
                    player.renewing = mine.is_some();
                    self.send(who, time, luck, mine);
                }
                Event::HasRead { who, version, holder, .. } => {
                    let player = &mut self.players[who];
                    let now = player.clock(time);
                    let lease = (version > 0).then(|| record(version, &holder));
                    match player.candidate.read(lease, player.turn_at, now) {
                        Decision::Wait { .. } => self.rest(who, time),
                        Decision::Create | Decision::Take | Decision::Renew => {
                            self.send(who, time, luck, Some(version));
                        }
                    }
                }
                Event::HasWritten { who, version, holder, .. } => {
                    let player = &mut self.players[who];
                    let now = player.clock(time);
                    match version {
                        Some(version) => {
                            player.candidate.wrote(record(version, &holder), player.sent_at, now);
                            player.mine = Some(version);
                            self.rest(who, time);
                        }
                        None if player.renewing => {
                            player.renewing = false;
                            self.send(who, time, luck, None);
                        }
                        None => {
                            player.candidate.conflicted(player.turn_at);
                            self.rest(who, time);
                        }
                    }
                }
                Event::TimedOut { who, .. } => {
                    self.players[who].candidate.failed();
                    self.rest(who, time);
                }
                Event::Read { .. } | Event::Write { .. } => unreachable!("the API server's"),
            }
        }

        /// Sends a read, or a write based on a version, and waits for its answer.
        fn send(&mut self, who: usize, time: Time, (fate, slow, more): Luck, based_on: Option<u64>) {
            let player = &mut self.players[who];
            player.call += 1;
            player.sent_at = player.clock(time);
            let (call, holder) = (player.call, player.candidate.me.clone());
            let timeout = time + player.real(CALL_TIMEOUT);
            self.at(timeout, Event::TimedOut { who, call });
            let arrives = match fate % 8 {
                7 => return,                                         // lost
                6 => time + (u64::from(slow) + u64::from(more)) * 4, // up to 20 s
                _calm => time + u64::from(slow % 50),
            };
            let event = match based_on {
                None => Event::Read { who, call },
                Some(based_on) => Event::Write { who, call, based_on, holder },
            };
            self.at(arrives, event);
        }

        fn rest(&mut self, who: usize, time: Time) {
            let player = &mut self.players[who];
            player.call += 1;
            let call = player.call;
            let next = time + player.real(RETRY);
            self.at(next, Event::Turn { who, call });
        }

        /// Told to stop: it leads no more, releases or does not get to, and comes back as another.
        fn restart(&mut self, who: usize, time: Time, (_, slow, more): Luck) {
            let player = &mut self.players[who];
            let held = player.candidate.seen.as_ref().map(|seen| seen.record.clone());
            let released = held.filter(|held| held.holder.as_ref() == Some(&player.candidate.me));
            (player.life, player.mine) = (player.life + 1, None);
            player.candidate = Candidate::new(format!("{who}_{}", player.life), player.clock(time));
            player.call += 1;
            let call = player.call;
            self.at(time + u64::from(slow), Event::Turn { who, call });
            if let Some(held) = released
                && more % 4 != 0
            {
                let based_on = held.version.parse().unwrap();
                // An answer to `call - 1` is nothing to anybody.
                let event = Event::Write { who, call: call - 1, based_on, holder: String::new() };
                self.at(time + u64::from(more) * 4, event);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

        #[test]
        fn no_two_ever_lead_at_once_whatever_is_lost_late_or_frozen(given in histories()) {
            let mut world = World::new(&given);
            while world.step() {}
        }
    }

    #[test]
    fn in_a_calm_world_somebody_leads_and_after_it_freezes_another() {
        let given = Given { clocks: vec![(0, 100), (7, 100), (9, 100)], luck: vec![(0, 5, 0); 300] };
        let mut world = World::new(&given);
        while world.leaders.is_empty() {
            assert!(world.step(), "somebody leads");
        }
        let first = world.players.iter_mut().find(|player| world.leaders.contains(&player.candidate.me));
        first.expect("it is one of them").frozen_until = Time::MAX;
        while world.step() {}
        assert_eq!(world.leaders.len(), 2, "{:?}", world.leaders);
    }
}
