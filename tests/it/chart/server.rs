//! Every variant as the real API server takes it, in a namespace where pods must be `restricted`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{apply, file, objects, rendered, variant, variants};
use crate::support::{Namespace, eventually};

/// Unknown fields are errors, and everything is asked that a real write would be asked; nothing is written.
const TRY: &[&str] = &["--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"];

#[tokio::test]
async fn every_variant_is_accepted_where_pods_are_restricted() {
    let namespace = strict_namespace().await;
    for team in ["team-a", "team-b"] {
        namespace.kubectl(&["create", "namespace", team]).await; // of the variant that watches them
    }
    know_monitoring(&namespace).await;
    for values in variants() {
        let yaml = rendered(&namespace.name, &["--values", &values]).await;
        let (accepted, said) = apply(&namespace, &yaml, TRY).await;
        assert!(accepted && !said.contains("Warning"), "{values}: {said}");
        // A Deployment is taken whatever its pods are like: they are judged when they are made. So they are made here.
        let pods = pods(&objects(&yaml), &namespace.name);
        assert!(!pods.is_empty());
        let (accepted, said) = apply(&namespace, &documents(&pods), TRY).await;
        assert!(accepted && !said.contains("Warning"), "{values}: {said}");
    }

    let loose = rendered(&namespace.name, &["--values", &variant("default"), "--set", "podSecurityContext=null"]).await;
    let (accepted, said) = apply(&namespace, &documents(&pods(&objects(&loose), &namespace.name)), TRY).await;
    assert!(!accepted && said.contains("violates PodSecurity \"restricted"), "the namespace does not judge: {said}");
}

async fn strict_namespace() -> Namespace {
    let namespace = Namespace::fresh().await;
    let labels = ["enforce", "warn"].map(|mode| format!("pod-security.kubernetes.io/{mode}=restricted"));
    let (labelled, said) = namespace.kubectl(&["label", "namespace", &namespace.name, &labels[0], &labels[1]]).await;
    assert!(labelled, "{said}");
    namespace
}

/// The kinds of the Prometheus operator, from its own module.
async fn know_monitoring(namespace: &Namespace) {
    let assets = std::env::var("KUBEBUILDER_ASSETS").expect("make sets it");
    let crds = format!("{assets}/prometheus-operator-crds.yaml");
    let (applied, said) = namespace.kubectl(&["apply", "--server-side", "-f", &crds]).await;
    assert!(applied, "{said}");
    eventually("the API server serves them", || async {
        namespace.kubectl(&["get", "servicemonitors,podmonitors,prometheusrules"]).await.0.then_some(())
    })
    .await;
}

/// The pods that controllers would make of these objects, and those that are there as such.
fn pods(objects: &[Value], namespace: &str) -> Vec<Value> {
    let mut pods = Vec::new();
    for object in objects {
        let name = object["metadata"]["name"].as_str().unwrap();
        let mut pod = object["spec"]["template"].clone();
        if pod.is_null() {
            continue;
        }
        // What a StatefulSet's controller adds.
        for claim in object["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
            let volume = json!({ "name": claim["metadata"]["name"], "persistentVolumeClaim": { "claimName": "x" } });
            pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
        }
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["name"] = json!(format!("{name}-of-a-controller"));
        pod["metadata"]["namespace"] = json!(namespace);
        pods.push(pod);
    }
    pods
}

/// JSON is YAML.
fn documents(objects: &[Value]) -> String {
    objects.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n")
}

/// A definition goes through helm's hands unchanged.
#[tokio::test]
async fn the_definitions_are_those_of_the_program() {
    let yaml = rendered("here", &["--values", &variant("default"), "--show-only", "templates/crds.yaml"]).await;
    let mut program = chronos::crd::all().to_vec();
    program.sort_by_key(ResourceExt::name_any);
    let chart: Vec<CustomResourceDefinition> =
        objects(&yaml).into_iter().map(|crd| serde_json::from_value(crd).unwrap()).collect();
    assert_eq!(chart.len(), program.len());
    for (chart, program) in chart.iter().zip(&program) {
        assert_eq!((chart.name_any(), &chart.spec), (program.name_any(), &program.spec));
    }
}

/// Only the way there differs: what `kubectl apply` of old keeps in an annotation has room for it.
#[tokio::test]
async fn a_rendered_chart_is_applied_by_hand_too() {
    let namespace = strict_namespace().await;
    let yaml =
        rendered(&namespace.name, &["--values", &variant("trial"), "--set", "crds.enabled=false", "--no-hooks"]).await;
    let (_folder, path) = file(&yaml);
    let (applied, said) = namespace.kubectl(&["apply", "--validate=strict", "-f", path.to_str().unwrap()]).await;
    assert!(applied, "{said}");
    // Nothing of it is in anybody's way: its names in the cluster carry the namespace's.
    let (deleted, said) = namespace.kubectl(&["delete", "--wait=false", "-f", path.to_str().unwrap()]).await;
    assert!(deleted, "{said}");
}
