//! What people may do: the roles that the cluster's own admin, edit and view take in, and the admission policy, each tried by somebody
//! who has them and nothing else.

use k8s_openapi::api::{authorization::v1::ResourceAttributes, rbac::v1::ClusterRole};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};

use super::{apply, objects, rendered, variant};
use crate::support::{AgentKey, Namespace, eventually};

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "update", "patch", "delete", "deletecollection"];

/// A namespace with three people in it: `<namespace>-admin`, `-edit` and `-view`, who may do what these roles of the cluster would let them
/// once its controller has put them together. There is none here: this does what it does, by the labels.
struct Team {
    namespace: Namespace,
    /// Of every Alarm they write: an owner does not change.
    owner: String,
}

impl Team {
    /// Rendered with `more` for a release of this namespace that watches it alone.
    async fn new(more: &[&str]) -> Self {
        let namespace = Namespace::fresh().await;
        let watched = format!("watchNamespaces={{{}}}", namespace.name);
        let values = variant("default");
        let same = ["--values", &values, "--set", &watched, "--set", "crds.enabled=false"];
        let yaml = rendered(&namespace.name, &[&same, more].concat()).await;
        let (applied, said) = apply(&namespace, &yaml, &[]).await;
        assert!(applied, "{said}");
        let roles: Vec<Value> = objects(&yaml).into_iter().filter(|object| object["kind"] == "ClusterRole").collect();
        let team = Self { namespace, owner: AgentKey::of("ann").did };
        for name in ["admin", "edit", "view"] {
            team.aggregate(name, &roles).await;
        }
        team
    }

    fn person(&self, role: &str) -> String {
        format!("{}-{role}", self.namespace.name)
    }

    async fn aggregate(&self, name: &str, known: &[Value]) {
        let label = format!("rbac.authorization.k8s.io/aggregate-to-{name}");
        let taken_in = known.iter().filter(|role| role["metadata"]["labels"][&label] == "true");
        let rules: Vec<Value> = taken_in.flat_map(|role| role["rules"].as_array().unwrap().clone()).collect();
        assert!(!rules.is_empty(), "{name} takes nothing in");
        let person = self.person(name);
        let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": person }, "rules": rules });
        let role: ClusterRole = serde_json::from_value(role).unwrap();
        Api::all(self.namespace.client()).create(&PostParams::default(), &role).await.unwrap();
        let role = format!("--clusterrole={person}");
        let (bound, said) =
            self.namespace.kubectl(&["create", "rolebinding", &person, &role, &format!("--user={person}")]).await;
        assert!(bound, "{said}");
    }

    async fn may(&self, person: &str, verb: &str, resource: &str) -> bool {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = ResourceAttributes {
            namespace: Some(self.namespace.name.clone()),
            verb: Some(verb.to_owned()),
            group: Some("chronos.dev".to_owned()),
            resource: Some(resource.to_owned()),
            subresource: Some(subresource.to_owned()),
            ..Default::default()
        };
        self.namespace.may(person, attributes).await
    }

    /// Writes an Alarm as that person.
    async fn write(&self, person: &str, name: &str, message: &str) -> (bool, String) {
        let alarm = json!({
            "apiVersion": "chronos.dev/v1alpha1", "kind": "Alarm", "metadata": { "name": name, "namespace": self.namespace.name },
            "spec": { "owner": self.owner, "cronExpr": "@daily", "wakeMessage": message },
        });
        apply(&self.namespace, &alarm.to_string(), &[&format!("--as={person}")]).await
    }

    async fn kubectl_as(&self, person: &str, arguments: &[&str]) -> (bool, String) {
        self.namespace.kubectl(&[arguments, &[&format!("--as={person}")]].concat()).await
    }
}

#[tokio::test]
async fn view_sees_edit_writes_alarms_and_admin_enrols_agents() {
    let team = Team::new(&[]).await;
    let [admin, edit, view] = ["admin", "edit", "view"].map(|role| team.person(role));
    // The last binding counts, so all do.
    eventually("the roles count", || async { team.may(&view, "get", "alarms").await.then_some(()) }).await;
    let mut expected = Vec::new();
    for resource in ["alarms", "agents"] {
        expected.extend(READ.iter().map(|verb| (&view, *verb, resource, true)));
        expected.extend(WRITE.iter().map(|verb| (&view, *verb, resource, false)));
        expected.extend(READ.iter().map(|verb| (&edit, *verb, resource, true)));
        expected.extend(WRITE.iter().map(|verb| (&edit, *verb, resource, resource == "alarms")));
        expected.extend([READ, WRITE].concat().into_iter().map(|verb| (&admin, verb, resource, true)));
        for person in [&view, &edit, &admin] {
            // The status is the controller's.
            let status = if resource == "alarms" { "alarms/status" } else { "agents/status" };
            expected.extend(["update", "patch"].map(|verb| (person, verb, status, false)));
        }
    }
    expected.extend([(&view, false), (&edit, false), (&admin, true)].map(|(who, may)| (who, "use", "agents", may)));
    for (person, verb, resource, expected) in expected {
        assert_eq!(team.may(person, verb, resource).await, expected, "{person}: {verb} {resource}");
    }

    // Without the policy it takes no more than that.
    let (written, said) = team.write(&edit, "theirs", "wake up").await;
    assert!(written, "{said}");
    let (written, said) = team.write(&view, "nobodys", "wake up").await;
    assert!(!written && said.contains("forbidden"), "{said}");
}

#[tokio::test]
async fn with_the_policy_who_writes_an_alarm_needs_the_right_to_use_agents() {
    let team = Team::new(&["--set", "admissionPolicy.enabled=true"]).await;
    let (admin, edit) = (team.person("admin"), team.person("edit"));
    let namespace = &team.namespace.name;
    // Other words each time: of an Alarm that was let in and says the same again, kubectl sends nothing.
    let mut tries = 0;
    eventually("the policy counts", || {
        tries += 1;
        let words = format!("wake up, {tries}");
        let (team, edit) = (&team, &edit);
        async move {
            let (written, said) = team.write(edit, "early", &words).await;
            (!written && said.contains("needs the verb use on agents.chronos.dev")).then_some(())
        }
    })
    .await;
    let (written, said) = team.write(&edit, "theirs", "wake up").await;
    let remedy = format!(
        "{edit} may write Alarms in namespace {namespace} but not wake agents there: that needs the verb use on agents.chronos.dev. \
         An admin of the namespace grants it: kubectl create rolebinding use-agents -n {namespace} --clusterrole=chronos.{namespace}:use-agents --user="
    );
    assert!(!written && said.contains(&remedy), "{said}");
    let (written, said) = team.write(&admin, "daily", "wake up").await;
    assert!(written, "{said}");

    // What wakes nobody is as free as before.
    let alarm = "alarm/daily";
    let (done, said) = team.kubectl_as(&edit, &["label", alarm, "colour=red"]).await;
    assert!(done, "{said}");
    // What does is not.
    for change in [
        &["patch", alarm, "--type=merge", "-p", r#"{"spec":{"wakeMessage":"other words"}}"#][..],
        &["annotate", alarm, "chronos.dev/fire-requested-at=now"],
    ] {
        let (done, said) = team.kubectl_as(&edit, change).await;
        assert!(!done && said.contains("needs the verb use"), "{said}");
    }

    // The controller puts on and takes off its finalizer, and writes the status; so does the hook, with a name that is not exempt.
    let finalizer = |names: &str| format!(r#"{{"metadata":{{"finalizers":{names}}}}}"#);
    let controller = format!("system:serviceaccount:{namespace}:chronos");
    let hook = format!("{controller}-uninstall");
    for (who, names) in [
        (&controller, r#"["chronos.dev/cancel-alarm"]"#),
        (&hook, "[]"),
        (&controller, r#"["chronos.dev/cancel-alarm"]"#),
    ] {
        let (done, said) = team.kubectl_as(who, &["patch", alarm, "--type=merge", "-p", &finalizer(names)]).await;
        // `kubectl patch` looks at the object first, which the hook may not: it is told so before anything is sent.
        assert!(done || who == &hook && said.contains("cannot get resource"), "{who}: {said}");
    }
    assert!(team.may(&hook, "patch", "alarms").await, "it may patch");

    // An admin grants it, as the refusal says.
    let role = format!("--clusterrole=chronos.{namespace}:use-agents");
    let (granted, said) =
        team.namespace.kubectl(&["create", "rolebinding", "use-agents", &role, &format!("--user={edit}")]).await;
    assert!(granted, "{said}");
    eventually("the right counts", || async { team.write(&edit, "theirs", "wake up").await.0.then_some(()) }).await;

    // Deleting wakes nobody. The finalizer is nobody's here: it goes first.
    let (done, said) = team.namespace.kubectl(&["patch", alarm, "--type=merge", "-p", &finalizer("[]")]).await;
    assert!(done, "{said}");
    let (done, said) = team.kubectl_as(&edit, &["delete", alarm]).await;
    assert!(done, "{said}");
}
