//! One document: whose it is, every mistake in it, and what it would do.

use std::{collections::BTreeMap, sync::LazyLock};

use chrono::{DateTime, TimeDelta, Utc};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    metadata,
    schema::{Checked, joined, nearest, unknown_field},
    yaml::{Broken, Document, Node, Tree},
};
use crate::{
    cli::fires,
    crd::{self, AgentSpec, AlarmSpec, Enrolment, Mistake},
    domain::{
        access::Did,
        alarm::Defaults,
        invalid::quoted,
        labels::Labels,
        quota::Quotas,
        rfc3339,
        schedule::{Fire, Schedule},
    },
};

/// How many fire times of an Alarm are shown.
const SHOWN: usize = 3;
/// Retries where an Alarm does not say: the operator's setting, which no file knows. It decides nothing here.
const ANY_MAX_FAILURES: u32 = 5;

/// What was found out about one document, or about a file that holds none.
#[derive(Debug, Default)]
pub struct Finding {
    pub file: String,
    pub line: Option<u64>,
    pub kind: Option<String>,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub problems: Vec<Problem>,
    pub notes: Vec<String>,
    pub description: Option<String>,
    pub fires: Vec<Fire>,
    pub spread: TimeDelta,
    pub subject: Subject,
}

/// A mistake, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// `None`: the file or the document as a whole.
    pub field: Option<String>,
    pub line: Option<u64>,
    pub problem: String,
    pub remedy: String,
}

/// What the documents of all files are compared by.
#[derive(Debug, Default)]
pub enum Subject {
    /// Neither, or not readable.
    #[default]
    Unknown,
    /// Not of this service: noted, not judged.
    Foreign,
    Alarm {
        owner: Did,
        schedule: Schedule,
    },
    Agent {
        did: Did,
        quotas: Quotas,
    },
}

/// The kinds we know, as they are installed.
struct Known {
    api_version: String,
    kind: String,
    schema: JSONSchemaProps,
}

static KNOWN: LazyLock<Vec<Known>> = LazyLock::new(|| {
    let known = |definition: CustomResourceDefinition| {
        let version = definition.spec.versions.into_iter().next()?;
        Some(Known {
            api_version: format!("{}/{}", definition.spec.group, version.name),
            kind: definition.spec.names.kind,
            schema: version.schema?.open_api_v3_schema?,
        })
    };
    crd::all().into_iter().filter_map(known).collect()
});

/// One finding, or one for each item of a `kind: List`.
pub fn judge(file: &str, document: Document, now: DateTime<Utc>) -> Vec<Finding> {
    let node = match document.read {
        Ok(node) => node,
        Err(Broken { line, problem, remedy }) => {
            let problem = Problem { field: None, line: Some(line), problem, remedy };
            let line = Some(document.line);
            return vec![Finding { file: file.to_owned(), line, problems: vec![problem], ..Finding::default() }];
        }
    };
    let is_list = node.get("kind").and_then(|kind| kind.node.as_text()).is_some_and(|kind| kind.ends_with("List"));
    match node.get("items").map(|items| &items.node.tree) {
        Some(Tree::List(items)) if is_list => items.iter().map(|item| resource(file, item, now)).collect(),
        Some(_) | None => vec![resource(file, &node, now)],
    }
}

fn resource(file: &str, node: &Node, now: DateTime<Utc>) -> Finding {
    let mut finding = Finding { file: file.to_owned(), line: Some(node.line), ..Finding::default() };
    if !matches!(node.tree, Tree::Map(_)) {
        finding.problems.push(Problem {
            field: None,
            line: Some(node.line),
            problem: "is not a resource".to_owned(),
            remedy: "begin with apiVersion, kind, metadata and spec".to_owned(),
        });
        return finding;
    }
    let text = |node: &Node, key: &str| node.get(key).and_then(|entry| entry.node.as_text()).map(str::to_owned);
    finding.kind = text(node, "kind");
    if let Some(metadata) = node.get("metadata").map(|entry| &entry.node) {
        (finding.name, finding.namespace) = (text(metadata, "name"), text(metadata, "namespace"));
    }
    let mut mistakes = Vec::new();
    match identify(node, &mut mistakes) {
        Identity::Ours(known) => {
            finding.kind = Some(known.kind.clone());
            mistakes.extend(whole(node, known, now, &mut finding));
        }
        Identity::Foreign(kind) => {
            finding.subject = Subject::Foreign;
            finding.notes.push(format!("{kind} is not checked: chronos knows {}", kinds().join(" and ")));
        }
        Identity::Unknown => {}
    }
    finding.problems = located(mistakes, node);
    if !finding.problems.is_empty() {
        // What it would do if it were right is of no use, and might be read as if it were. An Agent stays one: that its owner's
        // Alarms lack it would be told once for each of them.
        (finding.description, finding.fires, finding.notes) = (None, vec![], vec![]);
        if let Subject::Alarm { .. } = finding.subject {
            finding.subject = Subject::Unknown;
        }
    }
    finding
}

enum Identity {
    Ours(&'static Known),
    /// With its name: another service's, as in a file that holds a whole deployment.
    Foreign(String),
    Unknown,
}

fn identify(node: &Node, mistakes: &mut Vec<Mistake>) -> Identity {
    let text = |key: &str| node.get(key).and_then(|entry| entry.node.as_text());
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let ours = api_version.is_some_and(|given| given.starts_with("chronos"));
    let exact = KNOWN.iter().find(|known| kind == Some(known.kind.as_str()));
    // In another group only the case may be wrong: `Event` is near to `Agent`, and means something else.
    let near = |known: &&Known| {
        let guess = kind.and_then(|kind| nearest(kind, &kinds()));
        let same = kind.is_some_and(|kind| kind.eq_ignore_ascii_case(&known.kind));
        same || ours && guess == Some(known.kind.as_str())
    };
    let known = exact.or_else(|| KNOWN.iter().find(near));
    if let (false, None, Some(api_version), Some(kind)) = (ours, known, api_version, kind) {
        return Identity::Foreign(format!("{} of {}", short(kind), short(api_version)));
    }
    let expected = known.or(KNOWN.first()).map_or("", |known| known.api_version.as_str());
    if api_version != Some(expected) {
        let problem = api_version.map_or_else(|| missing(node, "apiVersion"), |given| format!("is {}", quoted(given)));
        mistakes.push(Mistake::new("apiVersion", problem, format!("write {expected}")));
    }
    if exact.is_none() {
        let problem = kind.map_or_else(|| missing(node, "kind"), |kind| format!("is {}", quoted(kind)));
        let remedy = match known {
            Some(known) => format!("did you mean {}?", known.kind),
            None => format!("write {}", kinds().join(" or ")),
        };
        mistakes.push(Mistake::new("kind", problem, remedy));
    }
    known.map_or(Identity::Unknown, Identity::Ours)
}

fn kinds() -> Vec<&'static str> {
    KNOWN.iter().map(|known| known.kind.as_str()).collect()
}

fn missing(node: &Node, key: &str) -> String {
    if node.get(key).is_some() { "is not a text".to_owned() } else { "is missing".to_owned() }
}

fn short(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Everything but apiVersion and kind.
fn whole(node: &Node, known: &Known, now: DateTime<Utc>, finding: &mut Finding) -> Vec<Mistake> {
    let mut checked = Checked::default();
    let empty = BTreeMap::new();
    let properties = known.schema.properties.as_ref().unwrap_or(&empty);
    let of_spec = properties.get("spec");
    let in_spec =
        |key: &str| of_spec.and_then(|spec| spec.properties.as_ref()).is_some_and(|spec| spec.contains_key(key));
    let names: Vec<&str> =
        ["apiVersion", "kind", "metadata"].into_iter().chain(properties.keys().map(String::as_str)).collect();
    let mut misplaced = Vec::new();
    for entry in checked.without_repeats(node, "") {
        let key = entry.key.as_str();
        match key {
            // A status is the controller's: as in what `kubectl get -o yaml` prints, it is carried along and means nothing.
            key if names.contains(&key) => {}
            key if in_spec(key) => {
                let remedy = "move it into spec, two spaces further in";
                checked.unusable.push(Mistake::new(key, "stands beside spec", remedy));
                misplaced.push(entry);
            }
            key => checked.unusable.push(unknown_field(key, key, &names)),
        }
    }
    metadata::check(node, &mut checked);
    if known.kind == "Alarm" {
        metadata::check_alarm(node, &mut checked);
    }
    let spec = match (node.get("spec").filter(|spec| !spec.node.is_null()), of_spec) {
        (Some(spec), Some(schema)) => {
            let value = checked.check_with(&spec.node, &misplaced, schema, "spec");
            // Of a list or a text in its place no field can be judged.
            Some(value).filter(|_| matches!(spec.node.tree, Tree::Map(_)))
        }
        (_, _) => {
            checked.unusable.push(Mistake::new("spec", "is missing", "say what the resource is to do"));
            None
        }
    };
    let refused = match (spec, known.kind.as_str()) {
        (None, _) => vec![],
        (Some(spec), "Alarm") => alarm(spec, now, finding),
        (Some(spec), _) => agent(spec, finding),
    };
    merge(checked, refused)
}

/// One voice per field: what cannot be used is told as such, else the domain speaks, else the schema.
fn merge(checked: Checked, refused: Vec<Mistake>) -> Vec<Mistake> {
    let mut told = checked.unusable;
    for mistakes in [refused, checked.outside] {
        let new: Vec<_> =
            mistakes.into_iter().filter(|mistake| told.iter().all(|told| told.field != mistake.field)).collect();
        told.extend(new);
    }
    told
}

/// What the controller would say, and what would come of it.
fn alarm(spec: Value, now: DateTime<Utc>, finding: &mut Finding) -> Vec<Mistake> {
    let spec: AlarmSpec = match decode(spec) {
        Ok(spec) => spec,
        Err(mistake) => return vec![mistake],
    };
    let defaults = Defaults { born_at: now, delays_from: now, max_failures: ANY_MAX_FAILURES };
    // Labels are judged with the rest of the metadata.
    let (owner, definition) = match spec.define(Labels::new(), defaults) {
        Ok(defined) => defined,
        Err(mistakes) => return mistakes,
    };
    let schedule = &definition.timing.schedule;
    finding.fires = schedule.preview(now, SHOWN);
    if finding.fires.is_empty() {
        return vec![never(schedule, now)];
    }
    finding.spread = definition.timing.spread;
    let words = match spec.delay_seconds {
        Some(seconds) => format!("once, {seconds} s after it is created"),
        None => schedule.describe(),
    };
    if spec.delay_seconds.is_some() || fires::counts_from_anchor(schedule) {
        let now = rfc3339(now);
        finding.notes.push(format!("counts from the resource's creation; the times shown are as if that were {now}"));
    }
    finding.description = Some(words);
    finding.subject = Subject::Alarm { owner, schedule: definition.timing.schedule };
    vec![]
}

fn never(schedule: &Schedule, now: DateTime<Utc>) -> Mistake {
    match schedule {
        Schedule::Once { fire_at } => Mistake::new(
            "spec.fireAt",
            format!(
                "is {}, which has passed by {}: it would never fire and be recorded as missed",
                rfc3339(*fire_at),
                rfc3339(now)
            ),
            "give an instant ahead",
        ),
        Schedule::Cron(_) => Mistake::never_fires(),
    }
}

fn agent(spec: Value, finding: &mut Finding) -> Vec<Mistake> {
    match decode::<AgentSpec>(spec).map_err(|mistake| vec![mistake]).and_then(|spec| spec.define()) {
        Ok(Enrolment { did, quotas, .. }) => {
            finding.description = Some(format!("enrols {did}, whose last part fits the key"));
            finding.subject = Subject::Agent { did, quotas };
            vec![]
        }
        Err(mistakes) => mistakes,
    }
}

/// Never fails on what the schema allows; told like any mistake if it does.
fn decode<T: DeserializeOwned>(spec: Value) -> Result<T, Mistake> {
    serde_path_to_error::deserialize(spec).map_err(|error| {
        let path = error.path().to_string();
        Mistake::new(joined("spec", &path), error.into_inner().to_string(), "see kubectl explain for its type")
    })
}

/// With the line of each field, in the order of the file. What is missing stands where its parent begins.
fn located(mistakes: Vec<Mistake>, node: &Node) -> Vec<Problem> {
    let at = |mistake: Mistake| {
        let line = line_of(node, &mistake.field);
        let Mistake { field, problem, remedy } = mistake;
        Problem { field: Some(field), line: Some(line), problem, remedy }
    };
    let mut problems: Vec<Problem> = mistakes.into_iter().map(at).collect();
    problems.sort_by_key(|problem| problem.line);
    problems
}

fn line_of(node: &Node, field: &str) -> u64 {
    let mut line = node.line;
    let (mut node, mut rest) = (node, field);
    while !rest.is_empty() {
        // A key may hold dots itself, as label names do: the longest that fits.
        let fits = |key: &str| rest.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        let entries = node.entries().iter().filter(|entry| fits(&entry.key));
        let Some(entry) = entries.max_by_key(|entry| entry.key.len()) else { break };
        line = entry.line;
        rest = rest[entry.key.len()..].trim_start_matches('.');
        node = &entry.node;
    }
    line
}
