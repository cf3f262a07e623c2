//! What an alarm is: its words, what defines it, and when it fires first.
//!
//! ```text
//! what somebody wrote ──Draft::define──▶ Definition ──plan──▶ Plan: first slot, missed, or never
//!                                            ▲
//! a merge patch ──Changes::onto──▶ Draft ────┘
//! ```

mod changes;
mod draft;
pub mod lifecycle;

use chrono::{DateTime, TimeDelta, Utc};
use sha2::{Digest, Sha256};

pub use changes::{Change, Changes};
pub use draft::{
    Defaults, Draft, LABEL_CAP, LONGEST_DELAY_SECONDS, LONGEST_SPREAD_SECONDS, MAX_FAILURES_CAP, MESSAGE_CAP,
    instant_or_delay, parse_fire_at,
};
pub(super) use draft::{instant, within_calendar};

use super::{
    ids::AlarmId,
    labels::Labels,
    payload::Payload,
    schedule::{Recurrence, Schedule},
    words::words,
};

words! {
    /// Where an alarm stands.
    Status(UnknownStatus, "status") {
        Active = "active",
        Paused = "paused",
        Fired = "fired",
        Cancelled = "cancelled",
        Failed = "failed",
    }
}

words! {
    /// Whom the wake is for.
    Subject(UnknownSubject, "subject") {
        /// An agent's alarm. Giving up, misfire, lateness, spread, pause and quotas belong to it alone.
        Agent = "agent",
        /// The timer of a service call: never given up, only deleted.
        ServiceCall = "service_call",
        /// The timer of a session: promoted to an event, or cancelled.
        Session = "session",
    }
}

words! {
    /// Once, or again and again.
    Kind(UnknownKind, "kind") {
        Once = "once",
        Cron = "cron",
    }
}

words! {
    /// What becomes of the slots that passed while nothing could fire.
    Misfire(UnknownMisfire, "misfire policy") {
        /// One wake, for the newest, that carries the count of the others.
        FireOnce = "fire_once",
        /// None that is late.
        Skip = "skip",
        /// The newest hundred, one after another.
        FireAll = "fire_all",
    }
}

words! {
    /// Why an alarm is paused. Each cause lifts only itself.
    Cause(UnknownCause, "cause of a pause") {
        Owner = "owner",
        Spec = "spec",
        Agent = "agent",
    }
}

impl Status {
    /// Whether it may still fire by itself.
    pub const fn is_living(self) -> bool {
        match self {
            Self::Active | Self::Paused => true,
            Self::Fired | Self::Cancelled | Self::Failed => false,
        }
    }
}

/// An alarm as it is kept: every field checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    pub label: String,
    pub labels: Labels,
    pub timing: Timing,
    pub conversation_id: String,
    pub wake_message: String,
    pub payload: Payload,
    pub max_failures: u32,
}

/// When an alarm is due, and what becomes of slots that cannot fire then.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    pub schedule: Schedule,
    /// The window within which a slot's effective instant may lie behind its nominal one; zero for none.
    pub spread: TimeDelta,
    pub misfire: Misfire,
    pub max_lateness: Option<TimeDelta>,
}

/// Under `misfire: skip` an occurrence that is later than this does not fire, unless the alarm says how late it may be.
const LATENESS_UNDER_SKIP: TimeDelta = TimeDelta::seconds(60);

/// One occurrence that lies ahead: its nominal instant, and how far behind it the effective one lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub scheduled_for: DateTime<Utc>,
    pub offset: TimeDelta,
}

impl Slot {
    /// When it fires.
    pub fn effective_at(self) -> DateTime<Utc> {
        self.scheduled_for + self.offset
    }
}

/// When an alarm that was just defined, or given another schedule, fires first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    At(Slot),
    /// Its only instant had passed before anybody asked for it: it never fires, and says so.
    Missed {
        due: DateTime<Utc>,
    },
    /// An expression without a single instant ahead: refused.
    Never,
}

impl Timing {
    /// `accepted_from` is the earliest instant a once alarm may name: its birth, so that an alarm stored late still fires
    /// but a restored backup does not replay; or now for an edit, which never fires backwards. A series begins after `now`.
    pub fn plan(&self, id: AlarmId, now: DateTime<Utc>, accepted_from: DateTime<Utc>) -> Plan {
        match &self.schedule {
            Schedule::Once { fire_at } if *fire_at < accepted_from => Plan::Missed { due: *fire_at },
            Schedule::Once { fire_at } => Plan::At(Slot { scheduled_for: *fire_at, offset: TimeDelta::zero() }),
            Schedule::Cron(recurrence) => match recurrence.next_after(now) {
                Some(scheduled_for) => {
                    Plan::At(Slot { scheduled_for, offset: spread_offset(id, self.spread, recurrence, now) })
                }
                None => Plan::Never,
            },
        }
    }

    /// What an alarm in this status does when its schedule becomes this one; `None`: it stays as it is.
    pub fn replan(&self, id: AlarmId, status: Status, now: DateTime<Utc>) -> Option<Plan> {
        match (status, self.plan(id, now, now)) {
            // What was cancelled stays so, whatever is edited.
            (Status::Cancelled, _) => None,
            // What is over is brought back by an instant ahead, never by one that has passed.
            (Status::Fired | Status::Failed, Plan::Missed { .. }) => None,
            (Status::Active | Status::Paused | Status::Fired | Status::Failed, plan) => Some(plan),
        }
    }

    /// Whether both are due at the same instants. Other policies may differ: they apply without a new plan.
    pub fn is_same_schedule(&self, other: &Self) -> bool {
        self.schedule == other.schedule && self.spread == other.spread
    }

    /// How late an occurrence may be when it is first claimed; `None`: as late as it likes.
    pub fn lateness_limit(&self) -> Option<TimeDelta> {
        match self.misfire {
            Misfire::Skip => Some(self.max_lateness.unwrap_or(LATENESS_UNDER_SKIP)),
            Misfire::FireOnce | Misfire::FireAll => self.max_lateness,
        }
    }
}

/// Where in its spread an alarm fires: a hash of its id, so that a thousand alarms of one minute lie scattered over the
/// window and each keeps its place. Shorter than the window, and than the smallest of the next gaps, so that no slot is
/// moved onto the next one.
pub fn spread_offset(id: AlarmId, window: TimeDelta, recurrence: &Recurrence, now: DateTime<Utc>) -> TimeDelta {
    if window <= TimeDelta::zero() {
        return TimeDelta::zero();
    }
    let room = recurrence.smallest_gap(now).map_or(window, |gap| window.min(gap));
    let hash = Sha256::digest(id.as_uuid().as_bytes());
    let hash = u64::from_be_bytes(hash[..8].try_into().expect("a digest has 32 bytes"));
    let micros = u128::try_from(room.num_microseconds().unwrap_or(i64::MAX)).unwrap_or(0);
    // hash / 2^64 of the room, rounded down: at most one microsecond less than the room.
    let offset = (u128::from(hash) * micros) >> 64;
    TimeDelta::microseconds(i64::try_from(offset).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;
    use crate::domain::schedule::{Window, Zone};

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn timing(schedule: Schedule) -> Timing {
        Timing { schedule, spread: TimeDelta::zero(), misfire: Misfire::FireOnce, max_lateness: None }
    }

    fn once(fire_at: &str) -> Timing {
        timing(Schedule::Once { fire_at: at(fire_at) })
    }

    fn recurrence(expr: &str) -> Recurrence {
        let window = Window::new(at("2026-01-01T00:00:00Z"), None, None);
        Recurrence::parse(expr, Zone::utc(), window).unwrap()
    }

    const ID: AlarmId = AlarmId::from_uuid(Uuid::from_u128(7));

    fn sharp(instant: &str) -> Plan {
        Plan::At(Slot { scheduled_for: at(instant), offset: TimeDelta::zero() })
    }

    #[test]
    fn an_instant_before_birth_is_missed_and_one_after_it_fires_however_late_it_is_seen() {
        let alarm = once("2026-11-16T12:00:00Z");
        let now = at("2026-11-16T13:00:00Z");
        assert_eq!(alarm.plan(ID, now, at("2026-11-16T11:59:59Z")), sharp("2026-11-16T12:00:00Z"));
        assert_eq!(alarm.plan(ID, now, at("2026-11-16T12:00:00Z")), sharp("2026-11-16T12:00:00Z"));
        assert_eq!(alarm.plan(ID, now, now), Plan::Missed { due: at("2026-11-16T12:00:00Z") });
    }

    #[test]
    fn an_edit_brings_back_what_is_over_only_for_an_instant_ahead() {
        let now = at("2026-11-16T12:00:00Z");
        let (past, ahead) = (once("2026-11-16T11:00:00Z"), once("2026-11-16T13:00:00Z"));
        for over in [Status::Fired, Status::Failed] {
            assert_eq!(past.replan(ID, over, now), None);
            assert_eq!(ahead.replan(ID, over, now), Some(sharp("2026-11-16T13:00:00Z")));
        }
        assert_eq!(ahead.replan(ID, Status::Cancelled, now), None);
        assert!(matches!(past.replan(ID, Status::Active, now), Some(Plan::Missed { .. })));
    }

    #[test]
    fn a_series_begins_after_now_or_not_at_all() {
        let now = at("2026-11-16T12:00:00Z");
        let plan = |expr: &str| timing(Schedule::Cron(recurrence(expr))).plan(ID, now, now);
        assert_eq!(plan("0 12 * * *"), sharp("2026-11-17T12:00:00Z"));
        assert_eq!(plan("0 12 30 2 *"), Plan::Never);
    }

    #[test]
    fn skip_without_a_limit_of_its_own_means_a_minute() {
        let mut alarm = once("2026-11-16T12:00:00Z");
        assert_eq!(alarm.lateness_limit(), None);
        alarm.misfire = Misfire::Skip;
        assert_eq!(alarm.lateness_limit(), Some(TimeDelta::seconds(60)));
        alarm.max_lateness = Some(TimeDelta::seconds(5));
        assert_eq!(alarm.lateness_limit(), Some(TimeDelta::seconds(5)));
    }

    #[test]
    fn every_word_finds_its_way_back() {
        for status in Status::ALL {
            assert_eq!(Status::try_from(status.as_str().to_owned()), Ok(*status));
        }
        assert_eq!(Misfire::try_from("never".to_owned()).unwrap_err().to_string(), "\"never\" is no misfire policy");
    }

    proptest! {
        #[test]
        fn a_spread_stays_in_its_window_and_before_the_next_slot(id in any::<u128>(), window in 0_i64..100_000) {
            let id = AlarmId::from_uuid(Uuid::from_u128(id));
            let now = at("2026-11-16T12:00:00Z");
            for (expr, gap) in [("* * * * *", 60), ("0 9 * * *", 86_400), ("@every 7s", 7)] {
                let offset = spread_offset(id, TimeDelta::seconds(window), &recurrence(expr), now);
                prop_assert!(offset >= TimeDelta::zero());
                prop_assert!(offset < TimeDelta::seconds(window.min(gap)).max(TimeDelta::microseconds(1)));
            }
        }
    }

    #[test]
    fn alarms_of_one_minute_scatter_over_their_window() {
        let (rule, now) = (recurrence("0 9 * * *"), at("2026-11-16T12:00:00Z"));
        let offset = |id: u128| spread_offset(AlarmId::from_uuid(Uuid::from_u128(id)), TimeDelta::hours(1), &rule, now);
        // A quarter of an hour each: of 400 none holds fewer than half of its share.
        let mut quarters = [0; 4];
        for id in 0..400 {
            quarters[usize::try_from(offset(id).num_minutes() / 15).unwrap()] += 1;
        }
        assert!(quarters.iter().all(|count| *count > 50), "{quarters:?}");
        // Written down: it must not move with an upgrade while `spread_offset` is stored and shown.
        assert_eq!(offset(7), TimeDelta::microseconds(1_514_259_854));
    }
}
