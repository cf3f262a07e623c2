//! What goes out when an occurrence is claimed: itself, a newer slot that stands for those that passed, or nothing because
//! it is too late.
//!
//! The verdict is as of the occurrence's first claim, which the row remembers, and is written down under the token before
//! anything is sent. So it is the same however often the occurrence is claimed: whoever comes after a crash either finds the
//! verdict written, and as of the first claim nothing more has passed, or comes to the same one. The same wake goes out
//! under the same delivery id.

use chrono::{DateTime, TimeDelta, Utc};

use super::{Occurrence, Passed, Reason, single, together};
use crate::domain::{
    alarm::{Misfire, Slot, Status, Subject},
    rfc3339,
    schedule::{Recurrence, Run, Schedule},
};

/// Under `fire_all`, older slots than this many are folded: a minute's alarm that was down for a week must not wake
/// its agent ten thousand times.
const MOST_FIRED_LATE: u64 = 100;
/// The resolution of slots: one less than a slot is before it.
const STEP: TimeDelta = TimeDelta::microseconds(1);

/// What a claim does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Sends the occurrence as it stands.
    Fire,
    /// Sends this slot's, which tells of `missed` others. Written before the wake goes out.
    Fold { slot: Slot, missed: u64, passed: Vec<Passed> },
    /// Sends nothing: too late.
    Miss(Missed),
}

/// What an occurrence leaves behind that is too late to fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missed {
    pub passed: Passed,
    /// Where the alarm goes on, and how many others the wake there tells of.
    pub next: Option<Slot>,
    pub missed: u64,
    /// The status of an alarm that does not go on: of a once alarm, failed.
    pub over: Option<Status>,
    pub why: String,
}

/// `first_claimed_at` is when this occurrence was first claimed; `effective_at` when it was due, spread and resumption
/// included.
pub fn judge(occurrence: &Occurrence<'_>, effective_at: DateTime<Utc>, first_claimed_at: DateTime<Utc>) -> Verdict {
    match occurrence.subject {
        // Their policies are the agents' alone.
        Subject::ServiceCall | Subject::Session => return Verdict::Fire,
        Subject::Agent if occurrence.failure_count > 0 => return Verdict::Fire,
        Subject::Agent => {}
    }
    let now = first_claimed_at;
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
                    miss(occurrence, together(occurrence.scheduled_for, later), now)
                }
                (Misfire::FireOnce | Misfire::Skip, Some(later)) => fold_to_newest(occurrence, recurrence, later),
                (Misfire::FireAll, Some(later)) => {
                    let dead_line = limit.filter(|_| late).map(|limit| now - limit);
                    queue(occurrence, recurrence, later, dead_line, now)
                }
            }
        }
    }
}

fn miss(occurrence: &Occurrence<'_>, run: Run, now: DateTime<Utc>) -> Verdict {
    let next = occurrence.next_ahead(now);
    let over = match (&occurrence.timing.schedule, next) {
        (Schedule::Once { .. }, _) => Some(Status::Failed),
        (Schedule::Cron(_), None) => Some(Status::Fired),
        (Schedule::Cron(_), Some(_)) => None,
    };
    Verdict::Miss(Missed {
        passed: Passed::missed(run, Reason::Late),
        next: next.map(|scheduled_for| Slot { scheduled_for, offset: occurrence.offset }),
        // What this wake was to tell of, the next one tells. That it was late itself is in the history.
        missed: occurrence.missed,
        over,
        why: missed_error(run.last, now),
    })
}

/// Why a slot did not fire, as `last_error` says it.
pub fn missed_error(due: DateTime<Utc>, seen: DateTime<Utc>) -> String {
    format!("missed: due {}, seen {}", rfc3339(due), rfc3339(seen))
}

/// The newest of all goes out, and counts the others.
fn fold_to_newest(occurrence: &Occurrence<'_>, recurrence: &Recurrence, later: Run) -> Verdict {
    let second_newest = recurrence.nth_newest(2, later.first - STEP, later.last);
    let folded = second_newest.map_or(single(occurrence.scheduled_for), |last| {
        together(occurrence.scheduled_for, Run { last, slots: later.slots - 1, ..later })
    });
    Verdict::Fold {
        slot: Slot { scheduled_for: later.last, offset: occurrence.offset },
        missed: occurrence.missed + folded.slots,
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
    now: DateTime<Utc>,
) -> Verdict {
    let newest = |n: u64| recurrence.nth_newest(n, later.first - STEP, later.last);
    let mut passed = Vec::new();
    // How many wait; and among them the occurrence itself, until it is dropped.
    let (mut waiting, mut own) = (later.slots + 1, Some(occurrence.scheduled_for));
    if let Some(dead_line) = dead_line {
        // The occurrence is late, or nobody would have set a line; of the slots behind it those due before it.
        let late = recurrence.run_between(later.first - STEP, dead_line - occurrence.offset - STEP);
        let run = late.map_or(single(occurrence.scheduled_for), |late| together(occurrence.scheduled_for, late));
        waiting -= run.slots;
        if waiting == 0 {
            return miss(occurrence, together(occurrence.scheduled_for, later), now);
        }
        passed.push(Passed::missed(run, Reason::Late));
        own = None;
    }
    let mut missed = occurrence.missed;
    if let Some(too_many) = waiting.checked_sub(MOST_FIRED_LATE).filter(|too_many| *too_many > 0) {
        let slots = too_many - u64::from(own.is_some());
        let dropped = newest(MOST_FIRED_LATE + slots).zip(newest(MOST_FIRED_LATE + 1)).filter(|_| slots > 0);
        let dropped = dropped.map(|(first, last)| Run { first, last, slots });
        let run = match (own, dropped) {
            (Some(own), Some(dropped)) => Some(together(own, dropped)),
            (Some(own), None) => Some(single(own)),
            (None, dropped) => dropped,
        };
        passed.extend(run.map(|run| Passed::missed(run, Reason::Folded)));
        missed += too_many;
        waiting = MOST_FIRED_LATE;
        own = None;
    }
    match (own, newest(waiting)) {
        (None, Some(scheduled_for)) => {
            Verdict::Fold { slot: Slot { scheduled_for, offset: occurrence.offset }, missed, passed }
        }
        // Nothing was dropped: the occurrence is the head of its queue.
        (Some(_), _) | (None, None) => Verdict::Fire,
    }
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
            series_at: at("09:00:00"),
            missed: 0,
            failure_count: 0,
            max_failures: 5,
        }
    }

    /// Due at nine, first claimed at `now`.
    fn first_claim(timing: &Timing, now: &str) -> Verdict {
        judge(&occurrence(timing), at("09:00:00"), at(now))
    }

    fn slot(text: &str) -> Slot {
        Slot { scheduled_for: at(text), offset: TimeDelta::zero() }
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
            slot: slot("09:02:00"),
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
                slot: slot("09:01:00"),
                missed: 1,
                passed: vec![missed("09:00:00", "09:00:00", 1, Reason::Folded)],
            }
        );
    }

    #[test]
    fn what_is_already_counted_goes_on_being_counted() {
        let timing = every_minute(Misfire::FireOnce, None);
        let told = Occurrence { missed: 7, ..occurrence(&timing) };
        let verdict = judge(&told, at("09:00:00"), at("09:01:30"));
        assert!(matches!(verdict, Verdict::Fold { missed: 8, .. }), "{verdict:?}");
        let strict = every_minute(Misfire::FireOnce, Some(10));
        let verdict = judge(&Occurrence { missed: 7, ..occurrence(&strict) }, at("09:00:00"), at("09:01:30"));
        assert!(matches!(verdict, Verdict::Miss(Missed { missed: 7, .. })), "{verdict:?}");
    }

    #[test]
    fn too_late_is_missed_and_a_series_goes_on_ahead() {
        let verdict = first_claim(&every_minute(Misfire::FireOnce, Some(10)), "09:02:30");
        assert_eq!(
            verdict,
            Verdict::Miss(Missed {
                passed: missed("09:00:00", "09:02:00", 3, Reason::Late),
                next: Some(slot("09:03:00")),
                missed: 0,
                over: None,
                why: "missed: due 2026-11-16T09:02:00Z, seen 2026-11-16T09:02:30Z".to_owned(),
            })
        );
    }

    #[test]
    fn a_once_alarm_that_is_too_late_has_failed() {
        let verdict = first_claim(&once(Misfire::Skip, None), "09:01:01");
        let Verdict::Miss(Missed { over, next, why, .. }) = verdict else { panic!("{verdict:?}") };
        assert_eq!((over, next), (Some(Status::Failed), None));
        assert_eq!(why, "missed: due 2026-11-16T09:00:00Z, seen 2026-11-16T09:01:01Z");
        assert_eq!(first_claim(&once(Misfire::Skip, None), "09:01:00"), Verdict::Fire, "a minute is not too late");
        assert_eq!(first_claim(&once(Misfire::FireOnce, Some(3600)), "10:00:00"), Verdict::Fire);
    }

    #[test]
    fn lateness_is_counted_from_the_effective_instant() {
        let timing = once(Misfire::Skip, None);
        let resumed_at = at("12:00:00");
        assert_eq!(judge(&occurrence(&timing), resumed_at, at("12:00:30")), Verdict::Fire);
        // Spread: due at 09:00 nominally and 09:00:40 in effect.
        let timing = every_minute(Misfire::FireOnce, Some(30));
        let spread = Occurrence { offset: TimeDelta::seconds(40), ..occurrence(&timing) };
        assert_eq!(judge(&spread, at("09:00:40"), at("09:01:10")), Verdict::Fire);
        let verdict = judge(&spread, at("09:00:40"), at("09:01:40"));
        assert!(matches!(verdict, Verdict::Fold { slot, .. } if slot.effective_at() == at("09:01:40")), "{verdict:?}");
    }

    #[test]
    fn fire_all_sends_the_newest_hundred_one_after_another() {
        let timing = every_minute(Misfire::FireAll, None);
        assert_eq!(first_claim(&timing, "10:39:00"), Verdict::Fire, "a hundred wait, and the oldest goes first");
        assert_eq!(
            first_claim(&timing, "10:41:00"),
            Verdict::Fold {
                slot: slot("09:02:00"),
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
                slot: slot("09:03:00"),
                missed: 0,
                passed: vec![missed("09:00:00", "09:02:00", 3, Reason::Late)],
            }
        );
        let strict = every_minute(Misfire::FireAll, Some(10));
        assert!(
            matches!(first_claim(&strict, "09:04:30"), Verdict::Miss(Missed { passed, .. }) if passed.run.slots == 5)
        );
        let both = every_minute(Misfire::FireAll, Some(120 * 60));
        let verdict = first_claim(&both, "11:30:00");
        assert_eq!(
            verdict,
            Verdict::Fold {
                slot: slot("09:51:00"),
                missed: 21,
                passed: vec![
                    missed("09:00:00", "09:29:00", 30, Reason::Late),
                    missed("09:30:00", "09:50:00", 21, Reason::Folded),
                ],
            }
        );
    }

    #[test]
    fn a_retry_is_not_judged_again() {
        let timing = every_minute(Misfire::Skip, None);
        let on_its_ladder = Occurrence { failure_count: 1, ..occurrence(&timing) };
        assert_eq!(judge(&on_its_ladder, at("09:00:00"), at("23:00:00")), Verdict::Fire);
    }

    #[test]
    fn an_occurrence_fired_by_hand_is_folded_like_a_slot_and_the_slot_that_stood_is_not_lost() {
        // By hand at 09:00:10, while the slot of 09:00 waited for its spread of 40 s.
        let by_hand = |timing| Occurrence {
            scheduled_for: at("09:00:10"),
            series_at: at("09:00:00") - STEP,
            offset: TimeDelta::seconds(40),
            ..occurrence(timing)
        };
        let folds = every_minute(Misfire::FireOnce, None);
        let spread = |text| Slot { scheduled_for: at(text), offset: TimeDelta::seconds(40) };
        assert_eq!(judge(&by_hand(&folds), at("09:00:10"), at("09:00:39")), Verdict::Fire);
        assert_eq!(
            judge(&by_hand(&folds), at("09:00:10"), at("09:00:40")),
            Verdict::Fold {
                slot: spread("09:00:00"),
                missed: 1,
                passed: vec![missed("09:00:10", "09:00:10", 1, Reason::Folded)],
            }
        );
        assert_eq!(
            judge(&by_hand(&folds), at("09:00:10"), at("09:01:40")),
            Verdict::Fold {
                slot: spread("09:01:00"),
                missed: 2,
                passed: vec![missed("09:00:00", "09:00:10", 2, Reason::Folded)],
            }
        );
        let queues = every_minute(Misfire::FireAll, None);
        assert_eq!(judge(&by_hand(&queues), at("09:00:10"), at("09:05:40")), Verdict::Fire);
    }

    #[test]
    fn timers_are_never_too_late() {
        let timing = once(Misfire::FireOnce, None);
        for subject in [Subject::ServiceCall, Subject::Session] {
            let timer = Occurrence { subject, ..occurrence(&timing) };
            assert_eq!(judge(&timer, at("09:00:00"), at("23:00:00")), Verdict::Fire);
        }
    }

    /// What the row says of the occurrence.
    #[derive(Clone, Copy, Debug)]
    struct Row {
        scheduled_for: DateTime<Utc>,
        missed: u64,
        first_claimed_at: Option<DateTime<Utc>>,
    }

    /// One claim: the row as it is stamped, as it is after the verdict was written, and what goes out then.
    fn claim(timing: &Timing, row: Row, now: DateTime<Utc>) -> (Row, Row, Option<(DeliveryId, u64)>) {
        let first_claimed_at = row.first_claimed_at.unwrap_or(now);
        let stamped = Row { first_claimed_at: Some(first_claimed_at), ..row };
        let facts = Occurrence {
            scheduled_for: row.scheduled_for,
            series_at: row.scheduled_for,
            missed: row.missed,
            ..occurrence(timing)
        };
        let written = match judge(&facts, row.scheduled_for, first_claimed_at) {
            Verdict::Fire => stamped,
            Verdict::Fold { slot, missed, .. } => Row { scheduled_for: slot.scheduled_for, missed, ..stamped },
            Verdict::Miss(_) => return (stamped, stamped, None),
        };
        let alarm = AlarmId::from_uuid(Uuid::from_u128(7));
        let wake = (DeliveryId::of(alarm, ScheduleEpoch(0), written.scheduled_for), written.missed);
        (stamped, written, Some(wake))
    }

    proptest! {
        /// Whether the process died before the verdict was written or after, and however often.
        #[test]
        fn after_a_crash_the_same_wake_goes_out_under_the_same_id(
            misfire in prop::sample::select(Misfire::ALL),
            limit in proptest::option::of(1_i64..10_000),
            late in 0_i64..20_000,
            crashes in prop::collection::vec((0_i64..5_000, any::<bool>()), 1..5),
        ) {
            let timing = every_minute(misfire, limit);
            let mut now = at("09:00:00") + TimeDelta::seconds(late);
            let row = Row { scheduled_for: at("09:00:00"), missed: 0, first_claimed_at: None };
            let (stamped, written, first) = claim(&timing, row, now);
            let mut row = if crashes[0].1 { written } else { stamped };
            for (wait, written_in_time) in crashes {
                now += TimeDelta::seconds(wait);
                let (stamped, written, wake) = claim(&timing, row, now);
                prop_assert_eq!(wake, first);
                row = if written_in_time { written } else { stamped };
            }
        }

        #[test]
        fn every_slot_up_to_now_is_accounted_for_once(
            misfire in prop::sample::select(Misfire::ALL),
            limit in proptest::option::of(1_i64..10_000),
            late in 0_i64..40_000,
            offset in 0_i64..60,
        ) {
            let timing = every_minute(misfire, limit);
            let offset = TimeDelta::seconds(offset);
            let due = at("09:00:00") + offset;
            let now = due + TimeDelta::seconds(late);
            let newest = at("09:00:00") + TimeDelta::minutes(late / 60);
            let minute = TimeDelta::minutes(1);
            // Runs that follow each other without a gap: how far they reach.
            let told = |passed: &[Passed]| {
                passed.iter().try_fold(at("09:00:00"), |next, passed| {
                    let Run { first, last, slots } = passed.run;
                    let exact = first == next && last == first + minute * i32::try_from(slots - 1).unwrap();
                    exact.then_some(last + minute)
                })
            };
            let facts = Occurrence { offset, ..occurrence(&timing) };
            match judge(&facts, due, now) {
                Verdict::Fire => {
                    prop_assert!(newest == facts.scheduled_for || (misfire == Misfire::FireAll && late < 100 * 60));
                }
                Verdict::Fold { slot, passed, .. } => {
                    prop_assert_eq!(told(&passed), Some(slot.scheduled_for), "{:?}", passed);
                    let behind = (newest - slot.scheduled_for).num_minutes();
                    prop_assert!(behind == 0 || (misfire == Misfire::FireAll && behind < 100));
                    prop_assert!(timing.lateness_limit().is_none_or(|limit| now - slot.effective_at() <= limit));
                }
                Verdict::Miss(Missed { passed, next, over, .. }) => {
                    prop_assert_eq!(told(&[passed]), Some(newest + minute));
                    prop_assert_eq!(over, None);
                    prop_assert_eq!(next, Some(Slot { scheduled_for: newest + minute, offset }));
                }
            }
        }
    }
}
