//! The test bed does to a control plane what its words say: tests of faults are worth nothing if it does not.

use std::time::Duration;

use futures::{StreamExt, pin_mut};
use k8s_openapi::api::{core::v1::ConfigMap, events::v1::Event};
use kube::{
    Api, Client,
    api::{ListParams, PostParams, WatchParams},
    core::{ObjectMeta, WatchEvent},
};
use serde_json::json;

use crate::support::{ControlPlane, Namespace, PATIENCE, cluster::client, eventually};

/// Longer than an API server needs for an answer, unless it is frozen.
const NO_ANSWER: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_control_plane_is_killed_frozen_compacted_and_rewound_as_it_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (policy, log) = (folder.path().join("policy.yaml"), folder.path().join("audit.log"));
    std::fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n").unwrap();
    let flags =
        [("policy-file", &policy), ("log-path", &log)].map(|(flag, path)| format!("--audit-{flag}={}", path.display()));
    let plane = ControlPlane::start_with(&flags).await;
    let maps = maps(client(plane.kubeconfig()).await);
    make(&maps, "first").await;
    plane.snapshot("early").await;
    make(&maps, "second").await;

    plane.kill_apiserver().await;
    assert!(maps.get("second").await.is_err());
    plane.start_apiserver().await;
    assert_eq!(names(&maps).await, ["first", "second"]);

    plane.kill_etcd().await;
    assert!(answer(&maps).await.is_none_or(|answer| answer.is_err()), "nobody knows what is stored");
    plane.start_etcd().await;
    eventually("the API server finds etcd again", || async { answer(&maps).await?.ok() }).await;

    plane.freeze_apiserver().await;
    assert!(answer(&maps).await.is_none());
    plane.thaw_apiserver().await;
    assert_eq!(names(&maps).await, ["first", "second"]);

    let before = make(&maps, "third").await;
    make(&maps, "fourth").await;
    plane.compact().await;
    plane.compact().await;
    assert_eq!(since(&maps, &before).await, Ok("fourth".to_owned()), "the API server remembers");
    plane.kill_apiserver().await;
    plane.start_apiserver().await;
    assert_eq!(since(&maps, &before).await, Err(410));

    plane.restore("early").await;
    assert_eq!(names(&maps).await, ["first"]);
    plane.kill_apiserver().await;
    plane.kill_etcd().await;
    plane.restore("early").await;
    assert_eq!(names(&maps).await, ["first"]);
    assert!(std::fs::read_to_string(log).unwrap().contains("configmaps/first"));
}

#[tokio::test]
async fn a_control_plane_of_ones_own_knows_our_resources_when_it_is_told_to() {
    let plane = ControlPlane::start().await;
    let bare = plane.bare_namespace().await;
    assert!(bare.agents().list(&ListParams::default()).await.is_err());
    let (found, said) = bare.kubectl(&["get", "alarms"]).await;
    assert!(!found && said.contains("the server doesn't have a resource type"), "{said}");
    let namespace = plane.namespace().await;
    assert_eq!(namespace.agents().list(&ListParams::default()).await.unwrap().items.len(), 0);
    assert_eq!(
        namespace.kubectl(&["get", "alarms"]).await,
        (true, format!("No resources found in {} namespace.\n", namespace.name))
    );
}

#[tokio::test]
async fn what_is_told_of_an_object_is_found_and_what_is_told_of_others_is_not() {
    let namespace = Namespace::fresh().await;
    let events: Api<Event> = Api::namespaced(namespace.client(), &namespace.name);
    for (object, reason) in [("tea", "Brewed"), ("coffee", "Ground"), ("tea", "Drunk")] {
        let event = json!({
            "metadata": { "name": format!("{object}.{reason}").to_lowercase() },
            "eventTime": format!("2026-11-16T09:00:0{}.000000Z", reason.len()),
            "reportingController": "test", "reportingInstance": "test", "action": "Test",
            "regarding": { "kind": "Alarm", "name": object, "namespace": namespace.name },
            "type": "Normal", "reason": reason, "note": format!("{object} was {reason}"),
        });
        events.create(&PostParams::default(), &serde_json::from_value(event).unwrap()).await.unwrap();
    }
    let told = [("Normal", "Drunk", "tea was Drunk"), ("Normal", "Brewed", "tea was Brewed")];
    let told = told.map(|(kind, reason, note)| (kind.to_owned(), reason.to_owned(), note.to_owned()));
    assert_eq!(namespace.events_of("tea").await, told);
}

fn maps(client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, "default")
}

/// Its version.
async fn make(maps: &Api<ConfigMap>, name: &str) -> String {
    let map =
        ConfigMap { metadata: ObjectMeta { name: Some(name.to_owned()), ..Default::default() }, ..Default::default() };
    maps.create(&PostParams::default(), &map).await.unwrap().metadata.resource_version.unwrap()
}

async fn names(maps: &Api<ConfigMap>) -> Vec<String> {
    let listed = maps.list(&ListParams::default()).await.unwrap();
    listed.items.into_iter().map(|map| map.metadata.name.unwrap()).collect()
}

/// What etcd has, not what the API server remembers of it; `None` if nobody says anything.
async fn answer(maps: &Api<ConfigMap>) -> Option<kube::Result<ConfigMap>> {
    tokio::time::timeout(NO_ANSWER, maps.get("first")).await.ok()
}

/// The first thing that happened after that version, or the status that refuses to tell.
async fn since(maps: &Api<ConfigMap>, version: &str) -> Result<String, u16> {
    let events = maps.watch(&WatchParams::default(), version).await.unwrap();
    pin_mut!(events);
    match tokio::time::timeout(PATIENCE, events.next()).await.unwrap().unwrap().unwrap() {
        WatchEvent::Added(map) => Ok(map.metadata.name.unwrap()),
        WatchEvent::Error(status) => Err(status.code),
        other @ (WatchEvent::Modified(_) | WatchEvent::Deleted(_) | WatchEvent::Bookmark(_)) => panic!("{other:?}"),
    }
}
