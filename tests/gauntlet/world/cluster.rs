//! etcd and an API server of the run's own, and what the rig itself asks of them.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::Mutex,
};

use super::{
    Apiserver,
    shell::{self, log_file, wait_for},
};

pub const NAMESPACE: &str = "gauntlet";
/// For an API server that starts on a busy machine.
const START: Duration = Duration::from_secs(150);
const CALL: Duration = Duration::from_secs(10);

pub struct Cluster {
    pub apiserver: Apiserver,
    http: reqwest::Client,
    script: Mutex<Script>,
}

/// `testbed/controlplane.sh obey`. It ends with its stdin, and with this process however that ends.
struct Script {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Script {
    async fn tell(&mut self, words: &str) -> anyhow::Result<String> {
        let orders = self.orders.as_mut().context("it was told to end")?;
        orders.write_all(format!("{words}\n").as_bytes()).await?;
        self.answer().await.with_context(|| format!("the control plane was told: {words}"))
    }

    async fn answer(&mut self) -> anyhow::Result<String> {
        let answer = tokio::time::timeout(START, self.answers.next_line()).await.context("no answer")??;
        answer.context("it has ended; logs/controlplane.log says why")
    }
}

impl Cluster {
    pub async fn start(logs: &Path, scratch: &Path) -> anyhow::Result<Self> {
        let testbed = Path::new(env!("CARGO_MANIFEST_DIR")).join("testbed");
        let mut command = Command::new(testbed.join("controlplane.sh"));
        command.arg("obey").arg(scratch.join("controlplane")).env("TESTBED_PARENT", std::process::id().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log_file(&logs.join("controlplane.log"))?);
        let mut child = command.spawn().context("the control plane's script starts")?;
        let orders = child.stdin.take().context("piped")?;
        let answers = BufReader::new(child.stdout.take().context("piped")?).lines();
        let mut script = Script { child, orders: Some(orders), answers };
        let said = script.answer().await?;
        let kubeconfig = said.strip_prefix("ready ").with_context(|| format!("the control plane says {said}"))?;
        let apiserver = read_kubeconfig(Path::new(kubeconfig))?;
        let certificates = reqwest::Certificate::from_pem_bundle(&apiserver.ca)?;
        let http = reqwest::Client::builder().tls_certs_only(certificates).timeout(CALL).no_proxy().build()?;
        let cluster = Self { apiserver, http, script: Mutex::new(script) };
        cluster.install(&testbed.with_file_name("crds")).await?;
        Ok(cluster)
    }

    /// Our CRDs and the run's namespace.
    async fn install(&self, crds: &Path) -> anyhow::Result<()> {
        for file in ["agents.chronos.dev", "alarms.chronos.dev"] {
            let yaml = std::fs::read_to_string(crds.join(format!("{file}.yaml")))?;
            let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{file}");
            self.apply(&path, yaml).await?;
            let served = || async {
                let found = self.get(&path).await.ok().flatten().unwrap_or_default();
                let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
                conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True")
            };
            wait_for("a CRD is served", START, served).await?;
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        self.apply(&format!("/api/v1/namespaces/{NAMESPACE}"), namespace.to_string()).await
    }

    async fn apply(&self, path: &str, object: String) -> anyhow::Result<()> {
        let path = format!("{path}?fieldManager=gauntlet&force=true");
        let request = self.request(Method::PATCH, &path).header("content-type", "application/apply-patch+yaml");
        let answer = request.body(object).send().await?;
        let status = answer.status();
        ensure!(status.is_success(), "PATCH {path}: {status}: {}", answer.text().await.unwrap_or_default());
        Ok(())
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}{path}", self.apiserver.url)).bearer_auth(&self.apiserver.token)
    }

    /// `None`: there is none.
    pub async fn get(&self, path: &str) -> anyhow::Result<Option<Value>> {
        let answer = self.request(Method::GET, path).send().await?;
        match answer.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => Ok(Some(serde_json::from_slice(&answer.bytes().await?)?)),
            status => bail!("GET {path}: {status}: {}", answer.text().await.unwrap_or_default()),
        }
    }

    /// All Alarms there are, in pages.
    pub async fn alarms(&self) -> anyhow::Result<Vec<Value>> {
        let (mut all, mut next) = (Vec::new(), String::new());
        loop {
            let path = format!("/apis/chronos.dev/v1alpha1/namespaces/{NAMESPACE}/alarms?limit=500&continue={next}");
            let mut page = self.get(&path).await?.context("Alarms are served")?;
            if let Some(items) = page["items"].as_array_mut() {
                all.append(items);
            }
            match page["metadata"]["continue"].as_str() {
                Some(token) if !token.is_empty() => token.clone_into(&mut next),
                _ => return Ok(all),
            }
        }
    }

    /// Makes somebody the holder of a Lease, as that one itself would. `None`: gives it back. Whether there is such a Lease.
    pub async fn hold_lease(&self, name: &str, holder: Option<&str>) -> anyhow::Result<bool> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{name}");
        for _ in 0..20 {
            let Some(mut lease) = self.get(&path).await? else { return Ok(false) };
            let at = shell::now().to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
            lease["spec"]["holderIdentity"] = json!(holder.unwrap_or_default());
            lease["spec"]["leaseDurationSeconds"] = json!(if holder.is_some() { 15 } else { 1 });
            lease["spec"]["acquireTime"] = json!(at);
            lease["spec"]["renewTime"] = json!(at);
            let request = self.request(Method::PUT, &path).header("content-type", "application/json");
            let status = request.body(lease.to_string()).send().await?.status();
            match status {
                // Its holder was faster.
                StatusCode::CONFLICT => {}
                status if status.is_success() => return Ok(true),
                status => bail!("PUT {path}: {status}"),
            }
        }
        bail!("Lease {name} changes faster than anybody can write it")
    }

    /// Words of the script, and how its answer must begin.
    pub async fn tell(&self, words: &str, answer: &str) -> anyhow::Result<()> {
        let said = self.script.lock().await.tell(words).await?;
        ensure!(said.starts_with(answer), "the control plane was told '{words}' and said '{said}'");
        Ok(())
    }

    pub async fn serves(&self) -> anyhow::Result<()> {
        wait_for("the API server serves", START, || async {
            let listed = self.get(&format!("/apis/chronos.dev/v1alpha1/namespaces/{NAMESPACE}/alarms?limit=1")).await;
            listed.is_ok_and(|listed| listed.is_some())
        })
        .await
    }

    /// Ends both, and removes their directory.
    pub async fn close(&self) {
        let mut script = self.script.lock().await;
        script.orders = None;
        tokio::time::timeout(CALL, script.child.wait()).await.ok();
    }

    /// For a replica that reaches the API server at another address.
    pub fn write_kubeconfig(&self, path: &Path, address: std::net::SocketAddr) -> anyhow::Result<()> {
        use base64::Engine;
        let ca = base64::engine::general_purpose::STANDARD.encode(&self.apiserver.ca);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{address}"),
                // Its certificate is for this name and for loopback, not for the bridge.
                "tls-server-name": "kubernetes.default.svc",
                "certificate-authority-data": ca}}],
            "users": [{"name": "u", "user": {"token": self.apiserver.token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
        });
        Ok(std::fs::write(path, config.to_string())?)
    }
}

fn read_kubeconfig(path: &Path) -> anyhow::Result<Apiserver> {
    let text = std::fs::read_to_string(path)?;
    let config: Value = serde_saphyr::from_str(&text).context("the kubeconfig")?;
    let cluster = &config["clusters"][0]["cluster"];
    let word = |value: &Value| value.as_str().map(str::to_owned).context("the kubeconfig says so");
    let ca = PathBuf::from(word(&cluster["certificate-authority"])?);
    // Not from the kubeconfig: a token of digits alone is a number there.
    let tokens = std::fs::read_to_string(path.with_file_name("tokens.csv"))?;
    let token = tokens.split(',').next().context("there is a token")?.to_owned();
    Ok(Apiserver { url: word(&cluster["server"])?, token, ca: std::fs::read(ca)? })
}
