//! What an owner may do to an alarm between its occurrences: pause it, let it go on, arm it again. Pure decisions over
//! what the row says; the store locks the row, asks here, and writes.

use chrono::{DateTime, TimeDelta, Utc};
use thiserror::Error;

use super::{Cause, Misfire, Slot, Status, Timing};
use crate::domain::{
    occurrence::{Passed, Reason, single, together},
    schedule::{Run, Schedule},
};

/// What the row says that matters here.
#[derive(Clone, Debug)]
pub struct Standing<'a> {
    pub status: Status,
    pub paused_by: &'a [Cause],
    pub timing: &'a Timing,
    pub offset: TimeDelta,
    pub scheduled_for: DateTime<Utc>,
    /// Up to where the slots of the series are told; normally `scheduled_for`.
    pub series_at: DateTime<Utc>,
    pub next_fire_at: DateTime<Utc>,
    pub failure_count: u32,
    /// The occurrence was claimed, and nobody has told yet what came of it: its wake may have arrived, whether the claim still
    /// stands or its dispatcher died.
    pub begun: bool,
    /// A claim stands whose lease has not ended.
    pub in_flight: bool,
}

impl Standing<'_> {
    /// The slots behind the occurrence whose effective instant has come.
    fn passed_behind(&self, now: DateTime<Utc>) -> Option<Run> {
        match &self.timing.schedule {
            Schedule::Once { .. } => None,
            Schedule::Cron(recurrence) => recurrence.run_between(self.series_at, now - self.offset),
        }
    }

    /// Due, and nobody has tried yet.
    fn is_untried(&self, now: DateTime<Utc>) -> bool {
        !self.begun && self.failure_count == 0 && self.next_fire_at <= now
    }

    /// Tried, and to be tried again: after a failure, or because nobody knows what came of it.
    fn is_on_its_ladder(&self) -> bool {
        !self.in_flight && (self.begun || self.failure_count > 0)
    }
}

/// It is over, and a pause is for what may still fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the alarm is {}", .0.as_str())]
pub struct Over(pub Status);

/// The causes afterwards; `None`: it was paused by this cause already.
pub fn pause(status: Status, paused_by: &[Cause], cause: Cause) -> Result<Option<Vec<Cause>>, Over> {
    if !status.is_living() {
        return Err(Over(status));
    }
    let known = paused_by.contains(&cause);
    Ok((!known).then(|| [paused_by, &[cause]].concat()))
}

/// What lifting a cause does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// It was not paused by this cause.
    Unchanged,
    /// Others remain.
    StillPaused(Vec<Cause>),
    /// It lives on, with what is due, retried or in flight as it stands.
    AsItStands,
    /// The occurrence on its ladder goes on; what passed behind it is told, and the series goes on from there.
    OnItsLadder { passed: Passed },
    /// Its only instant passed meanwhile: due now.
    AtOnce,
    /// Its series goes on at a slot ahead; what passed is told.
    At { slot: Slot, passed: Passed },
    /// Its instant, or the rest of its series, passed meanwhile, and that was that.
    Over { status: Status, why: String, passed: Passed },
}

pub fn resume(standing: &Standing<'_>, cause: Cause, now: DateTime<Utc>) -> Result<Resumed, Over> {
    if !standing.status.is_living() {
        return Err(Over(standing.status));
    }
    if !standing.paused_by.contains(&cause) {
        return Ok(Resumed::Unchanged);
    }
    let others: Vec<Cause> = standing.paused_by.iter().copied().filter(|other| *other != cause).collect();
    if !others.is_empty() {
        return Ok(Resumed::StillPaused(others));
    }
    // In flight: its result counts. On its ladder: it goes on at its rung. Its dispatcher died: it goes out again as it was judged
    // then, for it may have arrived. Ahead: nothing has passed.
    if !standing.is_untried(now) {
        let passed = standing.passed_behind(now).filter(|_| standing.is_on_its_ladder());
        return Ok(passed.map_or(Resumed::AsItStands, |run| Resumed::OnItsLadder {
            // Told now, or all of them would follow the retry under `fire_all`.
            passed: Passed::skipped(run, Reason::Paused),
        }));
    }
    Ok(match &standing.timing.schedule {
        Schedule::Once { .. } => match standing.timing.misfire {
            Misfire::Skip => Resumed::Over {
                status: Status::Failed,
                why: "missed: paused".to_owned(),
                passed: Passed::missed(single(standing.scheduled_for), Reason::Paused),
            },
            Misfire::FireOnce | Misfire::FireAll => Resumed::AtOnce,
        },
        Schedule::Cron(recurrence) => {
            // Never a burst, whatever the misfire policy: who pauses does not want these.
            let passed = Passed::skipped(untried_run(standing, now), Reason::Paused);
            match recurrence.next_after(standing.series_at.max(now - standing.offset)) {
                Some(scheduled_for) => Resumed::At { slot: Slot { scheduled_for, offset: standing.offset }, passed },
                None => Resumed::Over { status: Status::Fired, why: String::new(), passed },
            }
        }
    })
}

/// The occurrence that nobody has tried, and what passed behind it.
fn untried_run(standing: &Standing<'_>, now: DateTime<Utc>) -> Run {
    let own = standing.scheduled_for;
    standing.passed_behind(now).map_or(single(own), |later| together(own, later))
}

/// What an alarm gives up when it is planned anew: the slots that have passed and would have been folded, fired or told. What
/// has failed before is in the history already. What was begun for the first time is told here, as fenced: whoever has the claim
/// may have died, or die, or give it back, and leave no row.
pub fn forgone(standing: &Standing<'_>, now: DateTime<Utc>) -> Vec<Passed> {
    let reason = match standing.status {
        Status::Active => Reason::Replanned,
        Status::Paused => Reason::Paused,
        Status::Fired | Status::Cancelled | Status::Failed => return Vec::new(),
    };
    let run = if standing.is_untried(now) { Some(untried_run(standing, now)) } else { standing.passed_behind(now) };
    let overtaken = (standing.begun && standing.failure_count == 0).then(|| Passed::overtaken(standing.scheduled_for));
    overtaken.into_iter().chain(run.map(|run| Passed::skipped(run, reason))).collect()
}

/// Why an alarm cannot be fired by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotFired {
    #[error("the alarm is {}; only an active one is fired", .0.as_str())]
    NotActive(Status),
    #[error("a wake of the alarm is under way")]
    InFlight,
    #[error("the alarm is being retried after a failed attempt")]
    Retrying,
    #[error("the alarm is due already")]
    Due,
}

/// Whether an alarm may be fired now, beside its schedule; if so, up to where its series is told then: the slot that stands is
/// still to come. A once alarm has no other instant, and is spent.
pub fn fire(standing: &Standing<'_>, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, NotFired> {
    match standing.status {
        Status::Active => {}
        status @ (Status::Paused | Status::Fired | Status::Cancelled | Status::Failed) => {
            return Err(NotFired::NotActive(status));
        }
    }
    if standing.in_flight {
        return Err(NotFired::InFlight);
    }
    if standing.failure_count > 0 {
        return Err(NotFired::Retrying);
    }
    if standing.begun || standing.next_fire_at <= now {
        return Err(NotFired::Due);
    }
    Ok(match standing.timing.schedule {
        Schedule::Once { .. } => None,
        // The resolution of slots.
        Schedule::Cron(_) => Some(standing.scheduled_for - TimeDelta::microseconds(1)),
    })
}

/// Why an alarm cannot be armed again as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotRearmed {
    #[error("the alarm is {}; only one that is fired, failed or cancelled is armed again", .0.as_str())]
    Living(Status),
    #[error("the alarm's instant has passed; give fire_at or delay_seconds")]
    NeedsInstant,
    #[error("the instant lies in the past; give one ahead")]
    Past,
    #[error("the alarm follows a cron expression; fire_at and delay_seconds do not go with it")]
    IsSeries,
    #[error("the alarm's series has no instant ahead; replace it by PUT with its key, or make another alarm")]
    NoFutureInstant,
}

/// Where an alarm that is over begins anew. `instant` is what the owner gave, and may lie as far back as `accepted_from`.
pub fn rearm(
    standing: &Standing<'_>,
    instant: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
    accepted_from: DateTime<Utc>,
) -> Result<Slot, NotRearmed> {
    if standing.status.is_living() {
        return Err(NotRearmed::Living(standing.status));
    }
    match (&standing.timing.schedule, instant) {
        (Schedule::Once { .. }, Some(instant)) if instant < accepted_from => Err(NotRearmed::Past),
        (Schedule::Once { .. }, Some(scheduled_for)) => Ok(Slot { scheduled_for, offset: TimeDelta::zero() }),
        (Schedule::Once { fire_at }, None) if *fire_at <= now => Err(NotRearmed::NeedsInstant),
        (Schedule::Once { fire_at }, None) => Ok(Slot { scheduled_for: *fire_at, offset: TimeDelta::zero() }),
        (Schedule::Cron(_), Some(_)) => Err(NotRearmed::IsSeries),
        (Schedule::Cron(recurrence), None) => {
            let scheduled_for = recurrence.next_after(now).ok_or(NotRearmed::NoFutureInstant)?;
            Ok(Slot { scheduled_for, offset: standing.offset })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::schedule::{Recurrence, Window, Zone};

    fn at(text: &str) -> DateTime<Utc> {
        format!("2026-11-16T{text}Z").parse().unwrap()
    }

    fn once(misfire: Misfire) -> Timing {
        let schedule = Schedule::Once { fire_at: at("09:00:00") };
        Timing { schedule, spread: TimeDelta::zero(), misfire, max_lateness: None }
    }

    fn minutes(ends_at: Option<&str>) -> Timing {
        let window = Window::new(at("00:00:00"), None, ends_at.map(at));
        let schedule = Schedule::Cron(Recurrence::parse("* * * * *", Zone::utc(), window).unwrap());
        Timing { schedule, ..once(Misfire::FireAll) }
    }

    fn standing<'a>(timing: &'a Timing, paused_by: &'a [Cause]) -> Standing<'a> {
        Standing {
            status: if paused_by.is_empty() { Status::Active } else { Status::Paused },
            paused_by,
            timing,
            offset: TimeDelta::zero(),
            scheduled_for: at("09:00:00"),
            series_at: at("09:00:00"),
            next_fire_at: at("09:00:00"),
            failure_count: 0,
            begun: false,
            in_flight: false,
        }
    }

    const OWNER: &[Cause] = &[Cause::Owner];

    #[test]
    fn each_cause_pauses_once_and_lifts_only_itself() {
        assert_eq!(pause(Status::Active, &[], Cause::Owner), Ok(Some(vec![Cause::Owner])));
        assert_eq!(pause(Status::Paused, OWNER, Cause::Owner), Ok(None));
        assert_eq!(pause(Status::Paused, OWNER, Cause::Agent), Ok(Some(vec![Cause::Owner, Cause::Agent])));

        let timing = once(Misfire::FireOnce);
        let both = [Cause::Owner, Cause::Agent];
        let lift = |causes, cause| resume(&standing(&timing, causes), cause, at("08:00:00"));
        assert_eq!(lift(&both, Cause::Owner), Ok(Resumed::StillPaused(vec![Cause::Agent])));
        assert_eq!(lift(&both, Cause::Spec), Ok(Resumed::Unchanged));
        assert_eq!(lift(OWNER, Cause::Owner), Ok(Resumed::AsItStands));
    }

    #[test]
    fn only_an_active_alarm_with_nothing_due_or_under_way_is_fired_by_hand() {
        let (series, single) = (minutes(None), once(Misfire::FireOnce));
        let before = at("08:59:30");
        assert_eq!(fire(&standing(&single, &[]), before), Ok(None));
        assert_eq!(fire(&standing(&series, &[]), before), Ok(Some(at("08:59:59.999999"))), "09:00 is still to come");
        let refused = |standing: Standing<'_>, now| fire(&standing, now).unwrap_err();
        assert_eq!(refused(standing(&series, OWNER), before), NotFired::NotActive(Status::Paused));
        let in_flight = Standing { begun: true, in_flight: true, ..standing(&series, &[]) };
        assert_eq!(refused(in_flight, before), NotFired::InFlight);
        assert_eq!(refused(Standing { failure_count: 1, ..standing(&series, &[]) }, before), NotFired::Retrying);
        assert_eq!(refused(standing(&series, &[]), at("09:00:00")), NotFired::Due);
        assert_eq!(refused(Standing { begun: true, ..standing(&series, &[]) }, before), NotFired::Due);
    }

    #[test]
    fn what_is_over_is_neither_paused_nor_resumed() {
        let timing = once(Misfire::FireOnce);
        for status in [Status::Fired, Status::Failed, Status::Cancelled] {
            let over = Standing { status, ..standing(&timing, &[]) };
            assert_eq!(pause(status, &[], Cause::Owner), Err(Over(status)));
            assert_eq!(resume(&over, Cause::Owner, at("10:00:00")), Err(Over(status)));
        }
    }

    #[test]
    fn a_series_goes_on_ahead_and_tells_what_passed() {
        let timing = minutes(None);
        let resumed = resume(&standing(&timing, OWNER), Cause::Owner, at("10:00:30")).unwrap();
        let run = Run { first: at("09:00:00"), last: at("10:00:00"), slots: 61 };
        let slot = Slot { scheduled_for: at("10:01:00"), offset: TimeDelta::zero() };
        assert_eq!(resumed, Resumed::At { slot, passed: Passed::skipped(run, Reason::Paused) });
        let ended = minutes(Some("09:30:00"));
        let resumed = resume(&standing(&ended, OWNER), Cause::Owner, at("10:00:30")).unwrap();
        assert!(matches!(resumed, Resumed::Over { status: Status::Fired, passed, .. } if passed.run.slots == 30));
    }

    #[test]
    fn a_once_alarm_whose_instant_passed_fires_at_once_unless_it_skips() {
        let (fires, skips) = (once(Misfire::FireOnce), once(Misfire::Skip));
        assert_eq!(resume(&standing(&fires, OWNER), Cause::Owner, at("10:00:00")), Ok(Resumed::AtOnce));
        let resumed = resume(&standing(&skips, OWNER), Cause::Owner, at("10:00:00")).unwrap();
        let Resumed::Over { status, why, passed } = resumed else { panic!("{resumed:?}") };
        assert_eq!((status, why.as_str(), passed.run.slots), (Status::Failed, "missed: paused", 1));
    }

    #[test]
    fn what_is_in_flight_goes_on_as_it_stands_and_what_is_on_its_ladder_too_without_a_burst_behind_it() {
        let timing = minutes(None);
        let in_flight = Standing { begun: true, in_flight: true, ..standing(&timing, OWNER) };
        assert_eq!(resume(&in_flight, Cause::Owner, at("10:00:00")), Ok(Resumed::AsItStands));
        let on_its_ladder = Standing { failure_count: 1, ..standing(&timing, OWNER) };
        assert_eq!(resume(&on_its_ladder, Cause::Owner, at("09:00:59")), Ok(Resumed::AsItStands));
        let run = Run { first: at("09:01:00"), last: at("10:00:00"), slots: 60 };
        let passed = Passed::skipped(run, Reason::Paused);
        assert_eq!(resume(&on_its_ladder, Cause::Owner, at("10:00:00")), Ok(Resumed::OnItsLadder { passed }));
    }

    #[test]
    fn what_was_claimed_by_one_that_died_goes_out_again_whatever_the_policy() {
        fn lost(timing: &Timing) -> Standing<'_> {
            Standing { begun: true, ..standing(timing, OWNER) }
        }
        for misfire in [Misfire::FireOnce, Misfire::Skip, Misfire::FireAll] {
            let timing = once(misfire);
            assert_eq!(resume(&lost(&timing), Cause::Owner, at("10:00:00")), Ok(Resumed::AsItStands));
        }
        let timing = minutes(None);
        assert_eq!(resume(&lost(&timing), Cause::Owner, at("09:00:59")), Ok(Resumed::AsItStands));
        let run = Run { first: at("09:01:00"), last: at("10:00:00"), slots: 60 };
        let passed = Passed::skipped(run, Reason::Paused);
        assert_eq!(resume(&lost(&timing), Cause::Owner, at("10:00:00")), Ok(Resumed::OnItsLadder { passed }));
    }

    #[test]
    fn a_slot_whose_spread_was_running_when_somebody_fired_by_hand_is_not_lost_in_a_pause() {
        let timing = minutes(None);
        let by_hand = Standing {
            scheduled_for: at("09:00:10"),
            next_fire_at: at("09:00:10"),
            series_at: at("08:59:59"),
            offset: TimeDelta::seconds(40),
            ..standing(&timing, OWNER)
        };
        let resumed = resume(&by_hand, Cause::Owner, at("09:00:20")).unwrap();
        let slot = Slot { scheduled_for: at("09:00:00"), offset: TimeDelta::seconds(40) };
        let passed = Passed::skipped(single(at("09:00:10")), Reason::Paused);
        assert_eq!(resumed, Resumed::At { slot, passed });
    }

    #[test]
    fn what_a_new_plan_gives_up_is_told() {
        let (series, single_shot) = (minutes(None), once(Misfire::FireOnce));
        let now = at("09:02:30");
        let skipped =
            |first, last, slots, reason| Passed::skipped(Run { first: at(first), last: at(last), slots }, reason);
        let due = standing(&series, &[]);
        assert_eq!(forgone(&due, now), [skipped("09:00:00", "09:02:00", 3, Reason::Replanned)]);
        // What has failed is in the history, under way again or not: only what passed behind it is not.
        let behind = skipped("09:01:00", "09:02:00", 2, Reason::Replanned);
        for begun in [false, true] {
            assert_eq!(forgone(&Standing { failure_count: 1, begun, in_flight: begun, ..due.clone() }, now), [behind]);
        }
        // Whoever has the first claim may die, or has died, and leaves no row. Its wake may have arrived: nobody counts it as missed.
        let overtaken = Passed::overtaken(at("09:00:00"));
        for in_flight in [false, true] {
            assert_eq!(forgone(&Standing { begun: true, in_flight, ..due.clone() }, now), [overtaken, behind]);
        }
        assert!(behind.counts() && !overtaken.counts());
        assert_eq!(forgone(&due, at("08:00:00")), []);
        assert_eq!(forgone(&standing(&single_shot, OWNER), now), [skipped("09:00:00", "09:00:00", 1, Reason::Paused)]);
        assert_eq!(forgone(&Standing { status: Status::Fired, ..due }, now), []);
    }

    #[test]
    fn only_what_is_over_is_armed_again() {
        let (timing, series) = (once(Misfire::FireOnce), minutes(None));
        let over = |timing| Standing { status: Status::Fired, ..standing(timing, &[]) };
        let now = at("10:00:00");
        let sharp = |text| Slot { scheduled_for: at(text), offset: TimeDelta::zero() };
        assert_eq!(rearm(&standing(&timing, &[]), None, now, now), Err(NotRearmed::Living(Status::Active)));
        assert_eq!(rearm(&over(&timing), None, now, now), Err(NotRearmed::NeedsInstant));
        assert_eq!(rearm(&over(&timing), None, at("08:00:00"), now), Ok(sharp("09:00:00")));
        assert_eq!(rearm(&over(&timing), Some(at("11:00:00")), now, now), Ok(sharp("11:00:00")));
        assert_eq!(rearm(&over(&timing), Some(at("09:59:59")), now, now), Err(NotRearmed::Past));
        assert_eq!(rearm(&over(&series), None, now, now), Ok(sharp("10:01:00")));
        assert_eq!(rearm(&over(&series), Some(at("11:00:00")), now, now), Err(NotRearmed::IsSeries));
        let ended = minutes(Some("09:30:00"));
        assert_eq!(rearm(&over(&ended), None, now, now), Err(NotRearmed::NoFutureInstant));
    }
}
