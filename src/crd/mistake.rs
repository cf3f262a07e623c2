use std::{collections::BTreeSet, fmt, sync::LazyLock};

use kube::CustomResourceExt;

use super::Alarm;
use crate::domain::invalid::Invalid;

/// A field of a resource that cannot stand as it is, in the words of the file: `spec.cronExpr`, not `cron_expr`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub field: String,
    /// What is wrong, to be read after the field's name: "is 101".
    pub problem: String,
    /// What to do about it: "give a number from 0 to 100".
    pub remedy: String,
}

impl Mistake {
    pub fn new(field: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into(), remedy: remedy.into() }
    }

    /// What the domain refuses, told to somebody who wrote YAML.
    pub(super) fn in_spec(invalid: &Invalid) -> Self {
        // Labels are the resource's own, as of any resource.
        let field = match invalid.field {
            "labels" => "metadata.labels".to_owned(),
            field => format!("spec.{}", camel_case(field)),
        };
        Self::new(field, in_resource_words(&invalid.problem), in_resource_words(&invalid.remedy))
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.field, self.problem, self.remedy)
    }
}

/// The spec's fields by their names over HTTP. Read from the schema, so that a new field needs no second list.
static FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
    let versions = Alarm::crd().spec.versions;
    let schemas = versions.into_iter().filter_map(|version| version.schema?.open_api_v3_schema?.properties);
    let specs = schemas.filter_map(|mut properties| properties.remove("spec")?.properties);
    specs.flat_map(|spec| spec.into_keys().map(|field| snake_case(&field))).collect()
});

/// A sentence of the domain's speaks of `fire_at`; whoever reads it here wrote `fireAt`. What stands in quotes is theirs and
/// stays as it is.
fn in_resource_words(sentence: &str) -> String {
    let word = |word: &str| if FIELDS.contains(word) { camel_case(word) } else { word.to_owned() };
    let translated = |text: &str| {
        let mut said = String::new();
        let mut rest = text;
        while !rest.is_empty() {
            let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let end = rest.find(|c| !part(c)).unwrap_or(rest.len());
            said += &word(&rest[..end]);
            let next = rest[end..].find(part).map_or(rest.len(), |at| end + at);
            said += &rest[end..next];
            rest = &rest[next..];
        }
        said
    };
    let quoted = |at: usize| at % 2 == 1;
    let parts = sentence.split('"').enumerate();
    let parts: Vec<String> =
        parts.map(|(at, part)| if quoted(at) { part.to_owned() } else { translated(part) }).collect();
    parts.join("\"")
}

/// `cron_expr` over HTTP is `cronExpr` in a resource.
fn camel_case(field: &str) -> String {
    let mut words = field.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| {
        let (initial, rest) = word.split_at(word.len().min(1));
        text + &initial.to_ascii_uppercase() + rest
    })
}

fn snake_case(field: &str) -> String {
    field.chars().fold(String::new(), |text, c| {
        if c.is_ascii_uppercase() { text + "_" + &c.to_ascii_lowercase().to_string() } else { text + &c.to_string() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_told_in_the_names_of_the_file() {
        let invalid =
            Invalid::new("fire_at", "stands beside delay_seconds", "give exactly one of fire_at and cron_expr");
        assert_eq!(
            Mistake::in_spec(&invalid).to_string(),
            "spec.fireAt: stands beside delaySeconds; give exactly one of fireAt and cronExpr"
        );
    }

    #[test]
    fn what_somebody_wrote_is_echoed_as_they_wrote_it() {
        let invalid = Invalid::new("cron_expr", "unknown descriptor \"@fire_at\"", "é fire_at, not fire_attic");
        let mistake = Mistake::in_spec(&invalid);
        assert_eq!(mistake.problem, "unknown descriptor \"@fire_at\"");
        assert_eq!(mistake.remedy, "é fireAt, not fire_attic");
    }
}
