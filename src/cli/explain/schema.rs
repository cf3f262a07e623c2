//! A document against the CRD's schema: what the API server would refuse before the controller sees anything. Types,
//! lengths, ranges, words and the names of fields are read from the generated definition: there is no second list. What the
//! definition checks by CEL is said in [`crate::crd`] once more.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde_json::{Map, Value};

use super::yaml::{Entry, Node, Tree};
use crate::{crd::Mistake, domain::invalid::quoted};

/// What was found, and a value that can be decoded whatever was found.
#[derive(Debug, Default)]
pub struct Checked {
    /// Missing, of the wrong type, unknown or given twice: nothing more can be said about these fields.
    pub unusable: Vec<Mistake>,
    /// Readable, but outside the schema's limits. The domain may have a better sentence.
    pub outside: Vec<Mistake>,
}

/// Two names at least this alike are taken for a slip of the pen. `crnExpr` and `cronExpr` have 0.88, `label` and `owner` 0.2.
const ALIKE: f64 = 0.6;
/// Shorter pieces of a name are found in anything.
const SHORTEST_PIECE: usize = 4;

impl Checked {
    /// The node as JSON. A field of the wrong type is told and replaced by a stand-in of the right one, so that whatever
    /// depends on its presence is judged as if it were right.
    pub fn check(&mut self, node: &Node, schema: &JSONSchemaProps, path: &str) -> Value {
        match (schema.type_.as_deref(), &node.tree) {
            (Some("object"), Tree::Map(_)) => self.check_with(node, &[], schema, path),
            (Some("string"), Tree::Scalar(Value::String(text))) => {
                self.check_text(text, schema, path);
                text.as_str().into()
            }
            (Some("boolean"), Tree::Scalar(Value::Bool(value))) => (*value).into(),
            (Some("integer"), Tree::Scalar(Value::Number(number))) if whole(number).is_some() => {
                let number = whole(number).unwrap_or_default();
                self.check_range(number, schema, path);
                // What is told above must still fit the type it is decoded into.
                let narrow = schema.format.as_deref() == Some("int32");
                if narrow { number.clamp(i32::MIN.into(), i32::MAX.into()).into() } else { number.into() }
            }
            // Lists come unchecked: no spec has one.
            (None, _) | (Some("array"), Tree::List(_)) => node.to_json(),
            (Some(wanted), _) => {
                let (problem, remedy) = wrong_type(wanted, node);
                self.unusable.push(Mistake::new(path, problem, remedy));
                stand_in(wanted, node, schema)
            }
        }
    }

    /// A map, with fields that belong into it and stand elsewhere: they are judged as if they stood here.
    pub fn check_with(&mut self, node: &Node, more: &[&Entry], schema: &JSONSchemaProps, path: &str) -> Value {
        if !matches!(node.tree, Tree::Map(_)) {
            return self.check(node, schema, path);
        }
        let Some(properties) = &schema.properties else { return node.to_json() };
        let mut whole = Map::new();
        let known: Vec<&str> = properties.keys().map(String::as_str).collect();
        for entry in self.without_repeats(node, path).into_iter().chain(more.iter().copied()) {
            let path = joined(path, &entry.key);
            match properties.get(&entry.key) {
                None => {
                    self.unusable.push(unknown_field(&path, &entry.key, &known));
                    // Judged under the name that was meant, or that field would be told as missing besides.
                    let meant = nearest(&entry.key, &known).filter(|meant| node.get(meant).is_none());
                    if let Some((meant, property)) = meant.and_then(|meant| properties.get_key_value(meant)) {
                        let value = self.check(&entry.node, property, &path);
                        whole.insert(meant.clone(), value);
                    }
                }
                // As good as left out.
                Some(_) if entry.node.is_null() => {}
                Some(property) => {
                    let value = self.check(&entry.node, property, &path);
                    whole.insert(entry.key.clone(), value);
                }
            }
        }
        for required in schema.required.iter().flatten() {
            if !whole.contains_key(required) {
                let property = properties.get(required);
                let words = property.and_then(|property| property.description.as_deref()).map(as_order);
                let remedy = words.unwrap_or_else(|| "give it".to_owned());
                self.unusable.push(Mistake::new(joined(path, required), "is missing", remedy));
                whole.insert(required.clone(), empty(property.and_then(|property| property.type_.as_deref())));
            }
        }
        Value::Object(whole)
    }

    /// A map's entries, the last of those that come twice; the repetition is told.
    pub fn without_repeats<'n>(&mut self, node: &'n Node, path: &str) -> Vec<&'n Entry> {
        let mut seen = BTreeSet::new();
        let mut kept: Vec<_> = node
            .entries()
            .iter()
            .rev()
            .filter(|entry| {
                let new = seen.insert(entry.key.as_str());
                if !new {
                    let remedy = "give it once: only the last would count";
                    self.unusable.push(Mistake::new(joined(path, &entry.key), "is given twice", remedy));
                }
                new
            })
            .collect();
        kept.reverse();
        kept
    }

    fn check_text(&mut self, text: &str, schema: &JSONSchemaProps, path: &str) {
        // Characters, as the API server counts; the domain counts bytes.
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        if let Some(longest) = schema.max_length.filter(|longest| length > *longest) {
            let remedy = format!("shorten it to at most {longest}");
            self.outside.push(Mistake::new(path, format!("is {length} characters long"), remedy));
        }
        let allowed: Vec<&str> = schema.enum_.iter().flatten().filter_map(|word| word.0.as_str()).collect();
        if !allowed.is_empty() && !allowed.contains(&text) {
            let remedy = format!("give one of {}", allowed.join(", "));
            self.outside.push(Mistake::new(path, format!("is {}", quoted(text)), remedy));
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "the schema's bounds are far below 2^53")]
    fn check_range(&mut self, number: i64, schema: &JSONSchemaProps, path: &str) {
        let value = number as f64;
        let below = schema.minimum.filter(|minimum| value < *minimum);
        let above = schema.maximum.filter(|maximum| value > *maximum);
        // Also where the schema names no bound: a number that its type cannot hold.
        let narrow = schema.format.as_deref() == Some("int32") && i32::try_from(number).is_err();
        if below.is_some() || above.is_some() || narrow {
            let least = schema.minimum.map_or(String::new(), |minimum| format!(" from {minimum}"));
            let most = schema.maximum.or(narrow.then_some(f64::from(i32::MAX)));
            let most = most.map_or(String::new(), |maximum| format!(" to {maximum}"));
            let remedy = format!("give a whole number{least}{most}");
            let list = if narrow { &mut self.unusable } else { &mut self.outside };
            list.push(Mistake::new(path, format!("is {number}"), remedy));
        }
    }
}

/// A field that the schema does not have, and the one that was meant if that can be guessed.
pub fn unknown_field(path: &str, given: &str, known: &[&str]) -> Mistake {
    let remedy = match nearest(given, known) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("leave it out; known here: {}", known.join(", ")),
    };
    Mistake::new(path, "is not a known field", remedy)
}

/// What people write who come from a `CronJob` or another scheduler.
const ELSEWHERE: [(&str, &str); 4] =
    [("schedule", "cronExpr"), ("tz", "timezone"), ("suspended", "suspend"), ("prompt", "wakeMessage")];

/// The name that was probably meant.
pub fn nearest<'k>(given: &str, known: &[&'k str]) -> Option<&'k str> {
    let bare = |text: &str| text.replace(['_', '-'], "").to_lowercase();
    let given = bare(given);
    let elsewhere = ELSEWHERE.iter().find(|(there, _)| *there == given).map(|(_, here)| *here);
    if let Some(here) = elsewhere.and_then(|here| known.iter().find(|name| **name == here)) {
        return Some(here);
    }
    let likeness = |name: &&'k str| {
        let name = bare(name);
        let shorter = given.len().min(name.len());
        let piece = shorter >= SHORTEST_PIECE && (name.contains(&given) || given.contains(&name));
        let alike = strsim::normalized_damerau_levenshtein(&given, &name);
        if piece { alike.max(ALIKE) } else { alike }
    };
    let best = known.iter().max_by(|one, other| likeness(one).total_cmp(&likeness(other)))?;
    (likeness(best) >= ALIKE).then_some(*best)
}

pub fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// JSON's `5.0` is five, for the API server too.
fn whole(number: &serde_json::Number) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "whole and within what a double holds exactly")]
    let of_float = |float: f64| (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64);
    number.as_i64().or_else(|| number.as_f64().filter(|_| number.is_f64()).and_then(of_float))
}

fn wrong_type(wanted: &str, node: &Node) -> (String, String) {
    let found = match &node.tree {
        Tree::Scalar(Value::String(text)) => format!("is the text {}", quoted(text)),
        Tree::Scalar(Value::Number(number)) => format!("is the number {number}"),
        Tree::Scalar(Value::Bool(value)) => format!("is the boolean {value}"),
        Tree::Scalar(_) => "is empty".to_owned(),
        Tree::List(_) => "is a list".to_owned(),
        Tree::Map(_) => "is a map".to_owned(),
    };
    let text = node.as_text().map(str::trim);
    let remedy = match (wanted, &node.tree) {
        // Not the value itself: 010 is the number 8 by now, and yes, on and true are all the boolean true.
        ("string", Tree::Scalar(Value::Number(_) | Value::Bool(_))) => "put it in quotes, as you wrote it".to_owned(),
        ("string", _) => "give a text".to_owned(),
        ("integer", _) => match text.and_then(|text| text.parse::<i64>().ok()) {
            Some(number) => format!("write it without quotes: {number}"),
            None => "give a whole number".to_owned(),
        },
        ("boolean", _) => "write true or false, without quotes".to_owned(),
        ("object", _) => "give a map of fields".to_owned(),
        ("array", _) => "give a list".to_owned(),
        (other, _) => format!("give a value of type {other}"),
    };
    (found, remedy)
}

fn stand_in(wanted: &str, node: &Node, schema: &JSONSchemaProps) -> Value {
    match wanted {
        "string" => node.to_json().to_string().into(),
        #[expect(clippy::cast_possible_truncation, reason = "our bounds are whole numbers")]
        "integer" => (schema.minimum.unwrap_or_default() as i64).into(),
        other => empty(Some(other)),
    }
}

fn empty(wanted: Option<&str>) -> Value {
    match wanted {
        Some("string") => "".into(),
        Some("integer" | "number") => 0.into(),
        Some("boolean") => false.into(),
        Some("object") => Value::Object(Map::new()),
        Some("array") => Value::Array(Vec::new()),
        Some(_) | None => Value::Null,
    }
}

/// The first sentence of a field's description, as an order: "give the agent's whole ed25519 public key".
fn as_order(description: &str) -> String {
    let first = description.split_once(". ").map_or(description, |(first, _)| first);
    let first = first.lines().next().unwrap_or(first).trim_end_matches('.');
    let initial: String = first.chars().take(1).flat_map(char::to_lowercase).collect();
    format!("give {initial}{}", first.chars().skip(1).collect::<String>())
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt;
    use serde_json::json;

    use super::super::yaml::documents;
    use super::*;
    use crate::crd::Alarm;

    fn schema() -> JSONSchemaProps {
        let version = Alarm::crd().spec.versions.remove(0);
        version.schema.unwrap().open_api_v3_schema.unwrap().properties.unwrap().remove("spec").unwrap()
    }

    fn check(text: &str) -> (Value, Vec<String>, Vec<String>) {
        let node = documents(text).remove(0).read.unwrap();
        let mut checked = Checked::default();
        let value = checked.check(&node, &schema(), "spec");
        let told = |mistakes: Vec<Mistake>| mistakes.iter().map(ToString::to_string).collect();
        (value, told(checked.unusable), told(checked.outside))
    }

    #[test]
    fn a_wrong_type_is_told_field_by_field_and_something_can_be_decoded_all_the_same() {
        let (value, unusable, outside) = check(
            "{owner: yes, wakeMessage: [x], cronExpr: 5, maxFailures: '3', delaySeconds: soon, payload: text, label: null}",
        );
        assert_eq!(
            unusable,
            [
                "spec.owner: is the boolean true; put it in quotes, as you wrote it",
                "spec.wakeMessage: is a list; give a text",
                "spec.cronExpr: is the number 5; put it in quotes, as you wrote it",
                "spec.maxFailures: is the text \"3\"; write it without quotes: 3",
                "spec.delaySeconds: is the text \"soon\"; give a whole number",
                "spec.payload: is the text \"text\"; give a map of fields",
            ]
        );
        assert!(outside.is_empty(), "{outside:?}");
        let expected = json!({
            "owner": "true", "wakeMessage": "[\"x\"]", "cronExpr": "5", "maxFailures": 0, "delaySeconds": 1, "payload": {}
        });
        assert_eq!(value, expected);
        assert!(serde_json::from_value::<crate::crd::AlarmSpec>(value).is_ok());
    }

    #[test]
    fn unknown_repeated_and_missing_fields_are_told() {
        let (_, unusable, _) = check("{cron_expr: '@daily', tz: UTC, color: red, label: a, label: b, owner: null}");
        assert_eq!(
            unusable,
            [
                "spec.label: is given twice; give it once: only the last would count",
                "spec.cron_expr: is not a known field; did you mean cronExpr?",
                "spec.tz: is not a known field; did you mean timezone?",
                "spec.color: is not a known field; leave it out; known here: conversationId, cronExpr, delaySeconds, endsAt, \
                 fireAt, label, maxFailures, maxLatenessSeconds, misfire, owner, payload, payloadJson, spreadSeconds, \
                 startsAt, suspend, timezone, wakeMessage",
                "spec.owner: is missing; give the DID of the agent to wake: did:matrix:<user id>:<first 16 hex digits of its \
                 public key>, in lower case",
                "spec.wakeMessage: is missing; give what the agent is told when it wakes",
            ]
        );
    }

    #[test]
    fn the_limits_of_the_schema_hold() {
        let whole = "owner: 'did:matrix:ann:d75a980182b10ab7', wakeMessage: x";
        let long = "é".repeat(257);
        assert_eq!(
            check(&format!("{{{whole}, label: {long}, maxFailures: 101, delaySeconds: 0, misfire: never}}")).2,
            [
                "spec.label: is 257 characters long; shorten it to at most 256",
                "spec.maxFailures: is 101; give a whole number from 0 to 100",
                "spec.delaySeconds: is 0; give a whole number from 1 to 2365200000",
                "spec.misfire: is \"never\"; give one of fire_once, skip, fire_all",
            ]
        );
        assert!(check(&format!("{{{whole}, maxFailures: 5.0}}")).2.is_empty());
    }

    #[test]
    fn a_slip_of_the_pen_is_recognised_and_a_stranger_is_not() {
        let schema = schema();
        let known: Vec<&str> = schema.properties.as_ref().unwrap().keys().map(String::as_str).collect();
        for (given, meant) in [
            ("cronexpr", "cronExpr"),
            ("crnExpr", "cronExpr"),
            ("cron", "cronExpr"),
            ("timeZone", "timezone"),
            ("message", "wakeMessage"),
            ("delay_seconds", "delaySeconds"),
            ("fire_at", "fireAt"),
            ("payload_json", "payloadJson"),
            ("labels", "label"),
            ("schedule", "cronExpr"),
            ("tz", "timezone"),
        ] {
            assert_eq!(nearest(given, &known), Some(meant), "{given}");
        }
        for stranger in ["replicas", "x", "", "image"] {
            assert_eq!(nearest(stranger, &known), None, "{stranger}");
        }
    }
}
