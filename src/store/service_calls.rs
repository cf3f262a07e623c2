//! Table `service_calls`, and the timer that each may have: a row of `alarms` with subject `service_call`.
//!
//! The tenant is the caller's DID. It is an argument of every function and comes first in every WHERE. Everything that
//! makes, changes or deletes a timer on a caller's behalf locks the call first and the timer then.

use chrono::{DateTime, Utc};
use sqlx::{Connection, FromRow, PgConnection};

use super::{Result, Store};
use crate::domain::{access::Did, alarm::Status, ids::ServiceCallId, payload::Payload};

/// A service call's timer.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct Timer {
    #[sqlx(rename = "owner_did", try_from = "String")]
    pub tenant: Did,
    #[sqlx(rename = "service_call_id", try_from = "String")]
    pub call: ServiceCallId,
    pub correlation_id: String,
    /// The nominal instant, never a retry's.
    #[sqlx(rename = "scheduled_for")]
    pub due_at: DateTime<Utc>,
    /// When it was last asked for.
    pub registered_at: DateTime<Utc>,
    #[sqlx(rename = "last_fired_at")]
    pub reached_at: Option<DateTime<Utc>>,
    #[sqlx(rename = "status", try_from = "String")]
    pub state: State,
}

/// Scheduled to reached is the only way a timer goes; a timer that is asked for again is scheduled again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Scheduled,
    Reached,
}

impl State {
    /// As the timers' document spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "Scheduled",
            Self::Reached => "Reached",
        }
    }
}

impl TryFrom<String> for State {
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn try_from(word: String) -> Result<Self, Self::Error> {
        match Status::try_from(word)? {
            Status::Active => Ok(Self::Scheduled),
            Status::Fired => Ok(Self::Reached),
            status @ (Status::Paused | Status::Cancelled | Status::Failed) => {
                Err(format!("a timer of a service call is never {}", status.as_str()).into())
            }
        }
    }
}

macro_rules! columns {
    () => {
        "owner_did, service_call_id, correlation_id, scheduled_for, registered_at, last_fired_at, status"
    };
}

/// The command `ScheduleTimer`.
#[derive(Debug)]
pub struct Command<'a> {
    pub tenant: &'a Did,
    pub call: &'a ServiceCallId,
    pub due_at: DateTime<Utc>,
    /// `None`: the one it has stays.
    pub correlation_id: Option<&'a str>,
    /// What a timer is given that has none: the request's trace id, or one made up.
    pub fallback_correlation_id: &'a str,
    pub payload: &'a Payload,
}

/// What became of a request to delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// Whether there was such a call.
    pub deleted: bool,
    /// A claim on its timer existed: the event may still arrive.
    pub in_flight: bool,
}

impl Store {
    /// Registers a call. Again changes nothing.
    pub async fn register_service_call(&self, tenant: &Did, call: &ServiceCallId) -> Result<()> {
        self.ask("registering a service call", async |db| {
            sqlx::query("INSERT INTO service_calls (tenant_id, service_call_id) VALUES ($1, $2) ON CONFLICT DO NOTHING")
                .bind(tenant.as_str())
                .bind(call.as_str())
                .execute(db)
                .await
                .map(|_| ())
        })
        .await
    }

    /// Deletes a call and, by the cascade, its timer, which leaves its trace in `attempts`.
    pub async fn delete_service_call(&self, tenant: &Did, call: &ServiceCallId) -> Result<Deleted> {
        self.ask("deleting a service call", async |db| {
            let mut transaction = db.begin().await?;
            if !lock_call(&mut transaction, tenant, call).await? {
                return Ok(Deleted { deleted: false, in_flight: false });
            }
            let in_flight: Option<bool> = sqlx::query_scalar(
                "SELECT claim_token IS NOT NULL FROM alarms
                 WHERE owner_did = $1 AND service_call_id = $2 AND subject = 'service_call' FOR UPDATE",
            )
            .bind(tenant.as_str())
            .bind(call.as_str())
            .fetch_optional(&mut *transaction)
            .await?;
            sqlx::query("DELETE FROM service_calls WHERE tenant_id = $1 AND service_call_id = $2")
                .bind(tenant.as_str())
                .bind(call.as_str())
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await?;
            Ok(Deleted { deleted: true, in_flight: in_flight.unwrap_or(false) })
        })
        .await
    }

    /// Makes the call's timer, or plans it anew, reached or not: another epoch fences what is in flight. The same command
    /// while the timer is scheduled only renews `registered_at`. `None`: no such call.
    pub async fn schedule_timer_if_registered(&self, command: &Command<'_>) -> Result<Option<Timer>> {
        self.ask("scheduling a service call's timer", async |db| {
            let mut transaction = db.begin().await?;
            // One command at a time: of two that are the same, the second sees the first.
            if !lock_call(&mut transaction, command.tenant, command.call).await? {
                return Ok(None);
            }
            if let Some(timer) = renew_if_same(&mut transaction, command).await? {
                transaction.commit().await?;
                return Ok(Some(timer));
            }
            let timer = plan(&mut transaction, command).await?;
            transaction.commit().await?;
            self.horizon.hint(db, timer.due_at.max(timer.registered_at), timer.registered_at).await;
            Ok(Some(timer))
        })
        .await
    }

    pub async fn find_timer(&self, tenant: &Did, call: &ServiceCallId) -> Result<Option<Timer>> {
        self.ask("reading a service call's timer", async |db| {
            sqlx::query_as(concat!(
                "SELECT ",
                columns!(),
                " FROM alarms WHERE owner_did = $1 AND service_call_id = $2 AND subject = 'service_call'"
            ))
            .bind(tenant.as_str())
            .bind(call.as_str())
            .fetch_optional(db)
            .await
        })
        .await
    }

    /// The tenant's timers of one request, in the order in which they are due.
    pub async fn timers_by_correlation(&self, tenant: &Did, correlation_id: &str, limit: i64) -> Result<Vec<Timer>> {
        self.ask("tracing a request's timers", async |db| {
            sqlx::query_as(include_str!("sql/timers_by_correlation.sql"))
                .bind(tenant.as_str())
                .bind(correlation_id)
                .bind(limit)
                .fetch_all(db)
                .await
        })
        .await
    }
}

/// Whether there is such a call. Nobody deletes it, nor commands its timer, until this transaction ends.
async fn lock_call(db: &mut PgConnection, tenant: &Did, call: &ServiceCallId) -> Result<bool, sqlx::Error> {
    let found = sqlx::query("SELECT FROM service_calls WHERE tenant_id = $1 AND service_call_id = $2 FOR UPDATE")
        .bind(tenant.as_str())
        .bind(call.as_str())
        .fetch_optional(db)
        .await?;
    Ok(found.is_some())
}

async fn renew_if_same(db: &mut PgConnection, command: &Command<'_>) -> Result<Option<Timer>, sqlx::Error> {
    sqlx::query_as(concat!(
        "UPDATE alarms SET registered_at = now()
         WHERE owner_did = $1 AND service_call_id = $2 AND subject = 'service_call' AND status = 'active'
           AND scheduled_for = $3 AND correlation_id = coalesce($4, correlation_id) AND payload::text = $5
         RETURNING ",
        columns!()
    ))
    .bind(command.tenant.as_str())
    .bind(command.call.as_str())
    .bind(command.due_at)
    .bind(command.correlation_id)
    .bind(command.payload.as_str())
    .fetch_optional(db)
    .await
}

async fn plan(db: &mut PgConnection, command: &Command<'_>) -> Result<Timer, sqlx::Error> {
    sqlx::query_as(concat!(include_str!("sql/plan_timer.sql"), columns!()))
        .bind(command.tenant.as_str())
        .bind(command.tenant.user_id())
        .bind(command.call.as_str())
        .bind(command.correlation_id)
        .bind(command.fallback_correlation_id)
        .bind(command.due_at)
        .bind(command.payload.as_str())
        .fetch_one(db)
        .await
}
