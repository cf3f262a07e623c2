//! `resources.md`: every field of Alarm and Agent, from the definitions as they are installed.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, ValidationRule,
};

use super::{code, head, table};
use crate::{
    controller::{AGENT_FINALIZER, ALARM_FINALIZER},
    crd::{self, FIRE_REQUESTED_AT},
};

pub fn page() -> String {
    let about = format!(
        "\
Alarm and Agent, as `chronosd crd` defines them. The API server refuses at `kubectl apply` what breaks a rule, with the sentence that stands
here; what it cannot see (cron grammar, who may name an owner) the controller tells in the status. `chronosd explain -f FILE` checks all of
it offline.

- Annotation `{FIRE_REQUESTED_AT}` of an Alarm: a value that was not seen before asks for one wake now.
- Finalizers `{ALARM_FINALIZER}` and `{AGENT_FINALIZER}`: a deleted resource stays until its alarm is cancelled, or its agent removed.
  `chronosd finalizers release` takes them off.
"
    );
    let kinds: Vec<String> = crd::all().iter().rev().map(kind).collect();
    format!("{}\n{}", head("Resources", &about), kinds.join("\n"))
}

fn kind(definition: &CustomResourceDefinition) -> String {
    let (spec, names) = (&definition.spec, &definition.spec.names);
    let version = &spec.versions[0];
    let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
    let schema = schema.expect("a definition of ours has a schema");
    let called: Vec<String> =
        [&names.plural].into_iter().chain(names.short_names.iter().flatten()).map(|name| code(name)).collect();
    let mut parts = vec![
        format!("## {}", names.kind),
        schema.description.clone().unwrap_or_default(),
        format!(
            "`{}/{}`, {}; `kubectl` knows it as {}.",
            spec.group,
            version.name,
            spec.scope.to_lowercase(),
            called.join(" or ")
        ),
    ];
    for part in ["spec", "status"] {
        let Some(schema) = schema.properties.as_ref().and_then(|parts| parts.get(part)) else { continue };
        parts.push(format!("### {part} of {}", names.kind));
        parts.push(schema.description.clone().unwrap_or_default());
        let rules: Vec<String> = rules(schema).iter().map(|rule| format!("- {rule}")).collect();
        if !rules.is_empty() {
            parts.push("Rules across fields:".to_owned());
            parts.push(rules.join("\n"));
        }
        let mut rows = Vec::new();
        fields(schema, "", &mut rows);
        parts.push(table(&["field", "type", "rules", "meaning"], &rows).trim_end().to_owned());
    }
    parts.join("\n\n").trim_end().to_owned() + "\n"
}

/// Those of an object and of whatever is in it.
fn fields(object: &JSONSchemaProps, path: &str, rows: &mut Vec<Vec<String>>) {
    let required = |name: &str| object.required.iter().flatten().any(|required| required == name);
    for (name, field) in object.properties.iter().flatten() {
        let path = format!("{path}{name}");
        let mut told: Vec<String> = Vec::new();
        if required(name) {
            told.push("required".to_owned());
        }
        told.extend(bounds(field));
        told.extend(rules(field));
        rows.push(vec![code(&path), type_of(field), told.join("; "), field.description.clone().unwrap_or_default()]);
        fields(field, &format!("{path}."), rows);
        if let Some(JSONSchemaPropsOrArray::Schema(item)) = &field.items {
            fields(item, &format!("{path}[]."), rows);
        }
    }
}

fn type_of(field: &JSONSchemaProps) -> String {
    let named = field.type_.as_deref().unwrap_or("any");
    match (&field.items, field.format.as_deref()) {
        (Some(JSONSchemaPropsOrArray::Schema(item)), _) => format!("list of {}", type_of(item)),
        (_, Some("date-time")) => "instant".to_owned(),
        _ => named.to_owned(),
    }
}

/// What a schema says without a rule of ours.
fn bounds(field: &JSONSchemaProps) -> Vec<String> {
    let mut told = Vec::new();
    if let Some(values) = &field.enum_ {
        let values: Vec<String> = values.iter().map(|value| code(value.0.as_str().unwrap_or_default())).collect();
        told.push(format!("one of {}", values.join(", ")));
    }
    match (field.minimum, field.maximum) {
        (Some(least), Some(most)) => told.push(format!("{least} to {most}")),
        (Some(least), None) => told.push(format!("{least} or more")),
        (None, Some(most)) => told.push(format!("{most} or less")),
        (None, None) => {}
    }
    told.extend(field.max_length.map(|most| format!("at most {most} characters")));
    told.extend(field.max_items.map(|most| format!("at most {most}")));
    told.extend(field.default.as_ref().map(|default| format!("default {}", code(&default.0.to_string()))));
    told
}

/// The sentences with which the API server refuses.
fn rules(field: &JSONSchemaProps) -> Vec<String> {
    let sentence = |rule: &ValidationRule| rule.message.clone().unwrap_or_else(|| code(&rule.rule));
    let place = |rule: &ValidationRule| {
        rule.field_path.as_deref().map(|path| format!("{}: ", code(path.trim_start_matches('.'))))
    };
    field
        .x_kubernetes_validations
        .iter()
        .flatten()
        .map(|rule| format!("{}{}", place(rule).unwrap_or_default(), sentence(rule)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_has_a_row_with_its_type_and_what_it_must_be() {
        let page = page();
        let row = |field: &str| {
            let begin = format!("| `{field}` | ");
            page.lines().find(|line| line.starts_with(&begin)).unwrap_or_else(|| panic!("{field}: {page}")).to_owned()
        };
        assert!(
            row("owner")
                .starts_with("| `owner` | string | required; at most 256 characters; write did:matrix:&lt;user id>")
        );
        assert!(row("misfire").contains("one of `fire_once`, `skip`, `fire_all`"), "{}", row("misfire"));
        assert!(row("maxFailures").contains("| integer | 0 to 100 |"), "{}", row("maxFailures"));
        assert!(row("suspended").contains("default `false`"), "{}", row("suspended"));
        assert!(row("conditions[].reason").contains("| string | required"), "{}", row("conditions[].reason"));
        assert!(page.contains("- `did`: did is immutable: create another Agent\n"), "{page}");
    }
}
