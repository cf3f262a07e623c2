//! Who may know whom. Read from the sources: a module that reaches where it must not turns this red.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Below `src/`, these places must not mention these words in code.
const FORBIDDEN: &[(&str, &[&str])] = &[
    // What decides does no I/O, asks no clock, awaits nothing.
    (
        "domain",
        &[
            "sqlx",
            "kube",
            "k8s_openapi",
            "axum",
            "reqwest",
            "tokio",
            "tracing",
            "std::fs",
            "std::net",
            "std::env",
            "std::process",
            "Utc::now",
            "SystemTime",
            "Instant::now",
            "async fn",
            "async move",
            "rand::",
            "crate::store",
            "crate::controller",
            "crate::dispatch",
            "crate::http",
            "crate::router",
            "crate::crd",
            "crate::config",
            "crate::clock",
            "crate::run",
            "crate::dev",
            "crate::cli",
            "crate::telemetry",
        ],
    ),
    // They meet in Postgres, not in each other.
    ("controller", &["crate::dispatch", "crate::http", "crate::router", "crate::run", "sqlx"]),
    ("dispatch", &["crate::controller", "crate::http", "crate::crd", "crate::run", "sqlx", "kube"]),
    ("http", &["crate::controller", "crate::dispatch", "crate::router", "crate::crd", "crate::run", "sqlx", "kube"]),
    (
        "router",
        &[
            "crate::controller",
            "crate::dispatch",
            "crate::http",
            "crate::store",
            "crate::crd",
            "crate::run",
            "sqlx",
            "kube",
        ],
    ),
    (
        "store",
        &[
            "crate::controller",
            "crate::dispatch",
            "crate::http",
            "crate::router",
            "crate::crd",
            "crate::run",
            "kube",
            "axum",
        ],
    ),
    (
        "crd",
        &["crate::controller", "crate::dispatch", "crate::http", "crate::router", "crate::store", "crate::run", "sqlx"],
    ),
];

#[test]
fn no_module_reaches_where_it_must_not() {
    let mut found = Vec::new();
    for (layer, words) in FORBIDDEN {
        let files = sources(&src().join(layer));
        assert!(!files.is_empty(), "layer {layer} has sources");
        for file in files {
            for (number, line) in code(&file) {
                let reached = words.iter().filter(|word| mentions(&line, word));
                found.extend(reached.map(|word| format!("{}:{number} mentions {word}: {line}", file.display())));
            }
        }
    }
    assert!(found.is_empty(), "a layer reaches where it must not:\n{}", found.join("\n"));
}

#[test]
fn zone_rules_come_from_one_file() {
    let files = sources(&src());
    let users = files.iter().filter(|file| code(file).iter().any(|(_, line)| mentions(line, "jiff")));
    let mut users: Vec<_> = users.map(|file| file.strip_prefix(src()).unwrap().display().to_string()).collect();
    users.sort();
    // The status writes the API server's own timestamps, which are jiff's.
    assert_eq!(users, ["controller/status.rs", "domain/schedule/zone.rs"]);
}

#[test]
fn a_forbidden_word_is_found_where_it_stands_alone() {
    assert!(mentions("use sqlx::PgPool;", "sqlx"));
    assert!(mentions("let row = sqlx::query(text);", "sqlx"));
    assert!(!mentions("use kubernetes_like::Thing;", "kube"));
    assert!(!mentions("let sqlx_like = 1;", "sqlx"));
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] })
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .collect()
}

/// Numbered lines of code: no comments, and nothing below the file's tests.
fn code(file: &Path) -> Vec<(usize, String)> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim().to_owned()));
    lines
        .take_while(|(_, line)| line != "#[cfg(test)]" || file.ends_with("mod.rs"))
        .filter(|(_, line)| !line.starts_with("//"))
        .collect()
}

/// Whether `word` stands in `line` as a whole: `kube` is not in `kubernetes`.
fn mentions(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        let open_end = word.ends_with(':') || !after.is_some_and(part);
        !before.is_some_and(part) && open_end
    })
}
