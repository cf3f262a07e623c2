//! A namespace of one's own, in the run's one API server or in one of the test's own.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        LazyLock,
        atomic::{AtomicU32, Ordering},
    },
};

use chronos::{
    clock::{Clock, SystemClock},
    crd::{self, Agent, Alarm, AlarmStatus},
};
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
        coordination::v1::Lease,
        core::v1::Namespace as KubeNamespace,
        events::v1::Event,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::{ApiResource, GroupVersionKind},
};
use tempfile::TempDir;
use tokio::{process::Command, sync::OnceCell};

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
    /// A fresh namespace in the run's one cluster, which has our CRDs.
    pub async fn fresh() -> Self {
        let kubeconfig =
            tokio::task::spawn_blocking(|| LazyLock::force(&SERVER).clone()).await.expect("the API server starts");
        CRDS.get_or_init(|| async { install_crds(client(&kubeconfig).await).await }).await;
        Self::on(&kubeconfig).await
    }

    /// A fresh namespace in that cluster, whatever it has.
    pub async fn on(kubeconfig: &Path) -> Self {
        Self::named(kubeconfig, &format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed))).await
    }

    /// One that is called as another is in another cluster.
    pub async fn named(kubeconfig: &Path, name: &str) -> Self {
        let client = client(kubeconfig).await;
        let name = name.to_owned();
        let namespace = KubeNamespace {
            metadata: kube::core::ObjectMeta { name: Some(name.clone()), ..Default::default() },
            ..Default::default()
        };
        Api::all(client.clone()).create(&PostParams::default(), &namespace).await.expect("a namespace is made");
        Self { name, kubeconfig: kubeconfig.to_owned(), client }
    }

    /// The administrator's.
    pub fn client(&self) -> Client {
        self.client.clone()
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

    /// One of whoever this token is for.
    pub fn kubeconfig_of(&self, token: &str) -> OwnKubeconfig {
        self.rewritten(|text| {
            let (before, rest) = text.split_once("{token: ").expect("the administrator has one");
            let (_theirs, after) = rest.split_once('}').expect("it ends");
            format!("{before}{{token: {token}}}{after}")
        })
    }

    /// The administrator's, for whoever does not say in which namespace: it is this one.
    pub fn kubeconfig_here(&self) -> OwnKubeconfig {
        self.rewritten(|text| text.replace("context: {", &format!("context: {{namespace: {}, ", self.name)))
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

    pub fn agents(&self) -> Api<Agent> {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Returns when an Agent that is created now is younger than this one: by a second, which is as exactly as the API server tells. Of two of
    /// one second the uid decides, and nobody can say beforehand how.
    pub async fn until_another_is_younger(&self, agent: &str) {
        let created = self.agents().get(agent).await.unwrap().metadata.creation_timestamp.unwrap().0.as_second();
        eventually("another second has begun", async || (SystemClock.now().timestamp() > created).then_some(())).await;
    }

    /// Type, reason and note of every event about the object of this name, oldest first.
    pub async fn events_of(&self, name: &str) -> Vec<(String, String, String)> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.name);
        let mut events = events.list(&ListParams::default()).await.expect("the API server lists events").items;
        events.retain(|event| event.regarding.as_ref().is_some_and(|object| object.name.as_deref() == Some(name)));
        events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        let told = |event: Event| [event.type_, event.reason, event.note].map(Option::unwrap_or_default);
        events.into_iter().map(|event| told(event).into()).collect()
    }

    /// Whether `kubectl` does this in this namespace, and what it says on both its outputs. It is the test bed's: the one on the
    /// PATH may be any.
    pub async fn kubectl(&self, arguments: &[&str]) -> (bool, String) {
        self.kubectl_anywhere(&[&["-n", &self.name], arguments].concat()).await
    }

    /// The same in no namespace, for objects that say themselves where they belong.
    pub async fn kubectl_anywhere(&self, arguments: &[&str]) -> (bool, String) {
        let assets =
            std::env::var_os("KUBEBUILDER_ASSETS").expect("make sets it: the directory of the test bed's binaries");
        let output = Command::new(Path::new(&assets).join("kubectl"))
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            // What it learns of an API server is kept with that server, and is not there for the next one on the same port.
            .arg("--cache-dir")
            .arg(self.kubeconfig.with_file_name("kubectl"))
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .await
            .expect("the test bed has a kubectl");
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).expect("it speaks text"))
    }

    /// Whether this user may do that, by the API server's own word.
    pub async fn may(&self, user: &str, what: ResourceAttributes) -> bool {
        let spec = SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(what),
            ..Default::default()
        };
        let review = SubjectAccessReview { spec, ..Default::default() };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api.create(&PostParams::default(), &review).await.expect("the API server answers");
        answer.status.expect("it has decided").allowed
    }

    /// The object as the API server has it.
    pub async fn json(&self, plural: &str, name: &str) -> String {
        let path = format!("/apis/chronos.dev/v1alpha1/namespaces/{}/{plural}/{name}", self.name);
        let request = axum::http::Request::get(path).body(Vec::new());
        self.client.request_text(request.unwrap()).await.expect("the API server has it")
    }

    /// Creates an object from a text that goes to the API server as it is. The answer is not read.
    pub async fn post(&self, plural: &str, object: String) {
        self.try_post(plural, object).await.expect("the API server takes it");
    }

    pub async fn try_post(&self, plural: &str, object: String) -> kube::Result<()> {
        let path = format!("/apis/chronos.dev/v1alpha1/namespaces/{}/{plural}", self.name);
        let request =
            axum::http::Request::post(path).header("content-type", "application/json").body(object.into_bytes());
        self.client.request_text(request.unwrap()).await.map(|_| ())
    }

    /// `kubectl apply`, for every document of a YAML.
    pub async fn apply(&self, yaml: &str) -> kube::Result<()> {
        for document in yaml.split("\n---\n") {
            // However deep it is nested, and however long.
            let unbounded = serde_saphyr::options! { budget: None };
            let object = serde_saphyr::from_str_with_options(document, unbounded);
            let object: DynamicObject = object.expect("the test's YAML is one");
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

pub async fn client(kubeconfig: &Path) -> Client {
    with_tls();
    let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("the test bed wrote it");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    Client::try_from(config.expect("the test bed wrote it")).expect("a client")
}

/// Until the API server serves them.
pub async fn install_crds(client: Client) {
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
