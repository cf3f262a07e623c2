//! The client of the router, against a real server.

use std::time::Duration;

use chronos::{
    domain::{
        ids::{AlarmId, DeliveryId},
        occurrence::Answer,
        payload::Payload,
        wake::Wake,
    },
    router::Router,
};
use uuid::Uuid;

use crate::support::{PATIENCE, Reply, Sink, WAKE_TOKEN, with_tls};

fn wake() -> Wake {
    Wake {
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

#[tokio::test]
async fn a_date_to_come_back_at_is_measured_by_the_clock_of_the_answer() {
    with_tls();
    let sink = Sink::start().await;
    let retry_after = "Sun, 06 Nov 1994 08:51:37 GMT";
    sink.reply([
        Reply::RetryAt { retry_after, date: "Sun, 06 Nov 1994 08:49:37 GMT" },
        Reply::RetryAt { retry_after, date: "yesterday" },
    ]);
    let router = Router::new(sink.url.parse().unwrap(), &WAKE_TOKEN.into(), PATIENCE).unwrap();
    for expected in [Some(Duration::from_secs(120)), None] {
        let Answer::Unavailable { retry_after, .. } = router.wake(&wake()).await else { panic!("503 is unavailable") };
        assert_eq!(retry_after, expected);
    }
}
