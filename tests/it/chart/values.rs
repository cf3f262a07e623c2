//! Values: what is refused, and whether chart, schema, documentation and program speak of the same ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use chronos::config::{Given, SETTINGS};
use serde_json::Value;

use super::{CHART, objects, rendered, tool, variant, variants};

#[tokio::test]
async fn every_variant_passes_the_strict_lint() {
    for values in variants() {
        let (passed, said) = tool("helm", &["lint", "--strict", CHART, "--values", &values]).await;
        assert!(passed, "{values}: {said}");
    }
}

#[tokio::test]
async fn the_suites_beside_the_templates_pass() {
    let (passed, said) = tool("helm-unittest", &["--strict", CHART]).await;
    assert!(passed, "{said}");
}

/// Nothing given: both things that are missing are named, with the command that makes one of them.
#[tokio::test]
async fn an_install_without_values_is_told_what_it_needs() {
    let (done, said) = tool("helm", &["template", "chronos", CHART, "--namespace", "here"]).await;
    assert!(!done);
    for words in [
        "secrets.existingSecret (or secrets.postgresUri.existingSecret, secrets.token.existingSecret, ",
        "kubectl create secret generic chronos -n here --from-literal=postgres-uri=postgres://",
        "postgres.trial.enabled=true",
        "router.wakeUrl is not set either",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn the_schema_knows_every_value_and_no_other() {
    let values: Value = serde_saphyr::from_str(&read("values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let (mut unknown, mut gone) = (BTreeSet::new(), BTreeSet::new());
    compare("", &values, &schema, &mut unknown, &mut gone);
    assert!(unknown.is_empty() && gone.is_empty(), "not in the schema: {unknown:?}\nonly in the schema: {gone:?}");
}

/// Level by level, as far as the schema says which keys there are.
fn compare(path: &str, values: &Value, schema: &Value, unknown: &mut BTreeSet<String>, gone: &mut BTreeSet<String>) {
    let (Some(properties), Some(values)) = (schema["properties"].as_object(), values.as_object()) else { return };
    // Filled by the person alone, and `global` is Helm's.
    if ["/settings", "/imagePullSecrets"].contains(&path) || path.ends_with("/resources") {
        return;
    }
    let name = |key: &String| format!("{path}/{key}");
    unknown.extend(values.keys().filter(|key| !properties.contains_key(*key)).map(name));
    gone.extend(properties.keys().filter(|key| *key != "global" && !values.contains_key(*key)).map(name));
    for (key, value) in values {
        compare(&name(key), value, properties.get(key).unwrap_or(&Value::Null), unknown, gone);
    }
}

#[test]
fn settings_are_those_of_the_program() {
    let schema: Value = serde_json::from_str(&read("values.schema.json")).unwrap();
    let known: BTreeSet<&str> =
        schema["properties"]["settings"]["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    let ours: BTreeSet<&str> =
        SETTINGS.iter().map(|setting| setting.name).filter(|name| name.starts_with("CHRONOS_")).collect();
    assert_eq!(known, ours, "values.schema.json: settings");
}

/// What is a secret comes from a Secret: its name is one that the chart refuses among the settings.
#[tokio::test]
async fn no_secret_can_be_given_as_a_setting() {
    for secret in SETTINGS.iter().filter(|setting| setting.secret) {
        let given = format!("settings.{}=hidden", secret.name);
        let values = variant("default");
        let (done, said) = tool("helm", &["template", "chronos", CHART, "--values", &values, "--set", &given]).await;
        assert!(
            !done && said.contains(&format!("settings.{}: the chart sets it; use secrets.", secret.name)),
            "{said}"
        );
    }
}

#[test]
fn the_chart_is_of_the_programs_version() {
    let chart: Value = serde_saphyr::from_str(&read("Chart.yaml")).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

/// The environment of every container that runs chronosd, in every variant, is one with which it starts; and the grace period of its pod
/// outlasts the stop that it means to make.
#[tokio::test]
async fn the_program_takes_what_the_chart_tells_it() {
    let folder = tempfile::tempdir().unwrap();
    let secrets = [
        ("postgres-uri", "postgres://chronos:secret@db:5432/chronos"),
        ("token", "transport-token-0001"),
        ("agent-auth-secret", "agent-auth-secret-0001"),
        ("wake-token", "wake-token-000000001"),
        ("wake-signing-secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        ("timer-sink-token", "timer-sink-token-0001"),
    ];
    for (name, text) in secrets {
        fs::write(folder.path().join(name), format!("{text}\n")).unwrap();
    }
    let mounted = folder.path().to_str().unwrap();
    for values in variants() {
        for object in objects(&rendered("here", &["--values", &values]).await) {
            if object["kind"] != "Deployment" {
                continue;
            }
            let pod = &object["spec"]["template"]["spec"];
            let container = &pod["containers"][0];
            let mut environment: BTreeMap<String, String> = BTreeMap::new();
            for variable in container["env"].as_array().unwrap() {
                let name = variable["name"].as_str().unwrap().to_owned();
                let value =
                    variable["value"].as_str().unwrap_or("from-the-pod").replace("/etc/chronos/secrets", mounted);
                // A certificate is looked at by other tests.
                if !name.starts_with("CHRONOS_TLS_") {
                    assert!(environment.insert(name.clone(), value).is_none(), "{values}: {name} is there twice");
                }
            }
            let config = Given::collect(&BTreeMap::new(), &environment).check();
            let config = config.unwrap_or_else(|problems| panic!("{values}: {problems}"));
            assert_eq!(config.warnings, Vec::<String>::new(), "{values}");
            let grace = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
            let before = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap_or(0);
            // Then everything else has 5 s, and the last traces 5.
            assert!(grace >= before + config.shutdown.as_secs() + 10, "{values}: {grace} s are too few");
        }
    }
}

fn read(file: &str) -> String {
    fs::read_to_string(format!("{CHART}/{file}")).unwrap()
}
