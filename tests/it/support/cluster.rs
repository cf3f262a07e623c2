//! A namespace of one's own in the run's one API server.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use chronos::crd::{self, Alarm, AlarmStatus};
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Namespace as KubeNamespace},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, GroupVersionKind},
};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::{eventually, server, with_tls};

static SERVER: LazyLock<PathBuf> = LazyLock::new(|| server::run("controlplane.sh").into());
static CRDS: OnceCell<()> = OnceCell::const_new();
static NUMBER: AtomicU32 = AtomicU32::new(0);

pub struct Namespace {
    pub name: String,
    pub kubeconfig: PathBuf,
    client: Client,
}

/// A kubeconfig of a test's own.
pub struct OwnKubeconfig {
    pub path: PathBuf,
    _folder: TempDir,
}

impl Namespace {
    /// A fresh namespace in a cluster that has our CRDs.
    pub async fn fresh() -> Self {
        let kubeconfig =
            tokio::task::spawn_blocking(|| LazyLock::force(&SERVER).clone()).await.expect("the API server starts");
        let client = client(&kubeconfig).await;
        CRDS.get_or_init(|| install_crds(client.clone())).await;
        let name = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let namespace = KubeNamespace {
            metadata: kube::core::ObjectMeta { name: Some(name.clone()), ..Default::default() },
            ..Default::default()
        };
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace is made");
        Self { name, kubeconfig, client }
    }

    /// `host:port` of the API server.
    pub fn server(&self) -> String {
        let text = std::fs::read_to_string(&self.kubeconfig).expect("the test bed wrote it");
        let (_, rest) = text.split_once("server: \"https://").expect("it names a server");
        rest.split('"').next().expect("the server's name ends").to_owned()
    }

    /// A kubeconfig, in a folder that lives as long as the handle, that goes through `address`.
    pub fn kubeconfig_through(&self, address: SocketAddr) -> OwnKubeconfig {
        self.rewritten(|text| text.replace(&self.server(), &address.to_string()))
    }

    /// One of somebody who may do what RBAC lets this user do, which is nothing unless a test grants it.
    pub fn kubeconfig_as(&self, user: &str) -> OwnKubeconfig {
        self.rewritten(|text| text.replace("user: {token: ", &format!("user: {{as: {user}, token: ")))
    }

    fn rewritten(&self, rewrite: impl Fn(&str) -> String) -> OwnKubeconfig {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kubeconfig");
        let text = std::fs::read_to_string(&self.kubeconfig).expect("the test bed wrote it");
        std::fs::write(&path, rewrite(&text)).expect("a kubeconfig is written");
        OwnKubeconfig { path, _folder: folder }
    }

    pub fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    pub fn alarms(&self) -> Api<Alarm> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Creates an object from a text that goes to the API server as it is. The answer is not read.
    pub async fn post(&self, plural: &str, object: String) {
        let path = format!("/apis/chronos.dev/v1alpha1/namespaces/{}/{plural}", self.name);
        let request =
            axum::http::Request::post(path).header("content-type", "application/json").body(object.into_bytes());
        self.client.request_text(request.unwrap()).await.expect("the API server takes it");
    }

    /// `kubectl apply`, for every document of a YAML.
    pub async fn apply(&self, yaml: &str) -> kube::Result<()> {
        for document in yaml.split("\n---\n") {
            let object: DynamicObject = serde_saphyr::from_str(document).expect("the test's YAML is one");
            let kind = object.types.clone().expect("it has a kind");
            let kind = GroupVersionKind::try_from(&kind).expect("it has a group and a version");
            let api: Api<DynamicObject> =
                Api::namespaced_with(self.client.clone(), &self.name, &ApiResource::from_gvk(&kind));
            let parameters = PatchParams {
                field_validation: Some(kube::api::ValidationDirective::Strict),
                ..PatchParams::apply("test").force()
            };
            api.patch(&object.name_any(), &parameters, &Patch::Apply(&object)).await?;
        }
        Ok(())
    }

    /// The alarm's status once it is as `wanted`.
    pub async fn status(&self, name: &str, what: &str, wanted: impl Fn(&AlarmStatus) -> bool) -> AlarmStatus {
        let alarms = self.alarms();
        eventually(&format!("Alarm {name}: {what}"), || async {
            let alarm = alarms.get_opt(name).await.expect("the API server answers");
            alarm.and_then(|alarm| alarm.status).filter(&wanted)
        })
        .await
    }
}

pub async fn client(kubeconfig: &std::path::Path) -> Client {
    with_tls();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("the test bed wrote it");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("the test bed wrote it")).expect("a client")
}

async fn install_crds(client: Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client);
    for definition in crd::all() {
        let name = definition.name_any();
        api.patch(&name, &PatchParams::apply("test").force(), &Patch::Apply(&definition))
            .await
            .expect("a CRD is accepted");
        eventually("the CRD is established", || async {
            let conditions = api.get(&name).await.ok()?.status?.conditions?;
            conditions.iter().any(|one| one.type_ == "Established" && one.status == "True").then_some(())
        })
        .await;
    }
}
