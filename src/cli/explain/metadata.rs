//! What Kubernetes asks of any resource's metadata. No CRD says it, so it is said here.

use std::{collections::BTreeMap, sync::LazyLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{
    schema::{Checked, joined, unknown_field},
    yaml::{Node, Tree},
};
use crate::{
    crd::{Mistake, fire_requested},
    domain::{
        invalid::{Invalid, quoted},
        labels,
    },
};

/// The fields that any resource's metadata has.
static FIELDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let schema = schemars::schema_for!(ObjectMeta);
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.map(|properties| properties.keys().cloned().collect()).unwrap_or_default()
});

/// Into `checked`, under the fields' own names.
pub fn check(node: &Node, checked: &mut Checked) {
    let Some(metadata) = node.get("metadata").filter(|entry| !entry.node.is_null()) else {
        checked.unusable.push(Mistake::new("metadata.name", "is missing", "give the resource a name"));
        return;
    };
    let metadata = &metadata.node;
    if !matches!(metadata.tree, Tree::Map(_)) {
        checked.unusable.push(Mistake::new("metadata", "is not a map", "give at least a name in it"));
        return;
    }
    let names: Vec<&str> = FIELDS.iter().map(String::as_str).collect();
    for entry in checked.without_repeats(metadata, "metadata") {
        let path = joined("metadata", &entry.key);
        if !names.contains(&entry.key.as_str()) {
            checked.unusable.push(unknown_field(&path, &entry.key, &names));
        }
        let text = entry.node.as_text();
        match entry.key.as_str() {
            _ if entry.node.is_null() => {}
            "name" | "namespace" | "generateName" if text.is_none() => {
                checked.unusable.push(Mistake::new(path, "is not a text", "put it in quotes"));
            }
            "name" if !text.is_some_and(is_subdomain) => {
                let remedy = "use at most 253 lower-case letters, digits, - and ., first and last a letter or digit";
                checked.unusable.push(Mistake::new(path, format!("is {}", quoted(text.unwrap_or_default())), remedy));
            }
            "namespace" if !text.is_some_and(is_label) => {
                let remedy = "use at most 63 lower-case letters, digits and -, first and last a letter or digit";
                checked.unusable.push(Mistake::new(path, format!("is {}", quoted(text.unwrap_or_default())), remedy));
            }
            "labels" | "annotations" => texts(&entry.node, &path, checked),
            _ => {}
        }
    }
    let given = |key: &str| metadata.get(key).is_some_and(|entry| !entry.node.is_null());
    if !given("name") && !given("generateName") {
        checked.unusable.push(Mistake::new("metadata.name", "is missing", "give the resource a name"));
    }
}

/// What is asked of an Alarm's besides, by the controller.
pub fn check_alarm(node: &Node, checked: &mut Checked) {
    let texts = |key: &str| -> BTreeMap<String, String> {
        let entries = node.get("metadata").and_then(|metadata| metadata.node.get(key));
        let entries = entries.map(|entry| entry.node.entries()).unwrap_or_default();
        let pairs = entries.iter().filter_map(|entry| Some((entry.key.clone(), entry.node.as_text()?.to_owned())));
        pairs.collect()
    };
    checked.unusable.extend(fire_requested(&texts("annotations")).err());
    let labels = texts("labels");
    if labels.len() > labels::MOST_LABELS {
        let mut invalid: Vec<Invalid> = Vec::new();
        labels::check(&mut invalid, &labels);
        let told = |invalid: Invalid| Mistake::new("metadata.labels", invalid.problem, invalid.remedy);
        checked.unusable.extend(invalid.into_iter().map(told));
    }
}

/// Labels and annotations: texts by name.
fn texts(node: &Node, path: &str, checked: &mut Checked) {
    if !matches!(node.tree, Tree::Map(_)) {
        checked.unusable.push(Mistake::new(path, "is not a map", "give names and values"));
        return;
    }
    for entry in checked.without_repeats(node, path) {
        match (entry.node.as_text(), path.ends_with("labels")) {
            (None, _) => {
                let problem = "is not a text";
                checked.unusable.push(Mistake::new(joined(path, &entry.key), problem, "put the value in quotes"));
            }
            (Some(value), true) => {
                let mut invalid: Vec<Invalid> = Vec::new();
                labels::check(&mut invalid, &[(entry.key.clone(), value.to_owned())].into());
                let told = |invalid: Invalid| Mistake::new(joined(path, &entry.key), invalid.problem, invalid.remedy);
                checked.unusable.extend(invalid.into_iter().map(told));
            }
            (Some(_), false) => {}
        }
    }
}

/// As RFC 1123 has them: a namespace is a label, a resource's name is labels with dots between.
fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_part(text)
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_part)
}

fn is_part(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.chars().all(|c| edge(c) || c == '-') && text.starts_with(edge) && text.ends_with(edge)
}

#[cfg(test)]
mod tests {
    use super::super::yaml::documents;
    use super::*;

    fn mistakes(text: &str) -> Vec<String> {
        let node = documents(&format!("x: 1\n{text}")).remove(0).read.unwrap();
        let mut checked = Checked::default();
        check(&node, &mut checked);
        assert!(checked.outside.is_empty());
        checked.unusable.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_resource_needs_a_name_that_kubernetes_takes() {
        for fine in ["tea", "a.b-c.d1", "0", &"a".repeat(253)] {
            assert_eq!(mistakes(&format!("metadata: {{name: '{fine}'}}")), [""; 0], "{fine}");
        }
        for refused in ["Tea", "-a", "a-", "a..b", "a_b", "", "é", &"a".repeat(254)] {
            let told = mistakes(&format!("metadata: {{name: '{refused}'}}"));
            assert!(told.len() == 1 && told[0].starts_with("metadata.name: is "), "{refused}: {told:?}");
        }
        let missing = ["metadata.name: is missing; give the resource a name"];
        assert_eq!(mistakes(""), missing);
        assert_eq!(mistakes("metadata:"), missing);
        assert_eq!(mistakes("metadata: {name: null}"), missing);
        assert_eq!(mistakes("metadata: {generateName: tea-}"), [""; 0]);
        assert_eq!(mistakes("metadata: {name: 5}"), ["metadata.name: is not a text; put it in quotes"]);
        assert_eq!(mistakes("metadata: tea"), ["metadata: is not a map; give at least a name in it"]);
    }

    #[test]
    fn every_other_mistake_in_it_is_told_too() {
        let text = "metadata: {name: tea, namespace: my.home, lables: {}, labels: {a: 1, b: '-', example.com/c: c}, \
                    annotations: [x]}";
        assert_eq!(
            mistakes(text),
            [
                "metadata.namespace: is \"my.home\"; use at most 63 lower-case letters, digits and -, first and last a \
                 letter or digit",
                "metadata.lables: is not a known field; did you mean labels?",
                "metadata.labels.a: is not a text; put the value in quotes",
                "metadata.labels.b: has the value \"-\" under \"b\"; a value is empty, or up to 63 letters, digits, - _ \
                 and . that begins and ends with a letter or digit",
                "metadata.annotations: is not a map; give names and values",
            ]
        );
    }

    #[test]
    fn an_alarm_has_few_labels_and_a_short_request_to_fire() {
        let told = |text: &str| -> Vec<String> {
            let node = documents(text).remove(0).read.unwrap();
            let mut checked = Checked::default();
            check_alarm(&node, &mut checked);
            checked.unusable.iter().map(ToString::to_string).collect()
        };
        let labels = |count: usize| (0..count).map(|number| format!("l{number}: x")).collect::<Vec<_>>().join(", ");
        assert_eq!(told(&format!("metadata: {{labels: {{{}}}, annotations: null}}", labels(64))), [""; 0]);
        assert_eq!(
            told(&format!("metadata: {{labels: {{{}}}}}", labels(65))),
            ["metadata.labels: has 65 entries; give at most 64"]
        );
        let request = "x".repeat(257);
        let asked = told(&format!("metadata: {{annotations: {{chronos.dev/fire-requested-at: {request}}}}}"));
        assert!(asked.len() == 1 && asked[0].contains("fire-requested-at: is 257 bytes long; give at most 256"));
    }
}
