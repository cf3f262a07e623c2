//! Worked examples, one or more for every operation: what to send, and what comes back.

use serde_json::{Value, json};

const DID: &str = "did:matrix:11111111-2222-3333-4444-555555555555:d75a980182b10ab7";
const NONCE: &str = "kq0Zl3lq1n1m8mEJ6i5YcVqyO2wTnA9d";
const ID: &str = "019a8f6e-3c1a-7b52-9d7e-0f3a5c2b1d4e";

const SESSION: &str = "11111111-2222-3333-4444-555555555555:portfolio-agent:thread-7";
const EVENT: &str = "019a8f6d-77aa-7c3d-8e21-5b6f7a8c9d01";

/// Examples of an operation's body, by name.
pub fn requests(operation: &str) -> Value {
    match operation {
        "challenge" => one("Any agent", json!({ "did": DID })),
        "verify" => one(
            "The answer to a challenge",
            json!({
                "did": DID,
                "public_key": "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
                "nonce": NONCE,
                "signature": "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
            }),
        ),
        "createAlarm" | "putAlarmByKey" => json!({
            "after": {
                "summary": "Once, after ten minutes",
                "value": { "kind": "once", "delay_seconds": 600, "wake_message": "Check if the transaction confirmed." }
            },
            "at": {
                "summary": "Once, at an instant",
                "value": { "kind": "once", "fire_at": "2030-06-16T09:00:00Z", "wake_message": "Meeting reminder." }
            },
            "series": {
                "summary": "Every working day at nine in New York",
                "value": {
                    "kind": "cron", "cron_expr": "0 9 * * MON-FRI", "timezone": "America/New_York",
                    "label": "daily portfolio summary", "labels": { "team": "portfolio" }, "conversation_id": "conv_abc123",
                    "wake_message": "Generate the daily portfolio summary.", "payload": { "task": "daily_summary" },
                    "max_failures": 3
                }
            }
        }),
        "patchAlarm" => json!({
            "move": { "summary": "Another time", "value": { "cron_expr": "30 8 * * MON-FRI" } },
            "default": { "summary": "Back to the default", "value": { "max_failures": null, "labels": { "team": null } } }
        }),
        "rearmAlarm" => json!({
            "again": { "summary": "At the next instant of its series", "value": {} },
            "later": { "summary": "In an hour", "value": { "delay_seconds": 3600 } }
        }),
        "bulkAlarms" => one(
            "What would be cancelled?",
            json!({ "action": "cancel", "selector": "team=portfolio", "status": "active,paused", "dry_run": true }),
        ),
        "previewSchedule" => one(
            "The next two mornings in Berlin",
            json!({ "cron_expr": "30 2 * * *", "timezone": "Europe/Berlin", "from": "2026-03-28T12:00:00Z", "n": 2 }),
        ),
        "appendSessionEvent" => json!({
            "user": { "summary": "The user said something", "value": { "id": EVENT, "type": "user_message", "payload": { "text": "Remind me tomorrow." } } },
            "tool": {
                "summary": "A tool found something",
                "value": { "type": "tool_result", "payload": { "tool_id": "call_7", "payload": { "price": 101.5 } } }
            }
        }),
        "storeCheckpoint" => json!({
            "reply": {
                "summary": "An answer, and a follow-up tomorrow",
                "value": {
                    "checkpoint_id": "1ef7a1c2", "event_seq": 1,
                    "effects": [
                        { "type": "send_message", "payload": { "content": "I will." } },
                        {
                            "type": "schedule_timer",
                            "payload": { "timer_id": "follow-up", "fire_at": "2026-11-17T09:00:00+01:00", "payload": { "about": "rent" } }
                        }
                    ]
                }
            },
            "nothing": { "summary": "Nothing to be done", "value": { "checkpoint_id": "1ef7a1c3", "event_seq": 2 } }
        }),
        "putTimer" => json!({
            "at": { "summary": "At an instant", "value": { "due_at": "2030-06-16T09:00:00.000Z" } },
            "traced": {
                "summary": "With the request's trace, and something for whoever receives the event",
                "value": {
                    "due_at": "2030-06-16T09:00:00.000Z", "correlation_id": "0af7651916cd43dd8448eb211c80319c",
                    "payload": { "step": "charge the card" }
                }
            }
        }),
        other => unreachable!("{other} takes no body"),
    }
}

/// The data of an operation's success.
pub fn answer(operation: &str) -> Value {
    match operation {
        "identity" => json!({ "service": "chronosd", "version": "0.1.0", "health": "/healthz" }),
        "health" => json!({ "status": "ok", "version": "0.1.0", "db": true, "tzdb": "2026e" }),
        "challenge" => {
            let message = format!("matrix-chronos-auth:{DID}:{NONCE}");
            json!({ "did": DID, "nonce": NONCE, "message": message, "expires_in": 120 })
        }
        "verify" => json!({
            "token": "ZGlkOm1hdHJpeDo….kX2h1c…", "owner_user_id": "11111111-2222-3333-4444-555555555555", "expires_in": 86400
        }),
        "createAlarm" => json!({
            "id": ID, "status": "active", "next_fire_at": "2026-11-17T14:00:00Z", "scheduled_for": "2026-11-17T14:00:00Z",
            "deduped": false
        }),
        "listAlarms" => json!({ "alarms": [alarm("active")], "count": 1 }),
        "getAlarm" | "patchAlarm" | "resumeAlarm" | "fireAlarm" | "rearmAlarm" => alarm("active"),
        "pauseAlarm" => alarm("paused"),
        "cancelAlarm" => with(alarm("cancelled"), json!({ "in_flight": false })),
        "putAlarmByKey" => with(alarm("active"), json!({ "created": true, "changed": true })),
        "listAttempts" => json!({
            "attempts": [
                {
                    "delivery_id": "b1946ac9-2492-5d23-8f1c-3d8f0a7e6c55", "scheduled_for": "2026-11-16T14:00:00Z", "attempt": 1,
                    "started_at": "2026-11-16T14:00:00.012Z", "duration_ms": 41, "outcome": "delivered", "http_status": 202,
                    "error": "", "worker": "019a8f00-11aa-7c3d-8e21-5b6f7a8c9d01"
                },
                {
                    "delivery_id": "0f6a2d5e-7c1b-5a3e-9d42-6b8e1c7f2a90", "scheduled_for": "2026-11-13T14:00:00Z", "attempt": 0,
                    "started_at": "2026-11-13T15:00:00Z", "duration_ms": 0, "outcome": "skipped", "http_status": null, "error": "",
                    "worker": null, "first_at": "2026-11-12T14:00:00Z", "last_at": "2026-11-13T14:00:00Z", "slots": 2,
                    "reason": "paused"
                }
            ],
            "count": 2
        }),
        "bulkAlarms" => {
            json!({ "matched": 3, "changed": 2, "skipped": 1, "ids": [ID, "019a8f6e-3c1a-7b52-9d7e-0f3a5c2b1d4f"], "truncated": false })
        }
        "previewSchedule" => json!({
            "description": "at 02:30 every day, Europe/Berlin", "timezone": "Europe/Berlin", "tzdb": "2026e",
            "fires": [
                {
                    "scheduled_for": "2026-03-29T01:00:00Z", "local": "2026-03-29T03:00:00+02:00",
                    "note": "the clock skips 02:30; fires when it has", "effective_at": "2026-03-29T01:00:00Z"
                },
                {
                    "scheduled_for": "2026-03-30T00:30:00Z", "local": "2026-03-30T02:30:00+02:00", "note": null,
                    "effective_at": "2026-03-30T00:30:00Z"
                }
            ]
        }),
        "getSession" => json!({
            "session_key": SESSION, "last_seq": 1, "event_seq": 1, "consecutive_autonomous_msgs": 0, "last_autonomous_at": null,
            "pending_timers": 1, "pending_effects": 1, "created_at": "2026-11-16T08:00:00.123456Z"
        }),
        "appendSessionEvent" => with(event(), json!({ "deduped": false })),
        "listSessionEvents" => json!({ "events": [event()], "count": 1 }),
        "storeCheckpoint" => json!({
            "checkpoint_id": "1ef7a1c2", "event_seq": 1,
            "effects": [
                { "id": ID, "type": "send_message", "status": "pending", "dedupe_key": "4f1c".repeat(16) },
                {
                    "id": "019a8f6e-3c1a-7b52-9d7e-0f3a5c2b1d4f", "type": "schedule_timer", "status": "completed",
                    "dedupe_key": "a07e".repeat(16)
                }
            ],
            "replaced_timers": []
        }),
        "listSessionEffects" => json!({
            "effects": [{
                "id": ID, "checkpoint_id": "1ef7a1c2", "type": "send_message", "payload": { "content": "I will." },
                "dedupe_key": "4f1c".repeat(16), "status": "pending", "attempt_count": 0, "last_attempt_at": null,
                "created_at": "2026-11-16T08:00:01Z", "updated_at": "2026-11-16T08:00:01Z"
            }],
            "count": 1
        }),
        "acknowledgeSessionEffect" => json!({ "id": ID, "status": "completed" }),
        "listSessionTimers" => json!({ "timers": [timer("pending")], "count": 1 }),
        "getSessionTimer" => timer("pending"),
        "cancelSessionTimer" => timer("cancelled"),
        "putServiceCall" => json!({ "tenant_id": DID, "service_call_id": "call-7" }),
        "deleteServiceCall" => json!({ "deleted": true, "in_flight": false }),
        "putTimer" => call_timer(Value::Null, "Scheduled"),
        "getTimer" => call_timer(json!("2030-06-16T09:00:00.012Z"), "Reached"),
        "traceTimers" => json!({ "timers": [call_timer(Value::Null, "Scheduled")], "count": 1 }),
        other => unreachable!("{other} is no operation"),
    }
}

/// What `/healthz` says of itself without a database.
pub fn degraded() -> Value {
    json!({ "status": "degraded", "version": "0.1.0", "db": false, "tzdb": "2026e" })
}

fn alarm(status: &str) -> Value {
    let always = json!({
        "id": ID, "label": "daily portfolio summary", "labels": { "team": "portfolio" }, "kind": "cron",
        "cron_expr": "0 9 * * MON-FRI", "timezone": "America/New_York", "starts_at": null, "ends_at": null,
        "spread_seconds": 0, "description": "at 09:00 on Monday through Friday, America/New_York",
        "scheduled_for": "2026-11-17T14:00:00Z", "upcoming": [], "conversation_id": "conv_abc123",
        "wake_message": "Generate the daily portfolio summary.", "payload": { "task": "daily_summary" }, "status": status,
        "paused_by": [], "idempotency_key": "daily-summary-v1", "correlation_id": "0af7651916cd43dd8448eb211c80319c",
        "misfire": "fire_once", "max_lateness_seconds": null, "max_failures": 3, "failure_count": 0, "last_error": "",
        "fired_count": 12, "missed_count": 0, "cancelled_by": null, "source": "api", "resource": null, "revision": 4,
        "created_at": "2026-10-30T08:00:00Z", "updated_at": "2026-11-16T14:00:00.053Z", "last_fired_at": "2026-11-16T14:00:00.053Z"
    });
    match status {
        "active" => {
            let upcoming = ["2026-11-17T14:00:00Z", "2026-11-18T14:00:00Z"];
            with(always, json!({ "next_fire_at": "2026-11-17T14:00:00Z", "upcoming": upcoming }))
        }
        "paused" => with(always, json!({ "paused_by": ["owner"] })),
        "cancelled" => with(always, json!({ "cancelled_by": "owner" })),
        other => unreachable!("no example of an alarm that is {other}"),
    }
}

fn event() -> Value {
    json!({
        "id": EVENT, "seq": 1, "type": "user_message", "payload": { "text": "Remind me tomorrow." },
        "created_at": "2026-11-16T08:00:00.123456Z"
    })
}

fn timer(status: &str) -> Value {
    json!({
        "timer_id": "follow-up", "fire_at": "2026-11-17T08:00:00Z", "payload": { "about": "rent" }, "status": status,
        "created_at": "2026-11-16T08:00:01Z", "updated_at": "2026-11-16T08:00:01Z"
    })
}

#[expect(clippy::needless_pass_by_value, reason = "made where it is passed")]
fn call_timer(reached_at: Value, state: &str) -> Value {
    json!({
        "tenant_id": DID, "service_call_id": "call-7", "correlation_id": "0af7651916cd43dd8448eb211c80319c",
        "due_at": "2030-06-16T09:00:00.000Z", "registered_at": "2030-06-15T08:00:00.417Z", "reached_at": reached_at,
        "state": state
    })
}

fn with(mut value: Value, more: Value) -> Value {
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}

fn one(summary: &str, value: Value) -> Value {
    json!({ "example": { "summary": summary, "value": value } })
}
