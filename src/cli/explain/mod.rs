//! `chronosd explain`: checks Alarm and Agent files before anybody applies them, without a cluster or a database.
//!
//! ```text
//! files ──yaml──▶ documents ──judge──▶ findings ──beside──▶ findings with notes ──report──▶ text or JSON
//!                              ├─ schema, metadata: what the API server would refuse
//!                              └─ crd::define: what the controller would refuse, by the controller's own code
//! ```
//!
//! Words: a *mistake* is something that would not work if it were applied now; it makes the exit code 1. A *note* is worth
//! knowing and may be right, such as an owner whose Agent stands in the cluster but not in these files.

mod judge;
mod metadata;
mod report;
mod schema;
mod yaml;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
};

use chrono::{DateTime, Utc};
use clap::Args;

use self::judge::{Finding, Problem, Subject};
use super::next;
use crate::domain::{access::Did, invalid::Invalid, quota::Quotas};

#[derive(Args)]
#[command(after_help = "\
For every mistake it prints the line, the field, what is wrong and what to write instead; for every
Alarm without one, when it would fire next. An owner whose Agent is not in the files is only noted.
With --json: a list of {file, line, kind, namespace, name, ok, problems: [{field, line, problem,
remedy}], notes, description, fires}.

Examples:
  chronosd explain -f examples/
  chronosd explain -f agent.yaml -f alarms.yaml --json
  helm template my-chart | chronosd explain -f -

Exit codes: 0 all is fine, 1 a mistake was found or a file cannot be read, 2 usage")]
pub struct Options {
    /// YAML or JSON file, directory of such, or - for stdin; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true, num_args = 1..)]
    files: Vec<PathBuf>,
    /// As if it were this instant, RFC 3339 with an offset [default: now]
    #[arg(long, value_name = "INSTANT")]
    from: Option<String>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Larger than anything an API server would take (3 MiB) many times over, and small enough to be read at once.
const LARGEST_FILE: u64 = 64 * 1024 * 1024;

/// What to print, and whether all is fine.
pub fn explain(options: &Options, now: DateTime<Utc>) -> Result<(String, bool), Invalid> {
    let now = next::from(options.from.as_deref(), now)?;
    let mut findings: Vec<Finding> = options
        .files
        .iter()
        .flat_map(|path| files(path))
        .flat_map(|file| match file {
            Ok((name, text)) => judged(&name, &text, now),
            Err(finding) => vec![*finding],
        })
        .collect();
    beside(&mut findings, now);
    let fine = findings.iter().all(Finding::is_fine);
    let told = if options.json { report::json(&findings) } else { report::text(&findings) };
    Ok((told, fine))
}

/// All documents of one file. One without any Alarm or Agent is a mistake: a check that looked at nothing would call it fine.
fn judged(file: &str, text: &str, now: DateTime<Utc>) -> Vec<Finding> {
    let documents = yaml::documents(text);
    let findings: Vec<Finding> = documents.into_iter().flat_map(|document| judge::judge(file, document, now)).collect();
    if findings.is_empty() {
        let remedy = "give a file with an Alarm or an Agent of chronos.dev/v1alpha1";
        return vec![Finding::of_file(file, "holds no document".to_owned(), remedy)];
    }
    findings
}

type Text = Result<(String, String), Box<Finding>>;

/// Name and text of the file, or of every YAML and JSON file directly in the directory.
fn files(path: &Path) -> Vec<Text> {
    let name = path.display().to_string();
    if path == Path::new("-") {
        return vec![read("stdin", io::stdin())];
    }
    let unreadable = |name: &str, error: io::Error| {
        Err(Box::new(Finding::of_file(
            name,
            format!("cannot be read: {error}"),
            "give a file that exists and may be read",
        )))
    };
    if !path.is_dir() {
        return vec![File::open(path).map_or_else(|error| unreadable(&name, error), |file| read(&name, file))];
    }
    let listed =
        fs::read_dir(path).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>());
    let mut paths = match listed {
        Ok(paths) => paths,
        Err(error) => return vec![unreadable(&name, error)],
    };
    let is_ours = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        path.is_file() && matches!(extension, Some("yaml" | "yml" | "json"))
    };
    paths.retain(is_ours);
    paths.sort();
    if paths.is_empty() {
        let problem = "is a directory without a .yaml, .yml or .json file".to_owned();
        return vec![Err(Box::new(Finding::of_file(
            &name,
            problem,
            "give the directory that holds the files themselves",
        )))];
    }
    paths.iter().flat_map(|path| files(path)).collect()
}

fn read(name: &str, source: impl Read) -> Text {
    let refused = |problem: String, remedy: &'static str| Err(Box::new(Finding::of_file(name, problem, remedy)));
    let mut bytes = Vec::new();
    match source.take(LARGEST_FILE + 1).read_to_end(&mut bytes) {
        Err(error) => refused(format!("cannot be read: {error}"), "give a file that exists and may be read"),
        Ok(length) if length as u64 > LARGEST_FILE => {
            refused(format!("is longer than {} MiB", LARGEST_FILE >> 20), "give the YAML files themselves")
        }
        Ok(_) => match String::from_utf8(bytes) {
            Ok(text) => Ok((name.to_owned(), text)),
            Err(error) => {
                let bytes = error.as_bytes();
                if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
                    return refused("is UTF-16 text".to_owned(), "save it as UTF-8");
                }
                let fine = error.utf8_error().valid_up_to();
                let line = bytes[..fine].split(|byte| *byte == b'\n').count();
                refused(format!("is not UTF-8 text: line {line} holds a byte that is none"), "save it as UTF-8")
            }
        },
    }
}

impl Finding {
    fn of_file(file: &str, problem: String, remedy: &str) -> Self {
        let problem = Problem { field: None, line: None, problem, remedy: remedy.to_owned() };
        Self { file: file.to_owned(), problems: vec![problem], ..Self::default() }
    }

    fn add(&mut self, field: &str, problem: String, remedy: &str) {
        let (field, remedy) = (Some(field.to_owned()), remedy.to_owned());
        self.problems.push(Problem { field, line: self.line, problem, remedy });
    }

    fn is_fine(&self) -> bool {
        self.problems.is_empty()
    }

    fn is_foreign(&self) -> bool {
        matches!(self.subject, Subject::Foreign)
    }
}

/// What only shows when the documents are seen together: names and DIDs that come twice, owners without an Agent, or with one that allows
/// less.
fn beside(findings: &mut [Finding], now: DateTime<Utc>) {
    if !findings.is_empty() && findings.iter().all(Finding::is_foreign) {
        let problem = "no Alarm and no Agent in what was given".to_owned();
        let remedy = "give a file with an Alarm or an Agent of chronos.dev/v1alpha1".to_owned();
        findings[0].problems.push(Problem { field: None, line: findings[0].line, problem, remedy });
    }
    let mut seen: BTreeMap<(String, Option<String>, String), String> = BTreeMap::new();
    for finding in findings.iter_mut().filter(|finding| !finding.is_foreign()) {
        let (Some(kind), Some(name)) = (finding.kind.clone(), finding.name.clone()) else { continue };
        let place = finding.place();
        if let Some(first) = seen.insert((kind, finding.namespace.clone(), name), place) {
            let problem = format!("is also that of {first}: the later would overwrite the earlier");
            finding.add("metadata.name", problem, "give each a name of its own");
        }
    }
    let mut enrolled: Vec<(Did, Option<String>, Quotas, String)> = Vec::new();
    for finding in findings.iter_mut() {
        let Subject::Agent { did, quotas } = &finding.subject else { continue };
        let (did, quotas) = (did.clone(), *quotas);
        // One that is overwritten is told of above.
        if let Some((_, _, _, first)) = enrolled.iter().find(|(other, ..)| *other == did)
            && finding.is_fine()
        {
            let problem = format!("is also that of {first}: one DID is held by one Agent");
            finding.add("spec.did", problem, "keep one of the two");
        }
        enrolled.push((did, finding.namespace.clone(), quotas, finding.place()));
    }
    for finding in findings {
        let Subject::Alarm { owner, schedule } = &finding.subject else { continue };
        let of_owner: Vec<_> = enrolled.iter().filter(|(did, ..)| did == owner).collect();
        match (of_owner.iter().find(|(_, namespace, ..)| *namespace == finding.namespace), of_owner.first()) {
            (Some((_, _, quotas, _)), _) => {
                if let Err(exceeded) = quotas.admit_schedule(schedule, now) {
                    let told = exceeded.to_string();
                    let (problem, remedy) = told.split_once("; ").unwrap_or((&told, "make it slower"));
                    finding.add("spec.cronExpr", problem.to_owned(), remedy);
                }
            }
            (None, elsewhere) => {
                let elsewhere = elsewhere.map_or_else(
                    || "none of these files has one".to_owned(),
                    |(_, namespace, ..)| format!("these files have it in {}", in_words(namespace.as_deref())),
                );
                let place = in_words(finding.namespace.as_deref());
                let note = format!("needs an Agent with the DID {owner} in {place}; {elsewhere}");
                finding.notes.push(note);
            }
        }
    }
}

fn in_words(namespace: Option<&str>) -> String {
    namespace.map_or_else(|| "the same namespace".to_owned(), |namespace| format!("namespace {namespace}"))
}

#[cfg(test)]
mod tests {
    use crate::crd;

    use super::*;

    const DID: &str = "did:matrix:ann:d75a980182b10ab7";
    const KEY: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    fn findings(texts: &[&str]) -> Vec<Finding> {
        let now = "2026-11-16T12:00:00Z".parse().unwrap();
        let mut findings: Vec<_> = texts.iter().flat_map(|text| judged("x.yaml", text, now)).collect();
        beside(&mut findings, now);
        findings
    }

    fn problems(text: &str) -> Vec<String> {
        let all = findings(&[text]).remove(0).problems;
        all.into_iter()
            .map(|told| format!("{}: {}; {}", told.field.unwrap_or_default(), told.problem, told.remedy))
            .collect()
    }

    fn resource(kind: &str, name: &str, spec: &str) -> String {
        format!("{{apiVersion: chronos.dev/v1alpha1, kind: {kind}, metadata: {{name: {name}}}, spec: {{{spec}}}}}")
    }

    fn alarm(spec: &str) -> String {
        resource("Alarm", "tea", &format!("owner: '{DID}', wakeMessage: wake up, {spec}"))
    }

    fn agent(name: &str) -> String {
        resource("Agent", name, &format!("did: '{DID}', publicKey: {KEY}"))
    }

    #[test]
    fn every_rule_of_the_definitions_is_known_offline() {
        // One that breaks the rule, by the field it stands at and its message. A new rule without an entry fails here.
        let other_key = KEY.replacen("d7", "07", 1);
        let upper = KEY.to_uppercase();
        let long = |bytes: usize| "é".repeat(bytes / 2 + 1);
        let with_spec = |kind: &str, spec: String| resource(kind, "ann", &spec);
        let breaks = |place: &str, message: &str| match (place, message.split([':', ';']).next().unwrap()) {
            ("spec", "give exactly one of fireAt, delaySeconds and cronExpr") => {
                (alarm("cronExpr: '@daily', delaySeconds: 5"), "spec.delaySeconds")
            }
            (".timezone", "timezone goes with cronExpr only") => {
                (alarm("delaySeconds: 5, timezone: UTC"), "spec.timezone")
            }
            (".startsAt", "startsAt goes with cronExpr only") => {
                (alarm("delaySeconds: 5, startsAt: 2099-01-01T00:00:00Z"), "spec.startsAt")
            }
            (".endsAt", "endsAt goes with cronExpr only") => {
                (alarm("delaySeconds: 5, endsAt: 2099-01-01T00:00:00Z"), "spec.endsAt")
            }
            (".spreadSeconds", "spreadSeconds goes with cronExpr only") => {
                (alarm("delaySeconds: 5, spreadSeconds: 5"), "spec.spreadSeconds")
            }
            (".endsAt", "endsAt must lie after startsAt") => (
                alarm("cronExpr: '@daily', startsAt: 2099-01-01T00:00:00Z, endsAt: 2099-01-01T00:00:00Z"),
                "spec.endsAt",
            ),
            (".payloadJson", "give payload or payloadJson, not both") => {
                (alarm("delaySeconds: 5, payload: {}, payloadJson: '1'"), "spec.payloadJson")
            }
            (".did", "the DID's last part must be the first 16 hex digits of publicKey") => {
                (with_spec("Agent", format!("did: '{DID}', publicKey: {other_key}")), "spec.did")
            }
            ("owner", "write did") => (alarm("delaySeconds: 5").replace("d75a", "D75A"), "spec.owner"),
            ("did", "write did") => {
                (with_spec("Agent", format!("did: '{}', publicKey: {KEY}", DID.replace("d75a", "D75A"))), "spec.did")
            }
            ("publicKey", "write the agent's whole ed25519 public key") => {
                (with_spec("Agent", format!("did: '{DID}', publicKey: {upper}")), "spec.publicKey")
            }
            ("fireAt", "give date, time and offset, from 1970 to 2100, such as 2026-11-16T09") => {
                (alarm("fireAt: 2101-01-01T00:00:00Z"), "spec.fireAt")
            }
            ("startsAt", "give date, time and offset, from 1970 to 2100, such as 2026-11-16T09") => {
                (alarm("cronExpr: '@daily', startsAt: 1969-12-31T23:59:59Z"), "spec.startsAt")
            }
            ("endsAt", "give date, time and offset, from 1970 to 2100, such as 2026-11-16T09") => {
                (alarm("cronExpr: '@daily', endsAt: 2099-01-01T00:00:00z"), "spec.endsAt")
            }
            ("cronExpr", "is blank") => (alarm("cronExpr: ' '"), "spec.cronExpr"),
            ("wakeMessage", "is blank") => (alarm("delaySeconds: 5").replace("wake up", "' '"), "spec.wakeMessage"),
            ("timezone", "no such time zone") => (alarm("cronExpr: '@daily', timezone: Local"), "spec.timezone"),
            (".label", "is longer than 256 bytes") => {
                (alarm(&format!("delaySeconds: 5, label: {}", long(256))), "spec.label")
            }
            (".conversationId", "is longer than 256 bytes") => {
                (alarm(&format!("delaySeconds: 5, conversationId: {}", long(256))), "spec.conversationId")
            }
            (".wakeMessage", "is longer than 32768 bytes") => {
                (alarm("delaySeconds: 5").replace("wake up", &long(32768)), "spec.wakeMessage")
            }
            (".payloadJson", "is longer than 262144 bytes") => {
                (alarm(&format!("delaySeconds: 5, payloadJson: '\"{}\"'", long(262_144))), "spec.payloadJson")
            }
            unknown => panic!("explain has no twin of the rule {unknown:?}"),
        };
        let definitions = serde_json::to_value(crd::all()).unwrap();
        let mut rules = Vec::new();
        collect_rules(&definitions, "", &mut rules);
        assert_eq!(rules.len(), 21, "{rules:?}");
        for (place, rule) in rules {
            let (text, field) = breaks(&place, &rule);
            let told = problems(&text);
            assert!(told.len() == 1 && told[0].starts_with(&format!("{field}: ")), "{place}: {rule}: {told:?}");
        }
    }

    /// Field and message of all rules that look at one state only: a file has no earlier one.
    fn collect_rules(value: &serde_json::Value, place: &str, rules: &mut Vec<(String, String)>) {
        if let Some(rule) = value["rule"].as_str()
            && !rule.contains("oldSelf")
        {
            let place = value["fieldPath"].as_str().unwrap_or(place);
            rules.push((place.to_owned(), value["message"].as_str().unwrap().to_owned()));
        }
        value.as_array().into_iter().flatten().for_each(|value| collect_rules(value, place, rules));
        for (key, value) in value.as_object().into_iter().flatten() {
            let place = if key == "x-kubernetes-validations" { place } else { key };
            collect_rules(value, place, rules);
        }
    }

    #[test]
    fn one_wrong_type_hides_no_other_mistake_and_invents_none() {
        assert_eq!(
            problems(&alarm("cronExpr: 5, timezone: Mars/Olympus, maxFailures: 101, label: []")),
            [
                "spec.cronExpr: is the number 5; put it in quotes, as you wrote it",
                "spec.label: is a list; give a text",
                "spec.maxFailures: is 101; give a whole number from 0 to 100",
                "spec.timezone: unknown zone \"Mars/Olympus\"; use an IANA name such as Europe/Berlin",
            ]
        );
    }

    #[test]
    fn where_schema_and_domain_refuse_alike_the_domain_speaks() {
        let text = alarm("delaySeconds: 5").replace("wake up", "''");
        assert_eq!(
            problems(&text),
            ["spec.wakeMessage: is missing or empty; say what the agent should do when it wakes"]
        );
    }

    #[test]
    fn what_stands_in_the_place_of_spec_is_told_once() {
        let text =
            |spec: &str| format!("{{apiVersion: chronos.dev/v1alpha1, kind: Agent, metadata: {{name: a}}{spec}}}");
        assert_eq!(problems(&text(", spec: [1]")), ["spec: is a list; give a map of fields"]);
        assert_eq!(problems(&text("")), ["spec: is missing; say what the resource is to do"]);
        assert_eq!(problems(&text(", spec:")), ["spec: is missing; say what the resource is to do"]);
    }

    #[test]
    fn a_number_beyond_its_type_is_told_like_any_other() {
        for number in ["99999999999", "-99999999999", "9223372036854775807"] {
            let told = problems(&alarm(&format!("delaySeconds: 5, maxFailures: {number}")));
            assert_eq!(told, [format!("spec.maxFailures: is {number}; give a whole number from 0 to 100")]);
        }
        let told = problems(&alarm("delaySeconds: 99999999999999999999"));
        assert!(told.len() == 1 && told[0].starts_with("spec.delaySeconds: is the number"), "{told:?}");
    }

    #[test]
    fn a_misspelt_field_is_judged_as_what_was_meant() {
        assert_eq!(
            problems(&alarm("cron_expr: '@daily'")),
            ["spec.cron_expr: is not a known field; did you mean cronExpr?"]
        );
    }

    #[test]
    fn a_field_beside_spec_is_told_once_and_not_missed_in_it() {
        let text = alarm("label: x").replace("spec: {", "cronExpr: '@daily', spec: {");
        assert_eq!(problems(&text), ["cronExpr: stands beside spec; move it into spec, two spaces further in"]);
    }

    #[test]
    fn what_would_never_fire_is_a_mistake() {
        assert_eq!(
            problems(&alarm("fireAt: 2026-11-16T11:59:59Z")),
            [
                "spec.fireAt: is 2026-11-16T11:59:59Z, which has passed by 2026-11-16T12:00:00Z: it would never fire and be \
                 recorded as missed; give an instant ahead"
            ]
        );
        let told = problems(&alarm("cronExpr: '0 0 30 2 *'"));
        assert!(told[0].starts_with("spec.cronExpr: the schedule has no future instant"), "{told:?}");
    }

    #[test]
    fn a_wrong_kind_or_version_is_answered_with_the_right_one() {
        let text = alarm("cronExpr: 5").replace("v1alpha1", "v1").replace("Alarm", "alarms");
        assert_eq!(
            problems(&text),
            [
                "apiVersion: is \"chronos.dev/v1\"; write chronos.dev/v1alpha1",
                "kind: is \"alarms\"; did you mean Alarm?",
                "spec.cronExpr: is the number 5; put it in quotes, as you wrote it",
            ]
        );
        assert_eq!(
            problems("a: 1"),
            ["apiVersion: is missing; write chronos.dev/v1alpha1", "kind: is missing; write Agent or Alarm"]
        );
        assert_eq!(problems("[]"), [": is not a resource; begin with apiVersion, kind, metadata and spec"]);
    }

    #[test]
    fn another_services_resource_is_passed_over_unless_there_is_nothing_else() {
        let namespace = "{apiVersion: v1, kind: Namespace, metadata: {name: home}}";
        let event = "{apiVersion: v1, kind: Event, metadata: {name: home}}";
        let both = findings(&[namespace, event, &agent("ann")]);
        assert!(both.iter().all(Finding::is_fine), "{both:?}");
        let told = problems(namespace);
        assert!(told[0].starts_with(": no Alarm and no Agent in what was given"), "{told:?}");
        assert!(problems("# nothing\n")[0].starts_with(": holds no document"));
    }

    #[test]
    fn an_owner_needs_an_agent_in_its_own_namespace() {
        let notes = |texts: &[&str]| findings(texts).remove(0).notes;
        let alarm = alarm("cronExpr: '@daily'");
        let away = agent("ann").replace("name: ann", "name: ann, namespace: away");
        assert_eq!(notes(&[&alarm, &agent("ann")]), [""; 0]);
        assert_eq!(
            notes(&[&alarm]),
            [format!("needs an Agent with the DID {DID} in the same namespace; none of these files has one")]
        );
        assert_eq!(
            notes(&[&alarm, &away]),
            [format!("needs an Agent with the DID {DID} in the same namespace; these files have it in namespace away")]
        );
    }

    #[test]
    fn a_name_that_comes_twice_is_a_mistake() {
        let alarm = alarm("delaySeconds: 5");
        let both = findings(&[&alarm, &alarm, &agent("tea")]);
        let fine: Vec<_> = both.iter().map(Finding::is_fine).collect();
        assert_eq!(fine, [true, false, true]);
        assert_eq!(both[1].problems[0].field.as_deref(), Some("metadata.name"));
    }

    #[test]
    fn a_did_that_comes_twice_is_a_mistake() {
        let away = agent("ann").replace("name: ann", "name: ann, namespace: away");
        let both = findings(&[&agent("ann"), &away]);
        assert!(both[0].is_fine());
        let told = &both[1].problems[0];
        assert_eq!((told.field.as_deref(), told.remedy.as_str()), (Some("spec.did"), "keep one of the two"));
        assert!(told.problem.contains("x.yaml:1 Agent ann: one DID is held by one Agent"), "{}", told.problem);
    }

    #[test]
    fn a_schedule_faster_than_its_agent_allows_is_a_mistake() {
        let slow = agent("ann").replace("publicKey", "minIntervalSeconds: 60, publicKey");
        let verdict = |expression: &str| {
            let both = findings(&[&slow, &alarm(&format!("cronExpr: '{expression}'"))]);
            both[1].problems.iter().map(|told| format!("{}; {}", told.problem, told.remedy)).collect::<Vec<_>>()
        };
        assert_eq!(verdict("@every 60s"), [""; 0]);
        assert_eq!(
            verdict("@every 59s"),
            [
                "the schedule fires every 59 s at its fastest, and the agent's alarms may fire every 60 s at most; make it \
              slower, or ask whoever enrolled the agent for a shorter interval"
            ]
        );
    }

    #[test]
    fn the_items_of_a_list_are_documents_of_their_own() {
        let list = format!("{{apiVersion: v1, kind: List, items: [{}, {}]}}", agent("ann"), alarm("delaySeconds: 0"));
        let both = findings(&[&list]);
        assert!(both[0].is_fine() && !both[1].is_fine(), "{both:?}");
    }

    #[test]
    fn a_file_cannot_write_to_the_terminal() {
        let odd = findings(&["{apiVersion: \"\\e[31m\", kind: \"\\a\\n\", metadata: {name: \"\\e[2J\"}, \"\\e]\": 1}"]);
        let text = report::text(&odd);
        assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{text:?}");
    }
}
