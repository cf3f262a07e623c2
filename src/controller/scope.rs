//! What the controller watches: all namespaces, or some, each with its own view of Alarms and Agents. Whoever has changed something in
//! the database that an object's status or validity hangs on rings for that object.

use std::sync::Arc;

use futures::{
    SinkExt,
    channel::mpsc::{Receiver, Sender, channel},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::reflector::{ObjectRef, Store as Cache},
};

use crate::{
    crd::{Agent, Alarm, Guarded},
    domain::access::Did,
};

/// Rings that wait for the runtime, which takes them at once into a queue of its own. Whoever rings more waits.
const WAITING: usize = 1024;

pub type AlarmRef = ObjectRef<Guarded<Alarm>>;
pub type AgentRef = ObjectRef<Guarded<Agent>>;

/// One namespace, or all.
pub struct Scope {
    pub namespace: Option<String>,
    pub alarms: Cache<Guarded<Alarm>>,
    pub agents: Cache<Guarded<Agent>>,
    bell: Bell,
}

/// Where rings go.
#[derive(Clone)]
pub struct Bell {
    alarms: Sender<AlarmRef>,
    agents: Sender<AgentRef>,
}

/// Where they come out.
pub struct Rings {
    pub alarms: Receiver<AlarmRef>,
    pub agents: Receiver<AgentRef>,
}

impl Bell {
    pub fn new() -> (Self, Rings) {
        let (alarms, heard_alarms) = channel(WAITING);
        let (agents, heard_agents) = channel(WAITING);
        (Self { alarms, agents }, Rings { alarms: heard_alarms, agents: heard_agents })
    }
}

impl Scope {
    pub fn new(
        namespace: Option<String>,
        alarms: Cache<Guarded<Alarm>>,
        agents: Cache<Guarded<Agent>>,
        bell: Bell,
    ) -> Self {
        Self { namespace, alarms, agents, bell }
    }

    pub fn holds(&self, namespace: &str) -> bool {
        self.namespace.as_deref().is_none_or(|own| own == namespace)
    }
}

/// An API over one namespace, or over all.
pub fn scoped<K>(client: &Client, scope: Option<&str>) -> Api<K>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
{
    match scope {
        None => Api::all(client.clone()),
        Some(namespace) => Api::namespaced(client.clone(), namespace),
    }
}

/// Everything that is watched.
pub struct Scopes(pub Vec<Scope>);

impl Scopes {
    /// Looks at one Alarm again.
    pub async fn ring(&self, namespace: &str, name: &str) {
        for scope in self.0.iter().filter(|scope| scope.holds(namespace)) {
            send(&scope.bell.alarms, ObjectRef::new(name).within(namespace)).await;
        }
    }

    /// Looks at the Alarms of this owner again: those in the namespace of its Agent, for which something has changed.
    pub async fn ring_alarms_of(&self, owner: &Did, namespace: &str) {
        for scope in self.0.iter().filter(|scope| scope.holds(namespace)) {
            let is_theirs = |alarm: &Arc<Guarded<Alarm>>| {
                let names = |alarm: &Alarm| alarm.spec.owner.parse::<Did>().is_ok_and(|named| named == *owner);
                alarm.namespace().as_deref() == Some(namespace) && alarm.read.as_ref().is_ok_and(names)
            };
            for alarm in scope.alarms.state().iter().filter(|alarm| is_theirs(alarm)) {
                send(&scope.bell.alarms, ObjectRef::from_obj(&**alarm)).await;
            }
        }
    }

    /// Looks at the other Agents of this DID again: which of them holds it may have changed.
    pub async fn ring_rivals_of(&self, agent: &AgentRef, did: &Did) {
        for scope in &self.0 {
            let rival = |other: &Arc<Guarded<Agent>>| {
                let enrols = other.read.as_ref().is_ok_and(|other| other.spec.enrols(did.as_str()));
                enrols && ObjectRef::from_obj(&**other) != *agent
            };
            for other in scope.agents.state().iter().filter(|other| rival(other)) {
                send(&scope.bell.agents, ObjectRef::from_obj(&**other)).await;
            }
        }
    }
}

/// Waits for room rather than lose a ring: nobody would look again before the resync. A runtime that has ended needs none.
async fn send<T>(bell: &Sender<T>, object: T) {
    let _ended = bell.clone().send(object).await;
}
