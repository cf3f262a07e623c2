//! Ids with types of their own: an alarm's id never stands where a claim's token belongs.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use thiserror::Error;
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            pub const fn as_uuid(self) -> Uuid {
                self.0
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

id! {
    /// One alarm, whatever becomes of it.
    AlarmId
}
id! {
    /// One occurrence of one alarm, the same over all its attempts: what a receiver dedupes on.
    DeliveryId
}
id! {
    /// The exclusive right to attempt, new with every claim.
    ClaimToken
}
id! {
    /// One effect that an agent asked for.
    EffectId
}
id! {
    /// One connection over which a session's sends go out.
    StreamId
}
id! {
    /// One start of one process.
    WorkerId
}
id! {
    /// A Kubernetes cluster: the uid of its `kube-system` namespace.
    ClusterId
}
id! {
    /// A Kubernetes object's uid.
    ResourceUid
}
id! {
    /// One event of one session: the client's choice, or ours. Means nothing without its session.
    EventId
}

/// Grows when an occurrence is re-planned (schedule edit, re-arm); part of the delivery id and of the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ScheduleEpoch(pub i64);

impl From<i64> for ScheduleEpoch {
    fn from(number: i64) -> Self {
        Self(number)
    }
}

/// A service call's name, given by the caller: 1 to 128 of `A-Z a-z 0-9 _ . : -`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ServiceCallId(String);

/// As the schema's CHECK has it.
const LONGEST_SERVICE_CALL_ID: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ServiceCallIdError {
    #[error("is {0} bytes long; a service call's id has 1 to {LONGEST_SERVICE_CALL_ID}")]
    Length(usize),
    #[error("has a character other than A-Z a-z 0-9 _ . : -")]
    Character,
}

impl ServiceCallId {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ServiceCallId {
    type Err = ServiceCallIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() || text.len() > LONGEST_SERVICE_CALL_ID {
            return Err(ServiceCallIdError::Length(text.len()));
        }
        if !text.chars().all(|c| c.is_ascii_alphanumeric() || "_.:-".contains(c)) {
            return Err(ServiceCallIdError::Character);
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for ServiceCallId {
    type Error = ServiceCallIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl fmt::Display for ServiceCallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name space of delivery ids. Any fixed UUID does; changing it would change the id of an occurrence that is
/// half way up its ladder, and receivers would take the retry for a second wake.
const DELIVERIES: Uuid = Uuid::from_u128(0x6368_726f_6e6f_735f_6465_6c69_7665_7279);

impl DeliveryId {
    /// A version 5 UUID over alarm, epoch and nominal instant: equal for every attempt at one occurrence, on any replica.
    pub fn of(alarm: AlarmId, epoch: ScheduleEpoch, scheduled_for: DateTime<Utc>) -> Self {
        let mut name = [0u8; 32];
        name[..16].copy_from_slice(alarm.0.as_bytes());
        name[16..24].copy_from_slice(&epoch.0.to_be_bytes());
        // Microseconds: what Postgres keeps of an instant.
        name[24..].copy_from_slice(&scheduled_for.timestamp_micros().to_be_bytes());
        Self(Uuid::new_v5(&DELIVERIES, &name))
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn a_service_calls_id_is_short_and_plain() {
        let id = |text: &str| text.parse::<ServiceCallId>();
        assert_eq!(id("0192-ab.c:D_7").unwrap().as_str(), "0192-ab.c:D_7");
        assert!(id(&"x".repeat(128)).is_ok());
        assert_eq!(id(""), Err(ServiceCallIdError::Length(0)));
        assert_eq!(id(&"x".repeat(129)), Err(ServiceCallIdError::Length(129)));
        for text in ["a b", "a/b", "é", "a\0"] {
            assert_eq!(id(text), Err(ServiceCallIdError::Character), "{text:?}");
        }
    }

    #[test]
    fn a_delivery_id_is_fixed_by_alarm_epoch_and_nominal_instant() {
        let alarm = AlarmId::from_uuid(Uuid::from_u128(7));
        let at = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let id = DeliveryId::of(alarm, ScheduleEpoch(1), at);

        assert_eq!(id, DeliveryId::of(alarm, ScheduleEpoch(1), at));
        assert_ne!(id, DeliveryId::of(alarm, ScheduleEpoch(2), at));
        assert_ne!(id, DeliveryId::of(alarm, ScheduleEpoch(1), at + TimeDelta::microseconds(1)));
        assert_ne!(id, DeliveryId::of(AlarmId::from_uuid(Uuid::from_u128(8)), ScheduleEpoch(1), at));
        // Written down: receivers have stored such ids.
        assert_eq!(id.to_string(), "cc9d59c0-8f87-5494-a7bf-956bab1e53a3");
    }
}
