//! The client of the router, against real servers: what it sends, and what it makes of what it gets.

mod exchange;
mod payload;
mod signature;

use std::{sync::Arc, time::Duration};

use chronos::{
    clock,
    domain::{
        ids::{AlarmId, DeliveryId},
        occurrence::Answer,
        payload::Payload,
        signature::SigningKey,
        trace::Trace,
        wake::{Addressee, Wake},
    },
    router::{Addresses, Router, Secrets},
};
use uuid::Uuid;

use crate::support::{PATIENCE, Reply, Sink, WAKE_TOKEN, with_tls};

const TRACE: Trace = Trace { trace_id: 0x4bf9, span_id: 0xb7, sampled: true };

fn wake() -> Wake {
    Wake {
        to: Addressee::Agent,
        alarm_id: AlarmId::from_uuid(Uuid::from_u128(1)),
        delivery_id: DeliveryId::from_uuid(Uuid::from_u128(2)),
        scheduled_for: "2026-11-16T09:00:00Z".parse().unwrap(),
        attempt: 1,
        kind: "once".into(),
        label: String::new(),
        owner_did: "did:matrix:ann:d75a980182b10ab7".into(),
        user_id: "ann".into(),
        conversation_id: String::new(),
        message: "the tea is ready".into(),
        payload: Payload::default(),
        correlation_id: "trace-1".into(),
        missed: 0,
    }
}

pub fn router(url: &str, timeout: Duration) -> Router {
    router_that_signs(url, timeout, Vec::new(), clock::system())
}

fn router_that_signs(url: &str, timeout: Duration, keys: Vec<SigningKey>, clock: Arc<dyn clock::Clock>) -> Router {
    with_tls();
    let url: url::Url = url.parse().unwrap();
    let addresses = Addresses { router: url.clone(), sink: url };
    let secrets = Secrets { wake_token: WAKE_TOKEN.into(), sink_token: WAKE_TOKEN.into(), signing_keys: keys };
    Router::new(addresses, secrets, timeout, clock).unwrap()
}

#[tokio::test]
async fn a_wake_says_in_its_headers_what_it_is() {
    let sink = Sink::start().await;
    router(&sink.url, PATIENCE).wake(&wake(), &TRACE).await;
    let headers = &sink.received()[0].headers;
    let told = |name: &str| headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let (alarm, delivery) = ("00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002");
    let bearer = format!("Bearer {WAKE_TOKEN}");
    for (name, expected) in [
        ("authorization", Some(bearer.as_str())),
        ("content-type", Some("application/json")),
        ("idempotency-key", Some(delivery)),
        ("webhook-id", Some(delivery)),
        ("ce-id", Some(delivery)),
        ("ce-specversion", Some("1.0")),
        ("ce-type", Some("dev.chronos.alarm.fired")),
        ("ce-source", Some("/chronos")),
        ("ce-subject", Some(alarm)),
        ("ce-time", Some("2026-11-16T09:00:00Z")),
        ("traceparent", Some("00-00000000000000000000000000004bf9-00000000000000b7-01")),
        // No secret, no signature.
        ("webhook-timestamp", None),
        ("webhook-signature", None),
    ] {
        assert_eq!(told(name).as_deref(), expected, "{name}");
    }
}

#[tokio::test]
async fn a_date_to_come_back_at_is_measured_by_the_clock_of_the_answer() {
    let sink = Sink::start().await;
    let retry_after = "Sun, 06 Nov 1994 08:51:37 GMT";
    sink.reply([
        Reply::RetryAt { retry_after, date: "Sun, 06 Nov 1994 08:49:37 GMT" },
        Reply::RetryAt { retry_after, date: "yesterday" },
    ]);
    let router = router(&sink.url, PATIENCE);
    for expected in [Some(Duration::from_secs(120)), None] {
        let Answer::Unavailable { retry_after, .. } = router.wake(&wake(), &TRACE).await else {
            panic!("503 is unavailable")
        };
        assert_eq!(retry_after, expected);
    }
}
