//! A wake as it goes over the wire: its body and headers, by whom it is for. Pure.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::domain::{
    rfc3339, rfc3339_millis,
    trace::Trace,
    wake::{Addressee, Wake},
};

/// What an agent is told, and a session with its own three fields besides.
#[derive(Serialize)]
struct Body<'a> {
    user_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    conversation_id: &'a str,
    message: &'a str,
    /// The very bytes the agent stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    alarm_id: String,
    origin: &'static str,
    delivery_id: String,
    scheduled_for: String,
    attempt: u32,
    kind: &'a str,
    label: &'a str,
    owner_did: &'a str,
    correlation_id: &'a str,
    missed: u64,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    promoted: Option<Promoted<'a>>,
}

/// The event that a session's timer has become.
#[derive(Serialize)]
struct Promoted<'a> {
    session_key: &'a str,
    timer_id: &'a str,
    event_seq: i64,
}

/// The event `DueTimeReached`, with the names of the timers' own document.
#[derive(Serialize)]
struct DueTimeReached<'a> {
    tenant_id: &'a str,
    service_call_id: &'a str,
    correlation_id: &'a str,
    due_at: String,
    reached_at: String,
    /// Always there: whoever decodes events of one type wants them of one shape.
    payload: &'a RawValue,
    delivery_id: String,
}

pub fn body(wake: &Wake) -> Vec<u8> {
    let body = match &wake.to {
        Addressee::Agent => serde_json::to_vec(&Body::of(wake)),
        Addressee::Session { key, timer_id, event_seq } => serde_json::to_vec(&Body {
            conversation_id: key.thread_id(),
            // What is to be said, the agent finds in the session's log.
            message: "",
            promoted: Some(Promoted { session_key: key.as_str(), timer_id, event_seq: *event_seq }),
            ..Body::of(wake)
        }),
        Addressee::ServiceCall { id, reached_at } => serde_json::to_vec(&DueTimeReached {
            tenant_id: &wake.owner_did,
            service_call_id: id.as_str(),
            correlation_id: &wake.correlation_id,
            due_at: rfc3339_millis(wake.scheduled_for),
            reached_at: rfc3339_millis(*reached_at),
            payload: payload(wake),
            delivery_id: wake.delivery_id.to_string(),
        }),
    };
    body.expect("texts, numbers and valid JSON always serialise")
}

impl<'a> Body<'a> {
    fn of(wake: &'a Wake) -> Self {
        Self {
            user_id: &wake.user_id,
            conversation_id: &wake.conversation_id,
            message: &wake.message,
            payload: (!wake.payload.is_empty()).then(|| payload(wake)),
            alarm_id: wake.alarm_id.to_string(),
            origin: "chronos",
            delivery_id: wake.delivery_id.to_string(),
            scheduled_for: rfc3339(wake.scheduled_for),
            attempt: wake.attempt,
            kind: &wake.kind,
            label: &wake.label,
            owner_did: &wake.owner_did,
            correlation_id: &wake.correlation_id,
            missed: wake.missed,
            promoted: None,
        }
    }
}

/// The very bytes that were stored.
fn payload(wake: &Wake) -> &RawValue {
    serde_json::from_str(wake.payload.as_str()).expect("a Payload is valid JSON")
}

/// What a receiver dedupes and routes on without opening the body: the delivery id, the CloudEvents attributes, and the
/// trace that it belongs to.
pub fn headers(wake: &Wake, trace: &Trace) -> HeaderMap {
    let delivery = wake.delivery_id.to_string();
    let alarm = || wake.alarm_id.to_string();
    let (kind, subject, time) = match &wake.to {
        Addressee::Agent => ("dev.chronos.alarm.fired", alarm(), rfc3339(wake.scheduled_for)),
        Addressee::Session { .. } => ("dev.chronos.session.timer-promoted", alarm(), rfc3339(wake.scheduled_for)),
        // A service call knows itself, and nothing of alarms.
        Addressee::ServiceCall { id, .. } => {
            ("dev.chronos.timer.due-time-reached", id.to_string(), rfc3339_millis(wake.scheduled_for))
        }
    };
    let trace = trace.to_string();
    let pairs: [(&'static str, &str); 9] = [
        ("idempotency-key", &delivery),
        ("webhook-id", &delivery),
        ("ce-id", &delivery),
        ("ce-specversion", "1.0"),
        ("ce-type", kind),
        ("ce-source", "/chronos"),
        ("ce-subject", &subject),
        ("ce-time", &time),
        ("traceparent", &trace),
    ];
    pairs.into_iter().map(|(name, text)| (HeaderName::from_static(name), value(text))).collect()
}

/// When this attempt was sent, and the signatures over id, instant and body.
pub fn signed(timestamp: i64, signatures: &str) -> [(HeaderName, HeaderValue); 2] {
    [
        (HeaderName::from_static("webhook-timestamp"), HeaderValue::from(timestamp)),
        (HeaderName::from_static("webhook-signature"), value(signatures)),
    ]
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("ids, instants and base64 are visible ASCII")
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::{
        ids::{AlarmId, DeliveryId},
        payload::Payload,
    };

    fn wake(payload: &str, conversation_id: &str) -> Wake {
        Wake {
            to: Addressee::Agent,
            alarm_id: AlarmId::from_uuid(Uuid::from_u128(1)),
            delivery_id: DeliveryId::from_uuid(Uuid::from_u128(2)),
            scheduled_for: "2026-11-16T09:00:00.500Z".parse().unwrap(),
            attempt: 2,
            kind: "once".into(),
            label: "tea".into(),
            owner_did: "did:matrix:ann:d75a980182b10ab7".into(),
            user_id: "ann".into(),
            conversation_id: conversation_id.into(),
            message: "the tea is \"ready\"".into(),
            payload: Payload::parse(payload.into()).unwrap(),
            correlation_id: "trace-1".into(),
            missed: 0,
        }
    }

    #[test]
    fn a_wake_says_everything_and_leaves_out_what_is_empty() {
        let body = String::from_utf8(body(&wake("{}", ""))).unwrap();
        assert_eq!(
            body,
            r#"{"user_id":"ann","message":"the tea is \"ready\"","alarm_id":"00000000-0000-0000-0000-000000000001","#
                .to_owned()
                + r#""origin":"chronos","delivery_id":"00000000-0000-0000-0000-000000000002","#
                + r#""scheduled_for":"2026-11-16T09:00:00.500Z","attempt":2,"kind":"once","label":"tea","#
                + r#""owner_did":"did:matrix:ann:d75a980182b10ab7","correlation_id":"trace-1","missed":0}"#
        );
    }

    #[test]
    fn the_payload_keeps_its_bytes() {
        let payload = "{\"b\": 1e2, \"a\":1.0, \"big\":12345678901234567890}";
        let body = String::from_utf8(body(&wake(payload, "conv"))).unwrap();
        assert!(body.contains(&format!("\"payload\":{payload},")), "{body}");
        assert!(body.contains("\"conversation_id\":\"conv\","), "{body}");
    }

    #[test]
    fn a_receiver_can_dedupe_on_the_headers_alone() {
        let wake = wake("{}", "");
        let headers = headers(&wake, &Trace::of(&wake.correlation_id, wake.delivery_id, 7));
        for name in ["idempotency-key", "webhook-id", "ce-id"] {
            assert_eq!(headers[name], "00000000-0000-0000-0000-000000000002");
        }
        assert_eq!(headers["ce-time"], "2026-11-16T09:00:00.500Z");
        assert_eq!(headers["traceparent"], "00-00000000000000000000000000000002-0000000000000007-01");
    }

    fn due_time_reached(payload: &str) -> Wake {
        let to = Addressee::ServiceCall {
            id: "call-7:a".parse().unwrap(),
            reached_at: "2026-11-16T09:00:00.512999Z".parse().unwrap(),
        };
        Wake { to, ..wake(payload, "") }
    }

    #[test]
    fn a_service_call_is_told_what_its_own_document_names_and_nothing_else() {
        let event = |payload: &str| String::from_utf8(body(&due_time_reached(payload))).unwrap();
        let expected = |payload: &str| {
            r#"{"tenant_id":"did:matrix:ann:d75a980182b10ab7","service_call_id":"call-7:a","correlation_id":"trace-1","#
                .to_owned()
                + r#""due_at":"2026-11-16T09:00:00.500Z","reached_at":"2026-11-16T09:00:00.512Z","#
                + &format!(r#""payload":{payload},"delivery_id":"00000000-0000-0000-0000-000000000002"}}"#)
        };
        for payload in ["{}", r#"{"b": 1e2, "a":1.0}"#, "[ ]", "null"] {
            assert_eq!(event(payload), expected(payload));
        }
    }

    #[test]
    fn an_event_of_a_service_call_says_so_in_its_headers() {
        let event = due_time_reached("{}");
        let headers = headers(&event, &Trace::of(&event.correlation_id, event.delivery_id, 7));
        assert_eq!(headers["ce-type"], "dev.chronos.timer.due-time-reached");
        assert_eq!(
            (&headers["ce-subject"], &headers["ce-time"]),
            (&"call-7:a".parse().unwrap(), &"2026-11-16T09:00:00.500Z".parse().unwrap())
        );
        for name in ["idempotency-key", "webhook-id", "ce-id"] {
            assert_eq!(headers[name], "00000000-0000-0000-0000-000000000002");
        }
    }

    #[test]
    fn a_session_is_told_which_event_its_timer_has_become() {
        let to =
            Addressee::Session { key: "ann:agent:thread_7".parse().unwrap(), timer_id: "tea".into(), event_seq: 42 };
        // Whatever the wake was made with.
        let wake = Wake { to, ..wake(r#"{"a": 1}"#, "another") };
        let body = String::from_utf8(body(&wake)).unwrap();
        assert_eq!(
            body,
            r#"{"user_id":"ann","conversation_id":"thread_7","message":"","payload":{"a": 1},"#.to_owned()
                + r#""alarm_id":"00000000-0000-0000-0000-000000000001","origin":"chronos","#
                + r#""delivery_id":"00000000-0000-0000-0000-000000000002","scheduled_for":"2026-11-16T09:00:00.500Z","#
                + r#""attempt":2,"kind":"once","label":"tea","owner_did":"did:matrix:ann:d75a980182b10ab7","#
                + r#""correlation_id":"trace-1","missed":0,"#
                + r#""session_key":"ann:agent:thread_7","timer_id":"tea","event_seq":42}"#
        );
        let headers = headers(&wake, &Trace::of(&wake.correlation_id, wake.delivery_id, 7));
        assert_eq!(headers["ce-type"], "dev.chronos.session.timer-promoted");
        assert_eq!(headers["ce-subject"], "00000000-0000-0000-0000-000000000001");
    }
}
