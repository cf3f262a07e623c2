//! Nobody learns anything about somebody else's alarm: on every route, for every id, whatever is asked.

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, TestRunner},
};
use reqwest::Method;
use serde_json::{Value, json};

use super::{created, door, in_an_hour};
use crate::support::AgentKey;

/// Every route that takes an id, with what a caller might send.
fn requests(id: &str) -> Vec<(Method, String, Option<Value>)> {
    let path = format!("/v1/alarms/{id}");
    vec![
        (Method::GET, path.clone(), None),
        (Method::DELETE, path.clone(), None),
        (Method::PATCH, path.clone(), Some(json!({ "label": "x" }))),
        (Method::GET, format!("{path}/attempts"), None),
        (Method::POST, format!("{path}/pause"), None),
        (Method::POST, format!("{path}/resume"), None),
        (Method::POST, format!("{path}/fire"), None),
        (Method::POST, format!("{path}/rearm"), None),
        (Method::POST, format!("{path}/rearm"), Some(json!({ "delay_seconds": 60 }))),
        (Method::POST, "/v1/schedules/preview".into(), Some(json!({ "cron_expr": "@daily", "alarm_id": id }))),
    ]
}

#[tokio::test]
async fn a_foreign_id_is_answered_to_the_byte_like_one_that_nobody_has() {
    let (world, daemon, ann) = door().await;
    let bob = AgentKey::of("bob").sign_in(&daemon.api_url()).await;
    let id = created(&ann, &in_an_hour()).await;
    // Timers of other subjects are nobody's alarms, not even their owner's.
    let mut db = world.database.connect().await;
    let timer = created(&ann, &in_an_hour()).await;
    crate::support::alarms::execute(
        &mut db,
        &format!(
            "INSERT INTO service_calls (tenant_id, service_call_id) SELECT owner_did, 'call' FROM alarms WHERE id = '{timer}';
             UPDATE alarms SET subject = 'service_call', service_call_id = 'call', registered_at = now() WHERE id = '{timer}'"
        ),
    )
    .await;

    // Well-formed ones, near misses of the real one, and anything else.
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let others = prop_oneof![
        any::<u128>().prop_map(|number| uuid::Uuid::from_u128(number).to_string()),
        (0..36_usize).prop_map({
            let id = id.clone();
            move |at| id.char_indices().map(|(index, c)| if index == at { 'g' } else { c }).collect()
        }),
        "[a-zA-Z0-9_.~-]{1,40}",
    ];
    // Other spellings of a foreign id are no other way in.
    let mut ids: Vec<String> =
        vec![id.clone(), timer.clone(), id.replace('-', ""), format!("{{{id}}}"), format!("urn:uuid:{id}")];
    // `bulk` and `by-key` are paths of their own.
    ids.extend((0..40).map(|_| others.new_tree(&mut runner).unwrap().current()).filter(|id| id != "bulk"));

    let unknown = requests(&uuid::Uuid::nil().to_string());
    for (number, (method, path, body)) in unknown.iter().enumerate() {
        let expected = bob.send(with(&bob, method, path, body.as_ref())).await;
        assert_eq!(expected.refusal(), (404, "not_found", ""), "{method} {path}: {}", expected.text);
        for id in &ids {
            let (method, path, body) = &requests(id)[number];
            let answer = bob.send(with(&bob, method, path, body.as_ref())).await;
            assert_eq!((answer.status, &answer.text), (404, &expected.text), "{method} {path}");
            let headers = |answer: &crate::support::api::Answer| {
                let mut names: Vec<String> = answer.headers.keys().map(ToString::to_string).collect();
                names.sort();
                names
            };
            assert_eq!(headers(&answer), headers(&expected), "{method} {path}");
        }
        // The owner of a timer does not see it here, either.
        let (method, path, body) = &requests(&timer)[number];
        assert_eq!(ann.send(with(&ann, method, path, body.as_ref())).await.text, expected.text, "{method} {path}");
    }
    let mine = ann.get(&super::path(&id)).await.data();
    assert_eq!((&mine["status"], &mine["revision"]), (&json!("active"), &json!(1)));
}

fn with(api: &crate::support::api::Api, method: &Method, path: &str, body: Option<&Value>) -> reqwest::RequestBuilder {
    let request = api.request(method.clone(), &path.replace('{', "%7B").replace('}', "%7D"));
    match body {
        Some(body) => request.header("content-type", "application/json").body(body.to_string()),
        None => request,
    }
}
