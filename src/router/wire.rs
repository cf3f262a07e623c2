//! The wake as it goes over the wire. Pure.

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::domain::{trace::Trace, wake::Wake};

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
}

pub fn body(wake: &Wake) -> Vec<u8> {
    let raw = || serde_json::from_str(wake.payload.as_str()).expect("a Payload is valid JSON");
    let body = Body {
        user_id: &wake.user_id,
        conversation_id: &wake.conversation_id,
        message: &wake.message,
        payload: (!wake.payload.is_empty()).then(raw),
        alarm_id: wake.alarm_id.to_string(),
        origin: "chronos",
        delivery_id: wake.delivery_id.to_string(),
        scheduled_for: scheduled_for(wake),
        attempt: wake.attempt,
        kind: &wake.kind,
        label: &wake.label,
        owner_did: &wake.owner_did,
        correlation_id: &wake.correlation_id,
        missed: wake.missed,
    };
    serde_json::to_vec(&body).expect("texts, numbers and valid JSON always serialise")
}

/// What a receiver dedupes and routes on without opening the body: the delivery id, the CloudEvents attributes, and the
/// trace that it belongs to.
pub fn headers(wake: &Wake, trace: &Trace) -> HeaderMap {
    let delivery = wake.delivery_id.to_string();
    let alarm = wake.alarm_id.to_string();
    let time = scheduled_for(wake);
    let trace = trace.to_string();
    let pairs: [(&'static str, &str); 9] = [
        ("idempotency-key", &delivery),
        ("webhook-id", &delivery),
        ("ce-id", &delivery),
        ("ce-specversion", "1.0"),
        ("ce-type", "dev.chronos.alarm.fired"),
        ("ce-source", "/chronos"),
        ("ce-subject", &alarm),
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

fn scheduled_for(wake: &Wake) -> String {
    crate::domain::rfc3339(wake.scheduled_for)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::domain::{
        ids::{AlarmId, DeliveryId},
        payload::Payload,
        wake::Addressee,
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
}
