//! `charts/chronos` on real parts: helm renders it, the real API server judges what comes out, people try what they may do, and a real
//! Prometheus asks real processes what alerts and dashboard ask. What a template makes of a value is tested beside the templates, by
//! helm-unittest, which runs from here, too.

mod people;
mod release;
mod server;
mod values;
mod watched;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

use crate::support::Namespace;

pub const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/chronos");

/// A program of the test bed: whether it did it, and what it said on both its outputs.
pub async fn tool(name: &str, arguments: &[&str]) -> (bool, String) {
    let home = tempfile::tempdir().unwrap();
    let assets =
        std::env::var_os("KUBEBUILDER_ASSETS").expect("make sets it: the directory of the test bed's binaries");
    let output = Command::new(Path::new(&assets).join(name))
        .args(arguments)
        // Whatever plugins and repositories the caller has are no part of this.
        .env("HELM_CACHE_HOME", home.path())
        .env("HELM_CONFIG_HOME", home.path())
        .env("HELM_DATA_HOME", home.path())
        .env_remove("KUBECONFIG")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap_or_else(|error| panic!("the test bed has no {name}: {error}"));
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).expect("it speaks text"))
}

/// `helm template` of release `chronos` in that namespace, as it comes out.
pub async fn rendered(namespace: &str, arguments: &[&str]) -> String {
    let (done, said) =
        tool("helm", &[&["template", "chronos", CHART, "--namespace", namespace], arguments].concat()).await;
    assert!(done, "{said}");
    said
}

/// The objects in it.
pub fn objects(yaml: &str) -> Vec<Value> {
    let unbounded = serde_saphyr::options! { budget: None };
    let objects: Vec<Value> = serde_saphyr::from_multiple_with_options(yaml, unbounded).expect("helm makes YAML");
    objects.into_iter().filter(|object| !object.is_null()).collect()
}

/// The files of `ci/`, each a variant that must work.
pub fn variants() -> Vec<String> {
    let mut files: Vec<String> = fs::read_dir(format!("{CHART}/ci"))
        .unwrap()
        .map(|file| file.unwrap().path().to_str().unwrap().to_owned())
        .filter(|file| file.ends_with("-values.yaml"))
        .collect();
    files.sort();
    assert!(files.len() >= 6, "{files:?}");
    files
}

pub fn variant(name: &str) -> String {
    format!("{CHART}/ci/{name}-values.yaml")
}

/// A text as a file, for as long as the folder lives.
pub fn file(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("objects.yaml");
    fs::write(&path, text).unwrap();
    (folder, path)
}

/// `kubectl apply` of objects that say in which namespace they are; as somebody else if `more` says so.
pub async fn apply(namespace: &Namespace, yaml: &str, more: &[&str]) -> (bool, String) {
    let (_folder, path) = file(yaml);
    namespace.kubectl_anywhere(&[&["apply", "-f", path.to_str().unwrap()], more].concat()).await
}
