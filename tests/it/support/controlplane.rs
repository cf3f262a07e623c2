//! A control plane of one's own, that can be broken: the run's shared one serves all other tests.

use std::path::{Path, PathBuf};

use tokio::sync::OnceCell;

use super::{
    Namespace,
    cluster::{self, client},
    script::Script,
};

/// etcd and an API server. They end with this handle, and with this process however that ends.
pub struct ControlPlane {
    script: Script,
    kubeconfig: PathBuf,
    crds: OnceCell<()>,
}

impl ControlPlane {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// One whose API server has more flags, without spaces in them: `--audit-log-path=…`.
    pub async fn start_with(flags: &[String]) -> Self {
        let flags = flags.join(" ");
        let more = |command: &mut std::process::Command| {
            command.env("APISERVER_EXTRA_ARGS", flags);
        };
        let (script, said) = Script::obeying("controlplane.sh", more).await;
        let kubeconfig = PathBuf::from(said.strip_prefix("ready ").expect("it is ready"));
        Self { script, kubeconfig, crds: OnceCell::new() }
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub async fn kill_apiserver(&self) {
        self.tell("kill apiserver", "killed apiserver").await;
    }

    /// The same data on the same port; serves when this returns.
    pub async fn start_apiserver(&self) {
        self.tell_and_wait("start apiserver").await;
    }

    pub async fn kill_etcd(&self) {
        self.tell("kill etcd", "killed etcd").await;
    }

    /// With what it had. It serves when this returns; the API server finds that out by itself.
    pub async fn start_etcd(&self) {
        self.tell_and_wait("start etcd").await;
    }

    /// Connections stay open and nobody answers.
    pub async fn freeze_apiserver(&self) {
        self.tell("freeze apiserver", "frozen apiserver").await;
    }

    pub async fn thaw_apiserver(&self) {
        self.tell("thaw apiserver", "thawed apiserver").await;
    }

    /// etcd forgets its history. A watch from before it is told 410 once the API server, too, has forgotten, by a restart.
    pub async fn compact(&self) {
        let said = self.script.tell("compact").await;
        assert!(said.starts_with("compacted "), "{said}");
    }

    /// Keeps what etcd has now, under this name (a-z, 0-9, -).
    pub async fn snapshot(&self, name: &str) {
        self.tell(&format!("snapshot {name}"), &format!("saved {name}")).await;
    }

    /// Everything is again as it was then, and serves when this returns.
    pub async fn restore(&self, name: &str) {
        self.tell_and_wait(&format!("restore {name}")).await;
    }

    /// A fresh namespace, with our CRDs installed.
    pub async fn namespace(&self) -> Namespace {
        self.crds.get_or_init(|| self.install_crds()).await;
        self.bare_namespace().await
    }

    /// A fresh namespace, in a cluster that need not know our CRDs.
    pub async fn bare_namespace(&self) -> Namespace {
        Namespace::on(&self.kubeconfig).await
    }

    pub async fn install_crds(&self) {
        cluster::install_crds(client(&self.kubeconfig).await).await;
    }

    async fn tell(&self, words: &str, answer: &str) {
        assert_eq!(self.script.tell(words).await, answer);
    }

    async fn tell_and_wait(&self, words: &str) {
        self.tell(words, &format!("ready {}", self.kubeconfig.display())).await;
    }
}
