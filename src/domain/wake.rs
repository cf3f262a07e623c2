//! What a wake says: everything the router and the agent behind it are told about one attempt at one occurrence.

use chrono::{DateTime, Utc};

use super::{
    ids::{AlarmId, DeliveryId, ServiceCallId},
    payload::Payload,
    session::SessionKey,
};

/// Whom a wake is for. It decides where the wake goes and what its body is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addressee {
    /// The owner itself, woken by its alarm.
    Agent,
    /// A service call, told that its timer's due time was reached.
    ServiceCall {
        id: ServiceCallId,
        /// Postgres' time of the claim. Each attempt has its own; the one that is taken is what the timer's row says, too.
        reached_at: DateTime<Utc>,
    },
    /// A session, told that its timer is an event of its log now.
    Session { key: SessionKey, timer_id: String, event_seq: i64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    pub to: Addressee,
    pub alarm_id: AlarmId,
    pub delivery_id: DeliveryId,
    pub scheduled_for: DateTime<Utc>,
    /// 1 for the first.
    pub attempt: u32,
    pub kind: String,
    pub label: String,
    pub owner_did: String,
    pub user_id: String,
    /// Empty: the agent opens a fresh conversation.
    pub conversation_id: String,
    pub message: String,
    pub payload: Payload,
    pub correlation_id: String,
    /// Slots folded into this wake.
    pub missed: u64,
}
