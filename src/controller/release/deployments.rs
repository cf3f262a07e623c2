//! Deployments scaled to nothing, and waited for: while a pod of them lives, so may a controller in it.

use k8s_openapi::api::{
    apps::v1::Deployment,
    autoscaling::v1::{Scale, ScaleStatus},
    core::v1::Pod,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use super::{Answer, Error, PAUSE, Report, ask};

/// Pods whose processes have all ended stay on show, and do no harm.
const LIVING: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// As many as a sentence can bear.
const SHOWN: u32 = 5;

/// How a Deployment was found in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    ScaledDown,
    NotThere,
}

/// Until no pod of any of them is left.
pub async fn end(client: &Client, home: &str, names: &[String], report: &mut Report) -> Result<(), Error> {
    let (deployments, pods): (Api<Deployment>, Api<Pod>) =
        (Api::namespaced(client.clone(), home), Api::namespaced(client.clone(), home));
    loop {
        // All are told before anybody is waited for. Told again each time: whoever scales them up meanwhile does not win.
        let mut told = Vec::new();
        for name in names {
            told.push((name, scale_to_zero(&deployments, name).await?));
        }
        let (mut ended, mut waits_for) = (Vec::new(), Vec::new());
        for (name, scaled) in told {
            match scaled {
                Scaled::NotThere => ended.push((name.clone(), Ended::NotThere)),
                Scaled::Later(why) => waits_for.push(format!("Deployment {name} cannot be scaled: {why}")),
                Scaled::To(status) => match left(&pods, name, &status).await? {
                    None => ended.push((name.clone(), Ended::ScaledDown)),
                    Some(left) => waits_for.push(left),
                },
            }
        }
        if waits_for.is_empty() {
            report.deployments = ended;
            report.waits_for.clear();
            return Ok(());
        }
        report.waits_for = waits_for.join("; ");
        tokio::time::sleep(PAUSE).await;
    }
}

enum Scaled {
    To(ScaleStatus),
    NotThere,
    Later(String),
}

async fn scale_to_zero(deployments: &Api<Deployment>, name: &str) -> Result<Scaled, Error> {
    let nothing = Patch::Merge(json!({ "spec": { "replicas": 0 } }));
    match ask(deployments.patch_scale(name, &PatchParams::default(), &nothing)).await {
        Ok(Scale { status, .. }) => Ok(Scaled::To(status.unwrap_or_default())),
        Err(Answer::Gone) => Ok(Scaled::NotThere),
        Err(Answer::Changed) => Ok(Scaled::Later("it keeps changing".to_owned())),
        Err(Answer::Later(why)) => Ok(Scaled::Later(why)),
        Err(Answer::Refused(why)) => Err(Error::Scale { name: name.to_owned(), why }),
    }
}

/// What is still there of this Deployment; `None`: nothing.
async fn left(pods: &Api<Pod>, name: &str, status: &ScaleStatus) -> Result<Option<String>, Error> {
    let selector = status.selector.as_deref().filter(|selector| !selector.is_empty());
    let selector = selector.ok_or_else(|| Error::NoSelector(name.to_owned()))?;
    let listed = ask(pods.list(&ListParams::default().labels(selector).fields(LIVING).limit(SHOWN))).await;
    let living: Vec<String> = match listed {
        Ok(listed) => listed.items.iter().map(ResourceExt::name_any).collect(),
        Err(Answer::Refused(why)) => return Err(Error::Pods { name: name.to_owned(), why }),
        Err(Answer::Later(why)) => return Ok(Some(format!("the pods of Deployment {name} cannot be listed: {why}"))),
        Err(Answer::Gone | Answer::Changed) => {
            return Ok(Some(format!("the pods of Deployment {name} are not listed")));
        }
    };
    Ok(still(name, status.replicas, &living))
}

/// A Deployment that counts replicas may be about to make their pods.
fn still(name: &str, replicas: i32, living: &[String]) -> Option<String> {
    match (replicas, living) {
        (0, []) => None,
        (replicas, []) => Some(format!("Deployment {name} still counts {replicas} replicas")),
        (_, living) => Some(format!("Deployment {name} still has pods: {}", living.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deployment_has_ended_when_it_counts_no_replica_and_no_pod_lives() {
        assert_eq!(still("chronos", 0, &[]), None);
        let pods = ["a".to_owned(), "b".to_owned()];
        assert_eq!(still("chronos", 0, &pods).as_deref(), Some("Deployment chronos still has pods: a, b"));
        assert_eq!(still("chronos", 2, &[]).as_deref(), Some("Deployment chronos still counts 2 replicas"));
    }
}
