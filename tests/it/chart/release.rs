//! A release over time: installed, upgraded, rolled back, removed, installed again. Without nodes: what pods do is for `make e2e`.

use serde_json::Value;

use super::{CHART, tool, variant};
use crate::support::Namespace;

struct Cluster<'a>(&'a Namespace);

impl Cluster<'_> {
    async fn try_helm(&self, arguments: &[&str]) -> (bool, String) {
        let kubeconfig = self.0.kubeconfig.to_str().unwrap();
        tool("helm", &[arguments, &["--kubeconfig", kubeconfig, "--namespace", &self.0.name]].concat()).await
    }

    async fn helm(&self, arguments: &[&str]) -> String {
        let (done, said) = self.try_helm(arguments).await;
        assert!(done, "{arguments:?}: {said}");
        said
    }

    /// The definitions are the tests' own: who made them may not give them to a release.
    async fn bring(&self, verb: &str, more: &[&str]) -> String {
        let values = variant("trial");
        let same = [verb, "chronos", CHART, "--values", &values, "--set", "crds.enabled=false"];
        self.helm(&[&same, more].concat()).await
    }

    async fn get(&self, kind: &str, name: &str) -> Value {
        let (found, said) = self.0.kubectl(&["get", kind, name, "-o", "json"]).await;
        assert!(found, "{said}");
        serde_json::from_str(&said).unwrap()
    }

    async fn secrets(&self) -> Value {
        self.get("secret", "chronos-trial").await["data"].clone()
    }
}

#[tokio::test]
async fn a_release_keeps_its_secrets_and_another_of_its_name_is_none_of_its_business() {
    let (here, there) = (Namespace::fresh().await, Namespace::fresh().await);
    let (here, there) = (Cluster(&here), Cluster(&there));
    let said = here.bring("install", &[]).await;
    let next = ["helm test chronos -n", "kubectl apply -n default -f examples/", "kubectl get alarms -A --watch"];
    assert!(next.iter().all(|command| said.contains(command)), "{said}");
    let secrets = here.secrets().await;
    let deployment = here.get("deployment", "chronos").await;

    here.bring("upgrade", &["--set", "mode=separate", "--set", "admissionPolicy.enabled=true"]).await;
    assert_eq!(here.secrets().await, secrets, "an upgrade makes no new password");
    assert!(!here.0.kubectl(&["get", "deployment", "chronos"]).await.0, "one per role takes its place");

    here.helm(&["rollback", "chronos", "1"]).await;
    assert_eq!(here.secrets().await, secrets);
    assert_eq!(here.get("deployment", "chronos").await["spec"], deployment["spec"]);

    // Helm would refuse what another release owns.
    there.bring("install", &[]).await;
    assert_ne!(there.secrets().await, secrets);
    here.helm(&["uninstall", "chronos", "--no-hooks"]).await;
    there.get("clusterrole", &format!("chronos.{}", there.0.name)).await;
    let (left, said) = here.0.kubectl(&["get", "clusterrole", &format!("chronos.{}", here.0.name)]).await;
    assert!(!left, "{said}");

    here.bring("install", &[]).await;
    assert_eq!(here.secrets().await, secrets, "the claim still has the database of that password");
    for cluster in [here, there] {
        cluster.helm(&["uninstall", "chronos", "--no-hooks"]).await;
    }
}

/// The hook has stopped the controller and then failed: here no node runs it. What the chart's README says brings the release back.
#[tokio::test]
async fn an_uninstall_whose_hook_fails_can_be_taken_back() {
    let here = Namespace::fresh().await;
    let here = Cluster(&here);
    here.bring("install", &[]).await;
    let (done, said) = here.0.kubectl(&["scale", "deployment", "chronos", "--replicas", "0"]).await;
    assert!(done, "{said}");
    for _ in 0..2 {
        let (done, said) = here.try_helm(&["uninstall", "chronos", "--timeout", "2s"]).await;
        assert!(!done && said.contains("chronos-uninstall"), "{said}");
    }
    assert_eq!(here.get("deployment", "chronos").await["spec"]["replicas"], 0);

    here.helm(&["rollback", "chronos", "1"]).await;
    assert_eq!(here.get("deployment", "chronos").await["spec"]["replicas"], 2);
    here.bring("upgrade", &[]).await;
    here.helm(&["uninstall", "chronos", "--no-hooks"]).await;
}
