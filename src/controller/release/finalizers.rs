//! Our finalizers taken off: those two, whatever else stands beside them.

use std::{collections::HashMap, fmt::Debug};

use futures::{StreamExt, stream};
use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Answer, Error, PAUSE, Report, ask};
use crate::{
    controller::{AGENT_FINALIZER, ALARM_FINALIZER, scope::scoped},
    crd::{Agent, Alarm},
};

const PAGE: u32 = 500;
/// Requests at once: an API server has others to serve.
const AT_ONCE: usize = 8;
/// Once more is a write that was under way when its controller ended; this often is a controller that is at work.
const TOO_OFTEN: u32 = 3;

/// What became of the objects of one kind.
#[derive(Default)]
pub struct Tally {
    /// The API server does not know the kind.
    pub not_served: bool,
    /// Those that were being deleted: nothing of ours holds them any more, and nobody has told the database.
    pub let_go: Vec<String>,
    /// By uid, how often.
    released: HashMap<String, u32>,
}

impl Tally {
    /// How many have lost a finalizer.
    pub fn released(&self) -> usize {
        self.released.len()
    }
}

/// What one look at all objects found.
#[derive(Debug, Default)]
struct Round {
    /// With a finalizer of ours.
    found: usize,
    /// Of those: taken off, or gone, or changed under our hands.
    moved: usize,
    refused: Vec<String>,
    /// What may be otherwise in a moment.
    later: Option<String>,
    put_back: Option<String>,
}

/// What follows from it.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Done,
    Again(String),
    GiveUp(GiveUp),
}

#[derive(Debug, PartialEq, Eq)]
enum GiveUp {
    PutBack(String),
    Refused { count: usize, first: String },
}

impl Round {
    fn next(&self) -> Next {
        if let Some(object) = &self.put_back {
            return Next::GiveUp(GiveUp::PutBack(object.clone()));
        }
        if let Some(why) = &self.later {
            return Next::Again(why.clone());
        }
        match self.refused.first() {
            None if self.found == 0 => Next::Done,
            // Only what is left, and nothing of it moves.
            Some(first) if self.moved == 0 => {
                Next::GiveUp(GiveUp::Refused { count: self.refused.len(), first: first.clone() })
            }
            Some(_) | None => Next::Again("it is looked at once more".to_owned()),
        }
    }
}

/// Until a round finds none of ours.
pub async fn release(client: &Client, namespaces: &[String], report: &mut Report) -> Result<(), Error> {
    let scopes: Vec<Option<&str>> =
        if namespaces.is_empty() { vec![None] } else { namespaces.iter().map(|name| Some(name.as_str())).collect() };
    loop {
        let mut round = Round::default();
        for scope in &scopes {
            look::<Alarm>(client, *scope, report.alarms.get_or_insert_default(), &mut round).await?;
            look::<Agent>(client, *scope, report.agents.get_or_insert_default(), &mut round).await?;
        }
        match round.next() {
            Next::Done => return Ok(()),
            Next::GiveUp(GiveUp::PutBack(object)) => return Err(Error::PutBack(object)),
            Next::GiveUp(GiveUp::Refused { count, first }) => return Err(Error::Refused { count, first }),
            Next::Again(why) => report.waits_for = why,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// All objects of one kind in one namespace, or in all.
async fn look<K>(client: &Client, scope: Option<&str>, tally: &mut Tally, round: &mut Round) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let kind = if K::plural(&()) == Alarm::plural(&()) { "Alarm" } else { "Agent" };
    let api: Api<K> = scoped(client, scope);
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let listed = match ask(api.list_metadata(&page)).await {
            Ok(listed) => listed,
            Err(Answer::Gone) => {
                tally.not_served = true;
                return Ok(());
            }
            Err(Answer::Changed) => {
                round.later = Some(format!("the list of {kind}s begins anew"));
                return Ok(());
            }
            Err(Answer::Later(why)) => {
                round.later = Some(format!("{kind}s cannot be listed: {why}"));
                return Ok(());
            }
            Err(Answer::Refused(why)) => {
                let place = scope.map_or_else(String::new, |namespace| format!(" of namespace {namespace}"));
                return Err(Error::List { kind, place, why });
            }
        };
        let ours = listed.items.iter().filter_map(|object| Some((object, without_ours(object.finalizers())?)));
        let mut answers = stream::iter(ours)
            .map(|(object, rest)| async move { (object, take_off(client, object, &rest).await) })
            .buffer_unordered(AT_ONCE);
        while let Some((object, answer)) = answers.next().await {
            note(kind, object, answer, tally, round);
        }
        drop(answers);
        page.continue_token = listed.metadata.continue_.filter(|token| !token.is_empty());
        if page.continue_token.is_none() {
            return Ok(());
        }
    }
}

/// Holds only if nothing of the object has changed since it was listed: a finalizer that somebody added meanwhile is not lost.
async fn take_off<K>(client: &Client, object: &PartialObjectMeta<K>, rest: &[&str]) -> Result<(), Answer>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), &object.namespace().unwrap_or_default());
    let patch = json!({ "metadata": { "resourceVersion": object.metadata.resource_version, "finalizers": rest } });
    ask(api.patch_metadata(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch))).await.map(|_| ())
}

fn note<K>(kind: &str, object: &PartialObjectMeta<K>, answer: Result<(), Answer>, tally: &mut Tally, round: &mut Round)
where
    PartialObjectMeta<K>: ResourceExt,
{
    let named = || format!("{kind} {}/{}", object.namespace().unwrap_or_default(), object.name_any());
    round.found += 1;
    match answer {
        Ok(()) => {
            round.moved += 1;
            let times = tally.released.entry(object.uid().unwrap_or_default()).or_default();
            *times += 1;
            if *times == 1 && object.meta().deletion_timestamp.is_some() {
                tally.let_go.push(named());
            }
            if *times == TOO_OFTEN {
                round.put_back = Some(named());
            }
        }
        Err(Answer::Gone | Answer::Changed) => round.moved += 1,
        Err(Answer::Later(why)) => round.later = Some(format!("{}: {why}", named())),
        Err(Answer::Refused(why)) => round.refused.push(format!("{}: {why}", named())),
    }
}

/// What remains of an object's finalizers; `None`: none of them is ours.
fn without_ours(finalizers: &[String]) -> Option<Vec<&str>> {
    let foreign = |name: &&str| ![ALARM_FINALIZER, AGENT_FINALIZER].contains(name);
    let rest: Vec<&str> = finalizers.iter().map(String::as_str).filter(foreign).collect();
    (rest.len() < finalizers.len()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_go_and_all_others_stay_in_their_order() {
        let finalizers = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(without_ours(&[]), None);
        assert_eq!(without_ours(&finalizers(&["b.example/x", "foregroundDeletion"])), None);
        assert_eq!(without_ours(&finalizers(&[ALARM_FINALIZER])), Some(vec![]));
        let mixed = finalizers(&["b.example/x", AGENT_FINALIZER, "a.example/y", ALARM_FINALIZER]);
        assert_eq!(without_ours(&mixed), Some(vec!["b.example/x", "a.example/y"]));
    }

    #[test]
    fn it_is_done_when_a_round_finds_none() {
        assert_eq!(Round::default().next(), Next::Done);
        let moved = Round { found: 2, moved: 2, ..Round::default() };
        assert!(matches!(moved.next(), Next::Again(_)), "somebody may have put one back");
        let unseen = Round { later: Some("away".to_owned()), ..Round::default() };
        assert_eq!(unseen.next(), Next::Again("away".to_owned()), "what cannot be listed is not none");
    }

    #[test]
    fn it_gives_up_when_nothing_moves_any_more_or_all_comes_back() {
        let refused = vec!["Alarm a/b: no".to_owned(), "Alarm a/c: no".to_owned()];
        let some = Round { found: 3, moved: 1, refused: refused.clone(), ..Round::default() };
        assert!(matches!(some.next(), Next::Again(_)));
        let only = Round { found: 2, refused, ..Round::default() };
        let first = "Alarm a/b: no".to_owned();
        assert_eq!(only.next(), Next::GiveUp(GiveUp::Refused { count: 2, first }));
        let restless = Round { found: 1, moved: 1, put_back: Some("Alarm a/b".to_owned()), ..Round::default() };
        assert_eq!(restless.next(), Next::GiveUp(GiveUp::PutBack("Alarm a/b".to_owned())));
    }
}
