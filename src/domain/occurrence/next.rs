//! What becomes of an alarm once its wake was answered: one total function over state, subject and answer.

use chrono::{DateTime, Utc};

use super::{Answer, Occurrence, Outcome, Passed, Reason};
use crate::domain::{
    alarm::{Misfire, Slot, Status, Subject},
    ladder::Ladder,
    schedule::Schedule,
};

/// What the alarm does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Delivered, and nothing is left to fire.
    Fired,
    /// Delivered; the series goes on.
    Advance { slot: Slot },
    /// Not delivered; the same occurrence again, later.
    Retry { at: DateTime<Utc>, why: String },
    /// Given up; there was only this one.
    Failed { why: String },
    /// Given up on this occurrence; the series goes on.
    Skip { slot: Slot, why: String },
    /// Given up on the last occurrence of a series.
    Retired { why: String },
    /// It was over before the answer came, and stays as it is.
    Stands { status: Status },
}

/// The decision, and the slots that passed while the occurrence was under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub next: Next,
    pub passed: Option<Passed>,
    /// How many other slots the alarm's next wake tells of: those that passed, and whatever this one was to tell and did not.
    pub missed: u64,
}

impl Next {
    pub const fn outcome(&self) -> Outcome {
        match self {
            Self::Fired | Self::Advance { .. } => Outcome::Delivered,
            Self::Retry { .. } => Outcome::Retrying,
            Self::Failed { .. } | Self::Skip { .. } | Self::Retired { .. } => Outcome::Exhausted,
            Self::Stands { status: Status::Cancelled } => Outcome::Cancelled,
            Self::Stands { status: Status::Active | Status::Paused | Status::Fired | Status::Failed } => {
                Outcome::Fenced
            }
        }
    }

    /// The status afterwards. An alarm that lives on is active or paused as it was.
    pub const fn status(&self, before: Status) -> Status {
        match self {
            Self::Fired | Self::Retired { .. } => Status::Fired,
            Self::Failed { .. } => Status::Failed,
            Self::Advance { .. } | Self::Skip { .. } | Self::Retry { .. } => before,
            Self::Stands { status } => *status,
        }
    }

    /// When the alarm wants attention again; `None`: never.
    pub fn at(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Advance { slot } | Self::Skip { slot, .. } => Some(slot.effective_at()),
            Self::Retry { at, .. } => Some(*at),
            Self::Fired | Self::Failed { .. } | Self::Retired { .. } | Self::Stands { .. } => None,
        }
    }
}

/// Decides. `chance` is uniform in 0..1 and spreads retries.
pub fn next(occurrence: &Occurrence<'_>, answer: &Answer, ladder: &Ladder, now: DateTime<Utc>, chance: f64) -> Settled {
    let retry = |why: &str, retry_after| {
        let wait = ladder.wait(occurrence.failure_count, retry_after, chance);
        Settled { next: Next::Retry { at: now + wait, why: why.to_owned() }, passed: None, missed: occurrence.missed }
    };
    match (occurrence.status, occurrence.subject, answer) {
        (status @ (Status::Fired | Status::Cancelled | Status::Failed), _, _) => {
            Settled { next: Next::Stands { status }, passed: None, missed: occurrence.missed }
        }
        (Status::Active | Status::Paused, _, Answer::Accepted { .. }) => delivered(occurrence, now),
        // A timer is owed for as long as it takes.
        (Status::Active | Status::Paused, Subject::ServiceCall | Subject::Session, Answer::Gone { why }) => {
            retry(why, None)
        }
        (
            Status::Active | Status::Paused,
            Subject::ServiceCall | Subject::Session,
            Answer::Unavailable { why, retry_after, .. },
        ) => retry(why, *retry_after),
        (Status::Active | Status::Paused, Subject::Agent, Answer::Gone { why }) => exhausted(occurrence, now, why),
        (Status::Active | Status::Paused, Subject::Agent, Answer::Unavailable { why, retry_after, .. }) => {
            if occurrence.failure_count < occurrence.max_failures {
                retry(why, *retry_after)
            } else {
                exhausted(occurrence, now, why)
            }
        }
    }
}

fn delivered(occurrence: &Occurrence<'_>, now: DateTime<Utc>) -> Settled {
    let (slot, passed) = following(occurrence, now);
    Settled { next: slot.map_or(Next::Fired, |slot| Next::Advance { slot }), passed, missed: count(passed) }
}

fn exhausted(occurrence: &Occurrence<'_>, now: DateTime<Utc>, why: &str) -> Settled {
    let why = why.to_owned();
    let (slot, passed) = following(occurrence, now);
    let next = match (&occurrence.timing.schedule, slot) {
        (Schedule::Once { .. }, _) => Next::Failed { why },
        (Schedule::Cron(_), Some(slot)) => Next::Skip { slot, why },
        (Schedule::Cron(_), None) => Next::Retired { why },
    };
    Settled { next, passed, missed: occurrence.missed + count(passed) }
}

fn count(passed: Option<Passed>) -> u64 {
    passed.map_or(0, |passed| passed.run.slots)
}

/// The slot after this occurrence, and what it passes over: nothing under `fire_all`, where slots queue.
fn following(occurrence: &Occurrence<'_>, now: DateTime<Utc>) -> (Option<Slot>, Option<Passed>) {
    let recurrence = match &occurrence.timing.schedule {
        Schedule::Once { .. } => return (None, None),
        Schedule::Cron(recurrence) => recurrence,
    };
    let slot = |scheduled_for| Slot { scheduled_for, offset: occurrence.offset };
    match occurrence.timing.misfire {
        Misfire::FireAll => (recurrence.next_after(occurrence.series_at).map(slot), None),
        Misfire::FireOnce | Misfire::Skip => {
            let passed = occurrence.passed(recurrence, now).map(|run| Passed::skipped(run, Reason::Retrying));
            (occurrence.next_ahead(now).map(slot), passed)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::TimeDelta;
    use proptest::prelude::*;

    use super::*;
    use crate::domain::{
        alarm::Timing,
        schedule::{Recurrence, Run, Window, Zone},
    };

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn timing(schedule: Schedule) -> Timing {
        Timing { schedule, spread: TimeDelta::zero(), misfire: Misfire::FireOnce, max_lateness: None }
    }

    fn once() -> Timing {
        timing(Schedule::Once { fire_at: at("2026-11-16T09:00:00Z") })
    }

    fn cron(expr: &str, ends_at: Option<&str>) -> Timing {
        let window = Window::new(at("2026-01-01T00:00:00Z"), None, ends_at.map(at));
        timing(Schedule::Cron(Recurrence::parse(expr, Zone::utc(), window).unwrap()))
    }

    fn occurrence(timing: &Timing, failure_count: u32) -> Occurrence<'_> {
        Occurrence {
            subject: Subject::Agent,
            status: Status::Active,
            timing,
            offset: TimeDelta::zero(),
            scheduled_for: at("2026-11-16T09:00:00Z"),
            series_at: at("2026-11-16T09:00:00Z"),
            missed: 0,
            failure_count,
            max_failures: 2,
        }
    }

    const LADDER: Ladder = Ladder { base: Duration::from_secs(30), cap: Duration::from_secs(900), jitter: 0.1 };

    fn settled(occurrence: &Occurrence<'_>, answer: &Answer) -> Settled {
        next(occurrence, answer, &LADDER, at("2026-11-16T09:00:01Z"), 0.5)
    }

    fn after(timing: &Timing, failure_count: u32, answer: &Answer) -> Next {
        settled(&occurrence(timing, failure_count), answer).next
    }

    fn slot(text: &str) -> Slot {
        Slot { scheduled_for: at(text), offset: TimeDelta::zero() }
    }

    const ACCEPTED: Answer = Answer::Accepted { http_status: 202 };

    fn unavailable() -> Answer {
        Answer::Unavailable { why: "HTTP 503".into(), http_status: Some(503), retry_after: None }
    }

    fn gone() -> Answer {
        Answer::Gone { why: "HTTP 410".into() }
    }

    fn retry(seconds: i64, why: &str) -> Next {
        Next::Retry { at: at("2026-11-16T09:00:01Z") + TimeDelta::seconds(seconds), why: why.to_owned() }
    }

    #[test]
    fn a_delivered_once_alarm_is_fired_and_a_delivered_cron_goes_on_to_its_next_slot() {
        assert_eq!(after(&once(), 0, &ACCEPTED), Next::Fired);
        let expected = Next::Advance { slot: slot("2026-11-17T09:00:00Z") };
        assert_eq!(after(&cron("0 9 * * *", None), 1, &ACCEPTED), expected);
    }

    #[test]
    fn a_failure_climbs_the_ladder_until_max_failures_and_then_gives_up() {
        let why = "HTTP 503".to_owned();
        assert_eq!(after(&once(), 0, &unavailable()), retry(30, &why));
        assert_eq!(after(&once(), 1, &unavailable()), retry(60, &why));
        assert_eq!(after(&once(), 2, &unavailable()), Next::Failed { why: why.clone() });
        assert_eq!(
            after(&cron("0 9 * * *", None), 2, &unavailable()),
            Next::Skip { slot: slot("2026-11-17T09:00:00Z"), why }
        );
    }

    #[test]
    fn retry_after_lengthens_the_wait() {
        let why = "HTTP 429".to_owned();
        let asked = Answer::Unavailable {
            why: why.clone(),
            http_status: Some(429),
            retry_after: Some(Duration::from_secs(120)),
        };
        assert_eq!(after(&once(), 0, &asked), retry(120, &why));
    }

    #[test]
    fn an_agent_that_is_gone_is_not_tried_again() {
        let why = "HTTP 410".to_owned();
        assert_eq!(after(&once(), 0, &gone()), Next::Failed { why: why.clone() });
        assert_eq!(after(&cron("0 9 * * *", None), 0, &gone()), Next::Skip { slot: slot("2026-11-17T09:00:00Z"), why });
    }

    #[test]
    fn a_timer_is_never_given_up() {
        let timing = once();
        for subject in [Subject::ServiceCall, Subject::Session] {
            let timer = |failure_count| Occurrence { subject, ..occurrence(&timing, failure_count) };
            assert_eq!(settled(&timer(0), &ACCEPTED).next, Next::Fired);
            assert_eq!(settled(&timer(0), &gone()).next, retry(30, "HTTP 410"));
            assert_eq!(settled(&timer(10_000), &unavailable()).next, retry(900, "HTTP 503"));
        }
    }

    #[test]
    fn a_series_that_has_run_out_is_retired() {
        let last = cron("0 9 * * *", Some("2026-11-17T00:00:00Z"));
        assert_eq!(after(&last, 0, &ACCEPTED), Next::Fired);
        assert_eq!(after(&last, 0, &gone()), Next::Retired { why: "HTTP 410".into() });
    }

    #[test]
    fn slots_that_passed_meanwhile_are_not_fired_in_a_burst_but_told() {
        let minutes = cron("* * * * *", None);
        let answered = at("2026-11-16T09:03:30Z");
        let run = Run { first: at("2026-11-16T09:01:00Z"), last: at("2026-11-16T09:03:00Z"), slots: 3 };
        for answer in [ACCEPTED, gone()] {
            let settled = next(&occurrence(&minutes, 0), &answer, &LADDER, answered, 0.5);
            assert_eq!(settled.next.at(), Some(at("2026-11-16T09:04:00Z")));
            assert_eq!(settled.passed, Some(Passed::skipped(run, Reason::Retrying)));
            assert_eq!(settled.missed, 3);
        }
    }

    #[test]
    fn under_fire_all_the_slots_that_passed_wait_their_turn() {
        let minutes = Timing { misfire: Misfire::FireAll, ..cron("* * * * *", None) };
        let settled = next(&occurrence(&minutes, 0), &ACCEPTED, &LADDER, at("2026-11-16T09:03:30Z"), 0.5);
        let next = Next::Advance { slot: slot("2026-11-16T09:01:00Z") };
        assert_eq!(settled, Settled { next, passed: None, missed: 0 });
    }

    #[test]
    fn what_was_not_delivered_is_told_by_the_next_wake() {
        let timing = cron("0 9 * * *", None);
        let tells = Occurrence { missed: 4, ..occurrence(&timing, 0) };
        assert_eq!(settled(&tells, &ACCEPTED).missed, 0);
        assert_eq!(settled(&tells, &gone()).missed, 4);
        assert_eq!(settled(&tells, &unavailable()).missed, 4);
    }

    #[test]
    fn an_occurrence_fired_by_hand_leaves_the_series_where_it_was() {
        // At 09:00:00 by hand, while the slot of 08:59 waits for its spread of 90 s.
        let timing = cron("59 8 * * *", None);
        let stood = at("2026-11-16T08:59:00Z");
        let offset = TimeDelta::seconds(90);
        let by_hand = Occurrence { offset, series_at: stood - TimeDelta::microseconds(1), ..occurrence(&timing, 0) };
        assert_eq!(settled(&by_hand, &ACCEPTED).next, Next::Advance { slot: Slot { scheduled_for: stood, offset } });
        // Made at 09:10 for the next day: today's slot was never the alarm's, though its spread is running.
        let tomorrow = Occurrence { series_at: at("2026-11-17T08:58:59.999999Z"), ..by_hand };
        let advance = settled(&tomorrow, &ACCEPTED).next;
        assert_eq!(advance.at(), Some(at("2026-11-17T09:00:30Z")), "{advance:?}");
    }

    #[test]
    fn a_paused_alarm_stays_paused_unless_it_is_over() {
        let (series, single) = (cron("0 9 * * *", None), once());
        let paused = |timing| Occurrence { status: Status::Paused, ..occurrence(timing, 0) };
        assert_eq!(settled(&paused(&series), &ACCEPTED).next.status(Status::Paused), Status::Paused);
        assert_eq!(settled(&paused(&single), &unavailable()).next.status(Status::Paused), Status::Paused);
        assert_eq!(settled(&paused(&single), &ACCEPTED).next.status(Status::Paused), Status::Fired);
    }

    fn any_answer() -> impl Strategy<Value = Answer> {
        prop_oneof![
            (200_u16..300).prop_map(|http_status| Answer::Accepted { http_status }),
            Just(gone()),
            proptest::option::of(0_u64..u64::MAX).prop_map(|seconds| Answer::Unavailable {
                why: "HTTP 503".into(),
                http_status: Some(503),
                retry_after: seconds.map(Duration::from_secs),
            }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_over_stays_over_and_what_lives_goes_on_ahead(
            status in prop::sample::select(Status::ALL),
            subject in prop::sample::select(Subject::ALL),
            misfire in prop::sample::select(Misfire::ALL),
            is_once in any::<bool>(),
            answer in any_answer(),
            failure_count in 0_u32..200,
            late in 0_i64..1_000_000,
            chance in 0.0..1.0,
        ) {
            let timing = if is_once || subject != Subject::Agent { once() } else { cron("*/7 * * * *", None) };
            let timing = Timing { misfire, ..timing };
            let facts = Occurrence { subject, status, ..occurrence(&timing, failure_count) };
            let now = facts.scheduled_for + TimeDelta::seconds(late);
            let settled = next(&facts, &answer, &LADDER, now, chance);
            let after = settled.next.status(status);
            if status.is_living() {
                prop_assert!(after == status || !after.is_living());
                // Whatever lives on wants attention again; whatever is over never does.
                prop_assert_eq!(settled.next.at().is_some(), after.is_living());
                if misfire != Misfire::FireAll {
                    prop_assert!(settled.next.at().is_none_or(|at| at > now));
                }
                if subject != Subject::Agent {
                    prop_assert_eq!(after == Status::Fired, matches!(answer, Answer::Accepted { .. }));
                    prop_assert!(after != Status::Failed);
                }
            } else {
                prop_assert_eq!(after, status);
                prop_assert_eq!(settled.passed, None);
            }
        }
    }
}
