//! Whole lives of alarms, made up: waits, claims by processes that die, answers, pauses, wakes by hand. Whatever happens, every
//! slot that has passed is told exactly once: tried, or in one run of those that were not.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use proptest::prelude::*;
use proptest::sample::select;

use super::{Answer, Missed, Next, Occurrence, Passed, Verdict, judge, next};
use crate::domain::{
    alarm::{
        Cause, Misfire, Slot, Status, Subject, Timing,
        lifecycle::{Resumed, Standing, resume},
    },
    ladder::Ladder,
    schedule::{Recurrence, Schedule, Window, Zone},
};

const LADDER: Ladder = Ladder { base: Duration::from_secs(30), cap: Duration::from_secs(900), jitter: 0.1 };
/// The lease of a dispatcher that died with its claim.
const LEASE: TimeDelta = TimeDelta::seconds(120);

#[derive(Clone, Debug)]
enum Step {
    Wait(i64),
    Claim { dies: Dies, took: i64, answer: Answer },
    Pause(i64),
    ByHand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dies {
    BeforeTheVerdictIsWritten,
    AfterIt,
    Not,
}

/// The columns that matter.
#[derive(Clone, Debug)]
struct Row {
    scheduled_for: DateTime<Utc>,
    series_at: DateTime<Utc>,
    next_fire_at: DateTime<Utc>,
    missed: u64,
    failure_count: u32,
    first_claimed_at: Option<DateTime<Utc>>,
}

struct Life {
    recurrence: Recurrence,
    timing: Timing,
    offset: TimeDelta,
    now: DateTime<Utc>,
    row: Row,
    over: bool,
    /// How often each slot, and each wake by hand, was told.
    told: BTreeMap<DateTime<Utc>, u32>,
}

impl Row {
    fn at(slot: Slot, missed: u64) -> Self {
        Self {
            scheduled_for: slot.scheduled_for,
            series_at: slot.scheduled_for,
            next_fire_at: slot.effective_at(),
            missed,
            failure_count: 0,
            first_claimed_at: None,
        }
    }
}

impl Life {
    fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Wait(seconds) => self.now += TimeDelta::seconds(*seconds),
            Step::ByHand => self.fire_by_hand(),
            Step::Pause(seconds) => {
                self.now += TimeDelta::seconds(*seconds);
                self.resume()?;
            }
            Step::Claim { dies, took, answer } if self.row.next_fire_at <= self.now => {
                self.claim(*dies, TimeDelta::seconds(*took), answer)?;
            }
            Step::Claim { .. } => {}
        }
        Ok(())
    }

    /// Only with nothing due or under way; the slot that stands stays.
    fn fire_by_hand(&mut self) {
        let idle = self.row.next_fire_at > self.now && self.row.failure_count == 0;
        if idle && self.row.scheduled_for == self.row.series_at {
            self.now += TimeDelta::microseconds(1);
            self.row.series_at = self.row.scheduled_for - TimeDelta::microseconds(1);
            (self.row.scheduled_for, self.row.next_fire_at) = (self.now, self.now);
        }
    }

    fn resume(&mut self) -> Result<(), TestCaseError> {
        let standing = Standing {
            status: Status::Paused,
            paused_by: &[Cause::Owner],
            timing: &self.timing,
            offset: self.offset,
            scheduled_for: self.row.scheduled_for,
            series_at: self.row.series_at,
            next_fire_at: self.row.next_fire_at,
            failure_count: self.row.failure_count,
            begun: self.row.first_claimed_at.is_some(),
            in_flight: false,
        };
        match resume(&standing, Cause::Owner, self.now).expect("it lives") {
            Resumed::AsItStands => {}
            Resumed::OnItsLadder { passed } => {
                self.tell(&passed, None)?;
                self.row.series_at = passed.run.last;
            }
            Resumed::At { slot, passed } => {
                self.tell(&passed, Some(self.row.scheduled_for))?;
                self.row = Row::at(slot, 0);
                prop_assert!(self.row.next_fire_at > self.now, "no burst");
            }
            Resumed::Over { passed, .. } => {
                self.tell(&passed, Some(self.row.scheduled_for))?;
                self.over = true;
            }
            Resumed::Unchanged | Resumed::StillPaused(_) | Resumed::AtOnce => panic!("a paused series goes on"),
        }
        Ok(())
    }

    fn occurrence(&self) -> Occurrence<'_> {
        Occurrence {
            subject: Subject::Agent,
            status: Status::Active,
            timing: &self.timing,
            offset: self.offset,
            scheduled_for: self.row.scheduled_for,
            series_at: self.row.series_at,
            missed: self.row.missed,
            failure_count: self.row.failure_count,
            max_failures: 2,
        }
    }

    fn claim(&mut self, dies: Dies, took: TimeDelta, answer: &Answer) -> Result<(), TestCaseError> {
        let first_claimed_at = *self.row.first_claimed_at.get_or_insert(self.now);
        let verdict = judge(&self.occurrence(), self.row.next_fire_at, first_claimed_at);
        if dies == Dies::BeforeTheVerdictIsWritten {
            self.now += LEASE;
            return Ok(());
        }
        match verdict {
            Verdict::Fire => {}
            Verdict::Fold { slot, missed, passed } => {
                for passed in &passed {
                    self.tell(passed, Some(self.row.scheduled_for))?;
                }
                self.row = Row { first_claimed_at: Some(first_claimed_at), ..Row::at(slot, missed) };
            }
            Verdict::Miss(Missed { passed, next, missed, .. }) => {
                self.tell(&passed, Some(self.row.scheduled_for))?;
                self.go_on(next, missed);
                return Ok(());
            }
        }
        if dies == Dies::AfterIt {
            self.now += LEASE;
            return Ok(());
        }
        self.now += took;
        let settled = next(&self.occurrence(), answer, &LADDER, self.now, 0.5);
        if let Some(passed) = &settled.passed {
            self.tell(passed, None)?;
        }
        match settled.next {
            Next::Retry { at, .. } => {
                self.row.next_fire_at = at;
                self.row.failure_count += 1;
                self.row.first_claimed_at = None;
            }
            Next::Advance { slot } | Next::Skip { slot, .. } => {
                *self.told.entry(self.row.scheduled_for).or_default() += 1;
                self.go_on(Some(slot), settled.missed);
            }
            Next::Fired | Next::Retired { .. } => {
                *self.told.entry(self.row.scheduled_for).or_default() += 1;
                self.go_on(None, 0);
            }
            Next::Failed { .. } | Next::Stands { .. } => panic!("a series that lives"),
        }
        Ok(())
    }

    fn go_on(&mut self, slot: Option<Slot>, missed: u64) {
        match slot {
            Some(slot) => self.row = Row::at(slot, missed),
            None => self.over = true,
        }
    }

    /// A run is what it says: these slots and, if it is among them, the occurrence that is due, which may be one by hand.
    fn tell(&mut self, passed: &Passed, due: Option<DateTime<Utc>>) -> Result<(), TestCaseError> {
        let run = passed.run;
        let mut members = self.slots(run.first - TimeDelta::microseconds(1), run.last);
        let by_hand = due.filter(|due| !members.contains(due) && (run.first..=run.last).contains(due));
        members.extend(by_hand);
        members.sort_unstable();
        let exact = (members.first(), members.last(), members.len().try_into());
        prop_assert_eq!(exact, (Some(&run.first), Some(&run.last), Ok(run.slots)), "{:?}", passed);
        for member in members {
            *self.told.entry(member).or_default() += 1;
        }
        Ok(())
    }

    fn slots(&self, after: DateTime<Utc>, until: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        let first = self.recurrence.next_after(after);
        let all = std::iter::successors(first, |slot| self.recurrence.next_after(*slot));
        all.take_while(|slot| *slot <= until).collect()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let answer = prop_oneof![
        3 => Just(Answer::Accepted { http_status: 200 }),
        1 => Just(Answer::Gone { why: "HTTP 410".into() }),
        1 => Just(Answer::Unavailable { why: "HTTP 503".into(), http_status: Some(503), retry_after: None }),
    ];
    let dies = prop_oneof![
        1 => Just(Dies::BeforeTheVerdictIsWritten),
        1 => Just(Dies::AfterIt),
        4 => Just(Dies::Not),
    ];
    prop_oneof![
        2 => prop_oneof![0_i64..200, 0_i64..20_000].prop_map(Step::Wait),
        3 => (dies, 0_i64..400, answer).prop_map(|(dies, took, answer)| Step::Claim { dies, took, answer }),
        1 => (0_i64..20_000).prop_map(Step::Pause),
        1 => Just(Step::ByHand),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn whatever_happens_every_slot_is_told_exactly_once(
        (expression, longest_offset) in select(&[
            ("* * * * *", 60), ("*/7 * * * *", 240), ("0,30 1,2,3 * * *", 1800), ("@every 90s", 90),
        ][..]),
        // The clocks of Berlin are set back in the night after the start.
        zone in select(&["UTC", "Europe/Berlin"][..]),
        misfire in select(Misfire::ALL),
        limit in proptest::option::of(1_i64..4000),
        offset in 0_i64..1800,
        ends in proptest::option::of(1000_i64..100_000),
        steps in prop::collection::vec(step(), 1..25),
    ) {
        let start: DateTime<Utc> = "2026-10-24T20:00:00.123456Z".parse().unwrap();
        let window = Window::new(start, None, ends.map(|seconds| start + TimeDelta::seconds(seconds)));
        let recurrence = Recurrence::parse(expression, Zone::parse(zone).unwrap(), window).unwrap();
        let offset = TimeDelta::seconds(offset % longest_offset);
        let timing = Timing {
            schedule: Schedule::Cron(recurrence.clone()),
            spread: offset,
            misfire,
            max_lateness: limit.map(TimeDelta::seconds),
        };
        let Some(scheduled_for) = recurrence.next_after(start) else { return Ok(()) };
        let row = Row::at(Slot { scheduled_for, offset }, 0);
        let mut life = Life { recurrence, timing, offset, now: start, row, over: false, told: BTreeMap::new() };
        for step in &steps {
            if life.over {
                break;
            }
            life.take(step)?;
        }

        let horizon = if life.over { life.now - offset } else { life.row.series_at };
        for slot in life.slots(start, horizon) {
            let stands = !life.over && slot == life.row.scheduled_for;
            let told = life.told.remove(&slot).unwrap_or_default();
            prop_assert_eq!(told, u32::from(!stands), "{} of {:?} at {}", slot, life.row, life.now);
        }
        // What is left are wakes by hand: told once each, and no slot that is still to come.
        let is_slot = |at: &DateTime<Utc>| life.recurrence.next_after(*at - TimeDelta::microseconds(1)) == Some(*at);
        prop_assert!(life.told.iter().all(|(at, told)| *told == 1 && !is_slot(at)), "{:?}", life.told);
    }
}
