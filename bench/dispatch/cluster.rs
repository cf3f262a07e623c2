//! An API server of its own: etcd and kube-apiserver of the test bed, with our CRDs, and an audit log of the statuses that are written.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use chrono::{DateTime, Utc};
use chronos::crd;
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Where the Alarms are.
pub const NAMESPACE: &str = "bench";
/// Statuses of Alarms alone, and each once, when it is answered: the log must not be what is measured.
const AUDIT_POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
  - {level: Metadata, verbs: [patch, update], resources: [{group: chronos.dev, resources: [alarms/status]}]}
  - {level: None}
";

pub struct Cluster {
    script: Child,
    pub kubeconfig: PathBuf,
    pub client: Client,
    audit: TempDir,
}

impl Cluster {
    pub async fn start() -> anyhow::Result<Self> {
        ensure!(
            std::env::var_os("KUBEBUILDER_ASSETS").is_some(),
            "KUBEBUILDER_ASSETS is not set, the directory of etcd and kube-apiserver: run `make bench`"
        );
        let directory = std::env::temp_dir().join(format!("chronos-bench-cluster-{}", std::process::id()));
        let audit = tempfile::tempdir()?;
        let (policy, log) = (audit.path().join("policy.yaml"), audit.path().join("log"));
        std::fs::write(&policy, AUDIT_POLICY)?;
        let flags = format!("--audit-policy-file={} --audit-log-path={}", policy.display(), log.display());
        let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed/controlplane.sh"))
            .arg("run")
            .arg(&directory)
            .env("TESTBED_PARENT", std::process::id().to_string())
            .env("APISERVER_EXTRA_ARGS", flags)
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the API server")?;
        let mut said = String::new();
        BufReader::new(script.stdout.take().expect("piped")).read_line(&mut said)?;
        let kubeconfig = said.trim().strip_prefix("ready ").context("it did not start; its words are above")?.into();
        let config = Kubeconfig::read_from(&kubeconfig)?;
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        let cluster = Self { script, kubeconfig, client: Client::try_from(config)?, audit };
        cluster.furnish().await?;
        Ok(cluster)
    }

    /// Our CRDs and a namespace.
    async fn furnish(&self) -> anyhow::Result<()> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        for definition in crd::all() {
            let name = definition.name_any();
            definitions.patch(&name, &PatchParams::apply("bench"), &Patch::Apply(&definition)).await?;
            while !is_established(&definitions.get(&name).await?) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
        Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await?;
        Ok(())
    }

    /// When the status of each Alarm was written, by its name and in order, since `from`.
    pub fn statuses_written(&self, from: DateTime<Utc>) -> anyhow::Result<HashMap<String, Vec<DateTime<Utc>>>> {
        let log = std::fs::read_to_string(self.audit.path().join("log"))?;
        let mut written: HashMap<String, Vec<DateTime<Utc>>> = HashMap::new();
        for line in log.lines() {
            let entry: Value = serde_json::from_str(line)?;
            let text = |value: &Value| value.as_str().map(str::to_owned).context("the API server says so");
            let at: DateTime<Utc> = text(&entry["requestReceivedTimestamp"])?.parse()?;
            if at >= from {
                written.entry(text(&entry["objectRef"]["name"])?).or_default().push(at);
            }
        }
        for times in written.values_mut() {
            times.sort_unstable();
        }
        Ok(written)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // TERM, so that it cleans up behind itself.
        drop(Command::new("kill").arg(self.script.id().to_string()).status());
        drop(self.script.wait());
    }
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Established" && one.status == "True"))
}
