//! Wakes are signed as Standard Webhooks has it: checked with that project's own library.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use chronos::{clock, domain::signature::SigningKey};
use standardwebhooks::Webhook;

use super::{TRACE, router_that_signs, wake};
use crate::support::{AgentKey, PATIENCE, Sink, World};

const OLD: &str = "whsec_b2xkIHNlY3JldCwgb2YgMjQgYnl0ZXMh";
const NEW: &str = "whsec_bmV3LXNlY3JldC1vZi1tb3JlLXRoYW4tMjQtYnl0ZXM=";
const OTHER: &str = "whsec_c29tZWJvZHkgZWxzZSdzIHNlY3JldCE=";

struct Stopped(DateTime<Utc>);

impl clock::Clock for Stopped {
    fn now(&self) -> DateTime<Utc> {
        self.0
    }
}

fn key(secret: &str) -> SigningKey {
    SigningKey::parse(secret).unwrap()
}

#[tokio::test]
async fn while_secrets_are_rotated_a_wake_verifies_with_each_of_them_and_with_no_other() {
    let sink = Sink::start().await;
    let router = router_that_signs(&sink.url, PATIENCE, vec![key(NEW), key(OLD)], clock::system());
    router.wake(&wake(), &TRACE).await;
    let received = &sink.received()[0];
    let verify = |secret: &str, body: &[u8]| Webhook::new(secret).unwrap().verify(body, &received.headers);
    for secret in [NEW, OLD] {
        verify(secret, &received.bytes).unwrap();
        let changed = String::from_utf8(received.bytes.to_vec()).unwrap().replace("tea", "sea");
        verify(secret, changed.as_bytes()).unwrap_err();
    }
    verify(OTHER, &received.bytes).unwrap_err();
}

#[tokio::test]
async fn a_signature_says_when_the_wake_was_sent_by_the_clock_that_was_handed_in() {
    let sink = Sink::start().await;
    let long_ago = Arc::new(Stopped("2026-11-16T09:00:00.999Z".parse().unwrap()));
    router_that_signs(&sink.url, PATIENCE, vec![key(NEW)], long_ago).wake(&wake(), &TRACE).await;
    let received = &sink.received()[0];
    assert_eq!(received.headers["webhook-timestamp"], "1794819600");
    let webhook = Webhook::new(NEW).unwrap();
    let theirs =
        webhook.sign(received.headers["webhook-id"].to_str().unwrap(), 1_794_819_600, &received.bytes).unwrap();
    assert_eq!(received.headers["webhook-signature"], theirs);
    webhook.verify(&received.bytes, &received.headers).expect_err("it is too old or too new by now");
}

#[tokio::test]
async fn chronosd_signs_with_the_secrets_of_its_configuration() {
    let world = World::new().await;
    let secrets = format!("{NEW},{OLD}");
    let daemon = world.chronosd_with("api,dispatch", &[("CHRONOS_WAKE_SIGNING_SECRET", &secrets)]).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    api.post_text("/v1/alarms", r#"{"kind":"once","delay_seconds":1,"wake_message":"é"}"#).await.data();
    let received = &world.sink.wakes(1).await[0];
    for secret in [NEW, OLD] {
        Webhook::new(secret).unwrap().verify(&received.bytes, &received.headers).unwrap();
    }
}
