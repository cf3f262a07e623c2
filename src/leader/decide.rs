//! What to do about a Lease as it was read.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::time::Instant;

use super::LEASE;

/// The longest that a Lease is believed to last. Nobody of ours writes more than [`LEASE`]; a slip of somebody's hand must
/// not keep everybody waiting for years.
const LONGEST: Duration = Duration::from_secs(60);

/// What a Lease says, whatever else may or may not be in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Another with every write: the holder's sign of life.
    pub version: String,
    /// `None`: it is free. Never empty.
    pub holder: Option<String>,
    /// How long it holds without a sign of life.
    pub duration: Duration,
}

impl Record {
    pub fn of(lease: &Lease) -> Self {
        let spec = lease.spec.as_ref();
        let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
        Self {
            version: lease.metadata.resource_version.clone().unwrap_or_default(),
            holder: spec.and_then(|spec| spec.holder_identity.clone()).filter(|holder| !holder.is_empty()),
            duration: match seconds {
                None | Some(0) => LEASE,
                Some(seconds) => Duration::from_secs(seconds).min(LONGEST),
            },
        }
    }
}

/// A record, and when it was first seen to be so, on our own monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub record: Record,
    pub at: Instant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is none: make it, as ours.
    Create,
    /// Free, or its holder has shown no sign of life for its whole duration: write it as ours.
    Take,
    /// Ours: show that we live.
    Renew,
    /// Another's.
    Wait { holder: String },
}

/// `seen` is what was seen before `lease` was read. The wall clock's times in a Lease have no say.
pub fn decide(lease: Option<&Record>, me: &str, seen: Option<&Seen>, now: Instant) -> Decision {
    match (lease, seen) {
        (None, None) => Decision::Create,
        // Deleted under its holder, who does not know yet and leads on until it finds out.
        (None, Some(seen)) => match &seen.record.holder {
            Some(holder) if holder != me && !run_out(seen, now) => Decision::Wait { holder: holder.clone() },
            Some(_) | None => Decision::Create,
        },
        (Some(record), seen) => match &record.holder {
            None => Decision::Take,
            Some(holder) if holder == me => Decision::Renew,
            Some(holder) => match seen {
                Some(seen) if seen.record == *record && run_out(seen, now) => Decision::Take,
                Some(_) | None => Decision::Wait { holder: holder.clone() },
            },
        },
    }
}

fn run_out(seen: &Seen, now: Instant) -> bool {
    now.saturating_duration_since(seen.at) >= seen.record.duration
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{
        api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp,
    };
    use kube::api::ObjectMeta;

    use super::*;

    fn record(version: u32, holder: &str) -> Record {
        Record { version: version.to_string(), holder: Some(holder.to_owned()), duration: LEASE }
    }

    fn waits(holder: &str) -> Decision {
        Decision::Wait { holder: holder.to_owned() }
    }

    #[test]
    fn a_lease_that_is_missing_or_free_is_taken_and_ones_own_is_renewed() {
        let now = Instant::now();
        assert_eq!(decide(None, "me", None, now), Decision::Create);
        let free = Record { holder: None, ..record(1, "") };
        assert_eq!(decide(Some(&free), "me", None, now), Decision::Take);
        assert_eq!(decide(Some(&record(1, "me")), "me", None, now), Decision::Renew);
    }

    #[test]
    fn anothers_lease_is_taken_when_it_was_seen_unchanged_for_its_whole_duration() {
        let (at, held) = (Instant::now(), record(1, "other"));
        let seen = Seen { record: held.clone(), at };
        assert_eq!(decide(Some(&held), "me", None, at), waits("other"), "seen for the first time");
        let just_before = at + LEASE - Duration::from_nanos(1);
        assert_eq!(decide(Some(&held), "me", Some(&seen), just_before), waits("other"));
        assert_eq!(decide(Some(&held), "me", Some(&seen), at + LEASE), Decision::Take);
        let renewed = record(2, "other");
        assert_eq!(decide(Some(&renewed), "me", Some(&seen), at + LEASE), waits("other"), "a sign of life");
    }

    #[test]
    fn ones_own_earlier_life_is_another() {
        assert_eq!(decide(Some(&record(1, "pod_1")), "pod_2", None, Instant::now()), waits("pod_1"));
    }

    #[test]
    fn a_lease_deleted_under_its_holder_is_left_alone_as_long_as_the_holder_may_lead() {
        let at = Instant::now();
        let seen = |holder: &str| Seen { record: record(1, holder), at };
        assert_eq!(decide(None, "me", Some(&seen("other")), at), waits("other"));
        assert_eq!(decide(None, "me", Some(&seen("other")), at + LEASE), Decision::Create);
        assert_eq!(decide(None, "me", Some(&seen("me")), at), Decision::Create);
    }

    #[test]
    fn strange_leases_are_read_without_trust() {
        let of = |holder: Option<&str>, seconds: Option<i32>| {
            let spec = LeaseSpec {
                holder_identity: holder.map(str::to_owned),
                lease_duration_seconds: seconds,
                // A clock that is years ahead: it must not matter.
                renew_time: Some(MicroTime(Timestamp::MAX)),
                ..LeaseSpec::default()
            };
            let metadata = ObjectMeta { resource_version: Some("7".to_owned()), ..ObjectMeta::default() };
            Record::of(&Lease { metadata, spec: Some(spec) })
        };
        let read = |holder: Option<&str>, duration| Record {
            version: "7".to_owned(),
            holder: holder.map(str::to_owned),
            duration,
        };
        assert_eq!(of(Some("a"), Some(20)), read(Some("a"), Duration::from_secs(20)));
        assert_eq!(of(Some("a"), None), read(Some("a"), LEASE));
        assert_eq!(of(Some("a"), Some(0)), read(Some("a"), LEASE));
        assert_eq!(of(Some("a"), Some(-5)), read(Some("a"), LEASE));
        assert_eq!(of(Some("a"), Some(i32::MAX)), read(Some("a"), LONGEST));
        assert_eq!(of(Some(""), Some(1)), read(None, Duration::from_secs(1)));
        assert_eq!(of(None, Some(15)), read(None, LEASE));
        let empty = Record { version: String::new(), holder: None, duration: LEASE };
        assert_eq!(Record::of(&Lease::default()), empty);
    }
}
