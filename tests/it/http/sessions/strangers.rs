//! A session is its owner's alone: for everybody else there is none, and nothing tells one that is not theirs from one that is not there.

use reqwest::Method;
use serde_json::json;

use super::{ID, SESSION, checkpoint, door, of_session, said, send, timer};
use crate::support::{AgentKey, api::Api};

/// Sessions as a stranger may ask for them: hers, one that nobody has, and what is no key at all.
const KEYS: [&str; 5] =
    ["ann:portfolio-agent:thread_7", "ann:portfolio-agent:none", "ann:portfolio-agent", "nonsense", "%ff%00"];

/// Status and body, to the byte.
async fn answer(api: &Api, method: Method, path: &str, body: Option<&serde_json::Value>) -> (u16, String) {
    let request = api.request(method, path);
    let request = body.iter().fold(request, |request, body| request.body(body.to_string()));
    let answer = api.send(request).await;
    (answer.status, answer.text)
}

#[tokio::test]
async fn a_strangers_session_is_read_as_one_that_is_not_there() {
    let (_world, daemon, ann) = door().await;
    ann.post(&of_session("/events"), &said("hello")).await.data();
    // Another user, and the same user with another key.
    for stranger in [AgentKey::of("bob"), AgentKey::of("ann")] {
        let stranger = stranger.sign_in(&daemon.api_url()).await;
        let unknown = answer(&stranger, Method::GET, "/v1/sessions/bob:agent:none", None).await;
        assert_eq!(unknown.0, 404);
        for key in KEYS {
            for rest in ["", "/events", "/effects"] {
                let seen = answer(&stranger, Method::GET, &format!("/v1/sessions/{key}{rest}"), None).await;
                assert_eq!(seen, unknown, "byte for byte the same: {key}{rest}");
            }
        }
        let event = Some(said("hi"));
        let told = answer(&stranger, Method::POST, &of_session("/events"), event.as_ref()).await;
        assert_eq!(told, unknown, "nor does anybody write into it");
    }
    // Nobody makes a session in another user's name.
    let bob = AgentKey::of("bob").sign_in(&daemon.api_url()).await;
    let unknown = answer(&bob, Method::GET, "/v1/sessions/bob:agent:none", None).await;
    let event = Some(said("hi"));
    assert_eq!(answer(&bob, Method::POST, "/v1/sessions/ann:agent:new/events", event.as_ref()).await, unknown);
    assert_eq!(ann.get("/v1/sessions/ann:agent:new").await.status, 404);
    assert_eq!(ann.get(SESSION).await.data()["last_seq"], 1);
}

#[tokio::test]
async fn nothing_in_a_strangers_session_is_seen_or_touched() {
    let (_world, daemon, ann) = door().await;
    ann.post(&of_session("/events"), &said("hello")).await.data();
    let effects = json!([send("hi"), timer("t", "2090-01-01T00:00:00Z")]);
    let stored = ann.post(&of_session("/checkpoints"), &checkpoint("c1", 1, &effects)).await.data();
    ann.post(&of_session("/events"), &json!({ "type": "tool_result", "payload": { "tool_id": "t", "payload": 1 } }))
        .await
        .data();
    let effect = stored["effects"][0]["id"].as_str().unwrap();

    let body = checkpoint("c2", 2, &json!([]));
    let routes = [
        (Method::POST, "/checkpoints".to_owned(), Some(&body)),
        (Method::POST, format!("/effects/{effect}/ack"), None),
        (Method::POST, format!("/effects/{ID}/ack"), None),
        (Method::POST, "/effects/nonsense/ack".to_owned(), None),
        (Method::GET, "/timers".to_owned(), None),
        (Method::GET, "/timers/t".to_owned(), None),
        (Method::GET, "/timers/none".to_owned(), None),
        (Method::DELETE, "/timers/t".to_owned(), None),
        (Method::DELETE, "/timers/%00".to_owned(), None),
        (Method::DELETE, "/timers/%ff".to_owned(), None),
    ];
    let unknown = answer(&ann, Method::GET, "/v1/sessions/ann:agent:none", None).await;
    for stranger in [AgentKey::of("bob"), AgentKey::of("ann")] {
        let stranger = stranger.sign_in(&daemon.api_url()).await;
        for key in KEYS {
            for (method, rest, body) in &routes {
                let seen = answer(&stranger, method.clone(), &format!("/v1/sessions/{key}{rest}"), *body).await;
                assert_eq!(seen, unknown, "byte for byte the same: {method} {key}{rest}");
            }
        }
    }
    // Nor does the owner see more of what is not there.
    let long = format!("/timers/{}", "x".repeat(257));
    for rest in ["/timers/none", "/timers/%00", "/timers/%ff", &long] {
        assert_eq!(answer(&ann, Method::GET, &of_session(rest), None).await, unknown, "{rest:.20}");
    }
    for id in [ID, "nonsense", &effect.replace('-', ""), &format!("%7B{effect}%7D")] {
        let path = of_session(&format!("/effects/{id}/ack"));
        assert_eq!(answer(&ann, Method::POST, &path, None).await, unknown, "{id}");
    }
    let session = ann.get(SESSION).await.data();
    assert_eq!((&session["event_seq"], &session["pending_effects"]), (&json!(1), &json!(1)));
    assert_eq!(ann.get(&of_session("/timers/t")).await.data()["status"], "pending");
}
