//! What was found, for people and for programs.

use serde_json::{Value, json};

use super::judge::{Finding, Problem, Subject};
use crate::cli::fires;

pub fn text(findings: &[Finding]) -> String {
    let mut lines: Vec<String> = findings.iter().flat_map(block).collect();
    let wrong = findings.iter().filter(|finding| !finding.is_fine()).count();
    let foreign = findings.iter().filter(|finding| finding.is_fine() && finding.is_foreign()).count();
    let counts = [(findings.len() - wrong - foreign, "fine"), (wrong, "with mistakes"), (foreign, "not ours")];
    let counts = counts.iter().filter(|(n, _)| *n > 0).map(|(n, words)| format!("{n} {words}"));
    lines.push(counts.collect::<Vec<_>>().join(", "));
    lines.join("\n") + "\n"
}

pub fn json(findings: &[Finding]) -> String {
    let problem = |problem: &Problem| {
        let Problem { field, line, problem, remedy } = problem;
        json!({ "field": field, "line": line, "problem": problem, "remedy": remedy })
    };
    let one = |finding: &Finding| {
        json!({
            "file": finding.file,
            "line": finding.line,
            "kind": finding.kind,
            "namespace": finding.namespace,
            "name": finding.name,
            "ok": finding.is_fine(),
            "problems": finding.problems.iter().map(problem).collect::<Vec<_>>(),
            "notes": finding.notes,
            "description": finding.description,
            "fires": fires::json(&finding.fires, finding.spread),
        })
    };
    format!("{:#}\n", findings.iter().map(one).collect::<Value>())
}

fn block(finding: &Finding) -> Vec<String> {
    let verdict = match finding.problems.len() {
        0 if finding.is_foreign() => "not ours".to_owned(),
        0 => "fine".to_owned(),
        1 => "1 mistake".to_owned(),
        n => format!("{n} mistakes"),
    };
    let mut lines = vec![format!("{}: {verdict}", finding.place())];
    lines.extend(finding.description.as_ref().map(|words| match &finding.subject {
        Subject::Alarm { owner, .. } => format!("  wakes {owner} {words}"),
        Subject::Agent { .. } | Subject::Foreign | Subject::Unknown => format!("  {words}"),
    }));
    lines.extend(fires::lines(&finding.fires).iter().map(|fire| format!("    {fire}")));
    lines.extend(finding.notes.iter().map(|note| format!("  note: {note}")));
    for Problem { field, line, problem, remedy } in &finding.problems {
        let line = line.map_or_else(String::new, |line| format!("line {line}: "));
        let field = field.as_ref().map_or_else(String::new, |field| format!("{field}: "));
        lines.extend([format!("  {line}{field}{problem}"), format!("      {remedy}")]);
    }
    lines.iter().map(|line| one_line(line)).collect()
}

/// What a file says reaches a terminal: no line breaks and no control characters of its choosing.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl Finding {
    /// `alarms.yaml:2 Alarm home/tea`.
    pub fn place(&self) -> String {
        let line = self.line.map(|line| format!(":{line}")).unwrap_or_default();
        let name = match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
            (None, Some(name)) => name.clone(),
            (_, None) => String::new(),
        };
        let parts = [Some(format!("{}{line}", self.file)), self.kind.clone(), Some(name)];
        let parts: Vec<String> = parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        one_line(&parts.join(" "))
    }
}
