//! What goes out when an occurrence is claimed: itself, a newer slot that stands for those that passed, or nothing because
//! it is too late.
//!
//! Judged once, at the first claim, and written down under the token before anything is sent. Claimed again, after a crash
//! or on the ladder, it goes out as it was written: the same wake under the same delivery id. A crash before the writing
//! leaves the oldest slot to go out, unsent so far; what passed meanwhile is then told by [`super::next`].

use chrono::{DateTime, TimeDelta, Utc};

use super::{Occurrence, Passed, Reason, single};
use crate::domain::{
    alarm::{Misfire, Slot, Status, Subject},
    rfc3339,
    schedule::{Recurrence, Run, Schedule},
};

/// Under `fire_all`, older slots than this many are folded: a minute's alarm that was down for a week must not wake
/// its agent ten thousand times.
const MOST_FIRED_LATE: u64 = 100;

/// What a claim does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Sends the occurrence as it stands.
    Fire,
    /// Sends the one that was due at `scheduled_for`, which tells of `missed` others. Written before the wake goes out.
    Fold { scheduled_for: DateTime<Utc>, missed: u64, passed: Vec<Passed> },
    /// Sends nothing: too late. The alarm goes on at `next`; with none it is over, a once alarm as failed.
    Miss { passed: Passed, next: Option<Slot>, over: Option<Status>, why: String },
}

/// `claims` are those of this occurrence without a result, this one included; `effective_at` is when it was due, spread
/// and resumption included; `carried` is what its wake tells of already.
pub fn judge(
    occurrence: &Occurrence<'_>,
    claims: u32,
    effective_at: DateTime<Utc>,
    carried: u64,
    now: DateTime<Utc>,
) -> Verdict {
    match occurrence.subject {
        // Their policies are the agents' alone.
        Subject::ServiceCall | Subject::Session => return Verdict::Fire,
        Subject::Agent if claims > 1 || occurrence.failure_count > 0 => return Verdict::Fire,
        Subject::Agent => {}
    }
    let limit = occurrence.timing.lateness_limit();
    let is_late = |effective_at: DateTime<Utc>| limit.is_some_and(|limit| now - effective_at > limit);
    let late = is_late(effective_at);
    match &occurrence.timing.schedule {
        Schedule::Once { .. } if late => miss(occurrence, single(occurrence.scheduled_for), now),
        Schedule::Once { .. } => Verdict::Fire,
        Schedule::Cron(recurrence) => {
            let later = occurrence.passed(recurrence, now);
            match (occurrence.timing.misfire, later) {
                (Misfire::FireOnce | Misfire::Skip | Misfire::FireAll, None) if late => {
                    miss(occurrence, single(occurrence.scheduled_for), now)
                }
                (Misfire::FireOnce | Misfire::Skip | Misfire::FireAll, None) => Verdict::Fire,
                (Misfire::FireOnce | Misfire::Skip, Some(later)) if is_late(later.last + occurrence.offset) => {
                    miss(occurrence, with_own(occurrence, later), now)
                }
                (Misfire::FireOnce | Misfire::Skip, Some(later)) => {
                    fold_to_newest(occurrence, recurrence, later, carried)
                }
                (Misfire::FireAll, Some(later)) => {
                    let dead_line = limit.filter(|_| late).map(|limit| now - limit);
                    queue(occurrence, recurrence, later, dead_line, carried, now)
                }
            }
        }
    }
}

/// The occurrence's own slot and those after it.
fn with_own(occurrence: &Occurrence<'_>, later: Run) -> Run {
    Run { first: occurrence.scheduled_for.min(later.first), slots: later.slots + 1, ..later }
}

fn miss(occurrence: &Occurrence<'_>, run: Run, now: DateTime<Utc>) -> Verdict {
    let next = occurrence.next_ahead(now);
    let over = match (&occurrence.timing.schedule, next) {
        (Schedule::Once { .. }, _) => Some(Status::Failed),
        (Schedule::Cron(_), None) => Some(Status::Fired),
        (Schedule::Cron(_), Some(_)) => None,
    };
    Verdict::Miss {
        passed: Passed::missed(run, Reason::Late),
        next: next.map(|scheduled_for| Slot { scheduled_for, offset: occurrence.offset }),
        over,
        why: missed_error(run.last, now),
    }
}

/// Why a slot did not fire, as `last_error` says it.
pub fn missed_error(due: DateTime<Utc>, seen: DateTime<Utc>) -> String {
    format!("missed: due {}, seen {}", rfc3339(due), rfc3339(seen))
}

/// The newest of all goes out, and counts the others.
fn fold_to_newest(occurrence: &Occurrence<'_>, recurrence: &Recurrence, later: Run, carried: u64) -> Verdict {
    let whole = with_own(occurrence, later);
    let before_newest = later.last - TimeDelta::microseconds(1);
    let last = recurrence.nth_newest(1, later.first - TimeDelta::microseconds(1), before_newest);
    let folded = Run { first: whole.first, last: last.unwrap_or(occurrence.scheduled_for), slots: later.slots };
    Verdict::Fold {
        scheduled_for: later.last,
        missed: carried + folded.slots,
        passed: vec![Passed::missed(folded, Reason::Folded)],
    }
}

/// The oldest goes out, those behind it follow in their turn. What is too late (due before `dead_line`) and what is more
/// than the most is taken from the head of the queue.
fn queue(
    occurrence: &Occurrence<'_>,
    recurrence: &Recurrence,
    later: Run,
    dead_line: Option<DateTime<Utc>>,
    carried: u64,
    now: DateTime<Utc>,
) -> Verdict {
    let newest = later.last;
    let mut passed = Vec::new();
    // What waits: `waiting` slots from `head` on.
    let (mut head, mut waiting) = (occurrence.scheduled_for, later.slots + 1);
    if let Some(dead_line) = dead_line {
        // The own slot is late, or nobody would have set a line; of the others those due before it.
        let last_late = dead_line - occurrence.offset - TimeDelta::microseconds(1);
        let late = recurrence.run_between(later.first - TimeDelta::microseconds(1), last_late);
        let run = late.map_or(single(head), |late| with_own(occurrence, late));
        waiting -= run.slots;
        if waiting == 0 {
            return miss(occurrence, with_own(occurrence, later), now);
        }
        passed.push(Passed::missed(run, Reason::Late));
        head = recurrence.nth_newest(waiting, later.first - TimeDelta::microseconds(1), newest).unwrap_or(newest);
    }
    let mut missed = carried;
    if waiting > MOST_FIRED_LATE {
        let after_head = later.first - TimeDelta::microseconds(1);
        let keep = recurrence.nth_newest(MOST_FIRED_LATE, after_head, newest).unwrap_or(newest);
        let last = recurrence.nth_newest(MOST_FIRED_LATE + 1, after_head, newest).unwrap_or(head);
        let run = Run { first: head, last, slots: waiting - MOST_FIRED_LATE };
        passed.push(Passed::missed(run, Reason::Folded));
        missed += run.slots;
        head = keep;
    }
    if passed.is_empty() { Verdict::Fire } else { Verdict::Fold { scheduled_for: head, missed, passed } }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::domain::{
        alarm::Timing,
        ids::{AlarmId, DeliveryId, ScheduleEpoch},
        occurrence::Outcome,
        schedule::{Window, Zone},
    };

    fn at(text: &str) -> DateTime<Utc> {
        format!("2026-11-16T{text}Z").parse().unwrap()
    }

    fn every_minute(misfire: Misfire, max_lateness: Option<i64>) -> Timing {
        let window = Window::new("2026-01-01T00:00:00Z".parse().unwrap(), None, None);
        let schedule = Schedule::Cron(Recurrence::parse("* * * * *", Zone::utc(), window).unwrap());
        Timing { schedule, spread: TimeDelta::zero(), misfire, max_lateness: max_lateness.map(TimeDelta::seconds) }
    }

    fn once(misfire: Misfire, max_lateness: Option<i64>) -> Timing {
        Timing { schedule: Schedule::Once { fire_at: at("09:00:00") }, ..every_minute(misfire, max_lateness) }
    }

    fn occurrence(timing: &Timing) -> Occurrence<'_> {
        Occurrence {
            subject: Subject::Agent,
            status: Status::Active,
            timing,
            offset: TimeDelta::zero(),
            scheduled_for: at("09:00:00"),
            failure_count: 0,
            max_failures: 5,
        }
    }

    /// Due at nine, first claimed at `now`.
    fn first_claim(timing: &Timing, now: &str) -> Verdict {
        judge(&occurrence(timing), 1, at("09:00:00"), 0, at(now))
    }

    fn missed(first: &str, last: &str, slots: u64, reason: Reason) -> Passed {
        Passed { run: Run { first: at(first), last: at(last), slots }, outcome: Outcome::Missed, reason }
    }

    #[test]
    fn what_is_claimed_before_another_slot_passes_fires_as_it_stands() {
        for misfire in [Misfire::FireOnce, Misfire::Skip, Misfire::FireAll] {
            assert_eq!(first_claim(&every_minute(misfire, None), "09:00:59"), Verdict::Fire, "{misfire:?}");
        }
        assert_eq!(first_claim(&once(Misfire::FireOnce, None), "23:00:00"), Verdict::Fire);
    }

    #[test]
    fn slots_that_passed_become_one_wake_for_the_newest_that_counts_the_others() {
        // 09:00, 09:01 and 09:02 passed: the last fires, two are folded.
        let expected = Verdict::Fold {
            scheduled_for: at("09:02:00"),
            missed: 2,
            passed: vec![missed("09:00:00", "09:01:00", 2, Reason::Folded)],
        };
        assert_eq!(first_claim(&every_minute(Misfire::FireOnce, None), "09:02:30"), expected);
        // Under skip too, as long as the newest is not late.
        assert_eq!(first_claim(&every_minute(Misfire::Skip, None), "09:02:30"), expected);
        // One folded slot: the run is that slot.
        assert_eq!(
            first_claim(&every_minute(Misfire::FireOnce, None), "09:01:00"),
            Verdict::Fold {
                scheduled_for: at("09:01:00"),
                missed: 1,
                passed: vec![missed("09:00:00", "09:00:00", 1, Reason::Folded)],
            }
        );
    }

    #[test]
    fn what_is_already_counted_goes_on_being_counted() {
        let timing = every_minute(Misfire::FireOnce, None);
        let verdict = judge(&occurrence(&timing), 1, at("09:00:00"), 7, at("09:01:30"));
        assert!(matches!(verdict, Verdict::Fold { missed: 8, .. }), "{verdict:?}");
    }

    #[test]
    fn too_late_is_missed_and_a_series_goes_on_ahead() {
        let verdict = first_claim(&every_minute(Misfire::FireOnce, Some(10)), "09:02:30");
        assert_eq!(
            verdict,
            Verdict::Miss {
                passed: missed("09:00:00", "09:02:00", 3, Reason::Late),
                next: Some(Slot { scheduled_for: at("09:03:00"), offset: TimeDelta::zero() }),
                over: None,
                why: "missed: due 2026-11-16T09:02:00Z, seen 2026-11-16T09:02:30Z".to_owned(),
            }
        );
    }

    #[test]
    fn a_once_alarm_that_is_too_late_has_failed() {
        let verdict = first_claim(&once(Misfire::Skip, None), "09:01:01");
        let Verdict::Miss { over, next, why, .. } = verdict else { panic!("{verdict:?}") };
        assert_eq!((over, next), (Some(Status::Failed), None));
        assert_eq!(why, "missed: due 2026-11-16T09:00:00Z, seen 2026-11-16T09:01:01Z");
        assert_eq!(first_claim(&once(Misfire::Skip, None), "09:01:00"), Verdict::Fire, "a minute is not too late");
        assert_eq!(first_claim(&once(Misfire::FireOnce, Some(3600)), "10:00:00"), Verdict::Fire);
    }

    #[test]
    fn lateness_is_counted_from_the_effective_instant() {
        let timing = once(Misfire::Skip, None);
        let resumed_at = at("12:00:00");
        assert_eq!(judge(&occurrence(&timing), 1, resumed_at, 0, at("12:00:30")), Verdict::Fire);
        // Spread: due at 09:00 nominally and 09:00:40 in effect.
        let timing = every_minute(Misfire::FireOnce, Some(30));
        let spread = Occurrence { offset: TimeDelta::seconds(40), ..occurrence(&timing) };
        assert_eq!(judge(&spread, 1, at("09:00:40"), 0, at("09:01:10")), Verdict::Fire);
        let verdict = judge(&spread, 1, at("09:00:40"), 0, at("09:01:40"));
        assert!(
            matches!(verdict, Verdict::Fold { scheduled_for, .. } if scheduled_for == at("09:01:00")),
            "{verdict:?}"
        );
    }

    #[test]
    fn fire_all_sends_the_newest_hundred_one_after_another() {
        let timing = every_minute(Misfire::FireAll, None);
        assert_eq!(first_claim(&timing, "10:39:00"), Verdict::Fire, "a hundred wait, and the oldest goes first");
        assert_eq!(
            first_claim(&timing, "10:41:00"),
            Verdict::Fold {
                scheduled_for: at("09:02:00"),
                missed: 2,
                passed: vec![missed("09:00:00", "09:01:00", 2, Reason::Folded)],
            }
        );
    }

    #[test]
    fn fire_all_with_a_limit_drops_those_that_are_too_late_from_the_head() {
        let timing = every_minute(Misfire::FireAll, Some(90));
        assert_eq!(
            first_claim(&timing, "09:04:00"),
            Verdict::Fold {
                scheduled_for: at("09:03:00"),
                missed: 0,
                passed: vec![missed("09:00:00", "09:02:00", 3, Reason::Late)],
            }
        );
        let strict = every_minute(Misfire::FireAll, Some(10));
        assert!(matches!(first_claim(&strict, "09:04:30"), Verdict::Miss { passed, .. } if passed.run.slots == 5));
        let both = every_minute(Misfire::FireAll, Some(120 * 60));
        let verdict = first_claim(&both, "11:30:00");
        assert_eq!(
            verdict,
            Verdict::Fold {
                scheduled_for: at("09:51:00"),
                missed: 21,
                passed: vec![
                    missed("09:00:00", "09:29:00", 30, Reason::Late),
                    missed("09:30:00", "09:50:00", 21, Reason::Folded),
                ],
            }
        );
    }

    #[test]
    fn a_second_claim_and_a_retry_are_not_judged_again() {
        let timing = every_minute(Misfire::Skip, None);
        assert_eq!(judge(&occurrence(&timing), 2, at("09:00:00"), 0, at("23:00:00")), Verdict::Fire);
        let on_its_ladder = Occurrence { failure_count: 1, ..occurrence(&timing) };
        assert_eq!(judge(&on_its_ladder, 1, at("09:00:00"), 0, at("23:00:00")), Verdict::Fire);
    }

    #[test]
    fn timers_are_never_too_late() {
        let timing = once(Misfire::FireOnce, None);
        for subject in [Subject::ServiceCall, Subject::Session] {
            let timer = Occurrence { subject, ..occurrence(&timing) };
            assert_eq!(judge(&timer, 1, at("09:00:00"), 0, at("23:00:00")), Verdict::Fire);
        }
    }

    /// What the row says of the occurrence.
    #[derive(Clone, Copy, Debug)]
    struct Row {
        scheduled_for: DateTime<Utc>,
        missed: u64,
        claims: u32,
    }

    /// One claim: what is written under the token, and what goes out then. Dying before the write leaves `row` with one
    /// more claim and nothing sent.
    fn claim(timing: &Timing, row: Row, now: DateTime<Utc>) -> (Row, Option<(DeliveryId, u64)>) {
        let row = Row { claims: row.claims + 1, ..row };
        let facts = Occurrence { scheduled_for: row.scheduled_for, ..occurrence(timing) };
        let row = match judge(&facts, row.claims, row.scheduled_for, row.missed, now) {
            Verdict::Fire => row,
            Verdict::Fold { scheduled_for, missed, .. } => Row { scheduled_for, missed, ..row },
            Verdict::Miss { .. } => return (row, None),
        };
        let alarm = AlarmId::from_uuid(Uuid::from_u128(7));
        (row, Some((DeliveryId::of(alarm, ScheduleEpoch(0), row.scheduled_for), row.missed)))
    }

    proptest! {
        #[test]
        fn after_a_crash_the_same_wake_goes_out_under_the_same_id(
            misfire in prop::sample::select(Misfire::ALL),
            limit in proptest::option::of(1_i64..10_000),
            late in 0_i64..20_000,
            crashes in prop::collection::vec(0_i64..5_000, 1..4),
        ) {
            let timing = every_minute(misfire, limit);
            let mut now = at("09:00:00") + TimeDelta::seconds(late);
            let row = Row { scheduled_for: at("09:00:00"), missed: 0, claims: 0 };
            let (mut row, first) = claim(&timing, row, now);
            prop_assume!(first.is_some());
            for wait in crashes {
                now += TimeDelta::seconds(wait);
                let (claimed_again, wake) = claim(&timing, row, now);
                prop_assert_eq!(wake, first);
                row = claimed_again;
            }
        }

        #[test]
        fn every_slot_up_to_now_is_accounted_for(
            misfire in prop::sample::select(Misfire::ALL),
            limit in proptest::option::of(1_i64..10_000),
            late in 0_i64..40_000,
            offset in 0_i64..60,
        ) {
            let timing = every_minute(misfire, limit);
            let offset = TimeDelta::seconds(offset);
            let due = at("09:00:00") + offset;
            let now = due + TimeDelta::seconds(late);
            let waiting = u64::try_from(late / 60).unwrap() + 1;
            let facts = Occurrence { offset, ..occurrence(&timing) };
            let count = |passed: &[Passed]| passed.iter().map(|passed| passed.run.slots).sum::<u64>();
            match judge(&facts, 1, due, 0, now) {
                Verdict::Fire => prop_assert!(waiting == 1 || (misfire == Misfire::FireAll && waiting <= 100)),
                Verdict::Fold { scheduled_for, passed, .. } => {
                    // The rest: one, or under fire_all those that still wait.
                    let left = u64::try_from((now - offset - scheduled_for).num_minutes()).unwrap() + 1;
                    prop_assert_eq!(count(&passed) + left, waiting);
                    prop_assert!(left == 1 || (misfire == Misfire::FireAll && left <= 100));
                    prop_assert!(passed.iter().all(|passed| passed.run.last < scheduled_for));
                    prop_assert!(timing.lateness_limit().is_none_or(|limit| now - (scheduled_for + offset) <= limit));
                }
                Verdict::Miss { passed, next, over, .. } => {
                    prop_assert_eq!(passed.run.slots, waiting);
                    prop_assert!(over.is_none() && next.is_some_and(|slot| slot.effective_at() > now));
                }
            }
        }
    }
}
