//! Makes and cancels alarms over the facade, and remembers what it was told.

use std::{sync::Mutex, time::Duration};

use chrono::{DateTime, Utc};
use chronos::{clock, domain::rfc3339};
use futures::stream::{self, StreamExt};
use serde_json::{Value, json};
use uuid::Uuid;

use super::history::{Kind, Operation};
use crate::support::{AgentKey, api::Api, eventually};

pub struct Driver {
    api: Api,
    operations: Mutex<Vec<Operation>>,
}

impl Driver {
    /// Signs in as an agent of its own.
    pub async fn new(facade: &str) -> Self {
        Self { api: AgentKey::of("driver").sign_in(facade).await, operations: Mutex::default() }
    }

    /// A once alarm, due this long from now.
    pub async fn once(&self, label: &str, due_in: Duration) -> Uuid {
        self.once_with(label, due_in, &json!({})).await
    }

    /// The same, with more fields.
    pub async fn once_with(&self, label: &str, due_in: Duration, more: &Value) -> Uuid {
        self.once_at(label.to_owned(), clock::system().now() + due_in, more).await
    }

    /// As many once alarms, all due at one instant. Their labels are their numbers.
    pub async fn many(&self, count: usize, due_in: Duration) -> Vec<Uuid> {
        self.many_with(count, due_in, &json!({})).await
    }

    pub async fn many_with(&self, count: usize, due_in: Duration, more: &Value) -> Vec<Uuid> {
        let due_at = clock::system().now() + due_in;
        let posts = (0..count).map(|number| self.once_at(number.to_string(), due_at, more));
        stream::iter(posts).buffered(AT_ONCE).collect().await
    }

    /// A cron alarm with this period.
    pub async fn every(&self, label: &str, period: Duration) -> Uuid {
        let cron_expr = format!("@every {}s", period.as_secs());
        let body = json!({ "kind": "cron", "cron_expr": cron_expr, "label": label, "wake_message": "m" });
        self.create(&body, Kind::Every(period)).await
    }

    /// Cancels, and says whether a wake may still arrive.
    pub async fn cancel(&self, alarm_id: Uuid) -> bool {
        let view = self.api.delete(&format!("/v1/alarms/{alarm_id}")).await.data();
        let in_flight = view["in_flight"].as_bool().expect("a cancel says so");
        let answered_at = clock::system().now();
        assert_eq!(view["status"], "cancelled", "alarm {alarm_id} was over before it could be cancelled");
        self.note(Operation::Cancelled { alarm_id, answered_at, in_flight });
        in_flight
    }

    pub fn operations(&self) -> Vec<Operation> {
        self.operations.lock().unwrap().clone()
    }

    async fn once_at(&self, label: String, due_at: DateTime<Utc>, more: &Value) -> Uuid {
        let mut body = json!({ "kind": "once", "fire_at": rfc3339(due_at), "label": label, "wake_message": "m" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.create(&body, Kind::Once).await
    }

    /// As a good client does it: with a key, and again while the answer is that it may be tried again.
    async fn create(&self, body: &Value, kind: Kind) -> Uuid {
        let mut body = body.clone();
        body["idempotency_key"] = Uuid::now_v7().to_string().into();
        let view = eventually("the facade takes an alarm", || async {
            let answer = self.api.post("/v1/alarms", &body).await;
            let again = answer.body["error"]["retryable"] == true;
            (!again).then(|| answer.data())
        })
        .await;
        let alarm_id = view["id"].as_str().and_then(|id| id.parse().ok()).expect("an alarm has an id");
        self.note(Operation::Created { alarm_id, kind });
        alarm_id
    }

    fn note(&self, operation: Operation) {
        self.operations.lock().unwrap().push(operation);
    }
}

/// As many as the facade has connections for: every commit waits for the disk, and a flood of them is no test of ours.
const AT_ONCE: usize = 10;

/// Due as soon as it is stored.
pub const NOW: Duration = Duration::ZERO;
