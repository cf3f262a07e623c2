//! What a wake says: everything the router and the agent behind it are told about one attempt at one occurrence.

use chrono::{DateTime, Utc};

use super::{
    ids::{AlarmId, DeliveryId},
    payload::Payload,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
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
