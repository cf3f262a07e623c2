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
            "crate::leader",
        ],
    ),
    // Who leads is nobody's business but the composition root's, and an election knows no work.
    (
        "leader",
        &[
            "crate::controller",
            "crate::dispatch",
            "crate::http",
            "crate::router",
            "crate::store",
            "crate::crd",
            "crate::run",
            "sqlx",
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
            let told = fs::read_to_string(&file).unwrap();
            let reached =
                words.iter().filter(|word| statements(&told).iter().any(|statement| mentions(statement, word)));
            found.extend(reached.map(|word| format!("{} mentions {word}", file.display())));
        }
    }
    assert!(found.is_empty(), "a layer reaches where it must not:\n{}", found.join("\n"));
}

#[test]
fn no_file_is_longer_than_a_reader_can_bear() {
    const LONGEST: usize = 600;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = ["src", "tests", "bench", "fuzz/parsers"].iter().flat_map(|folder| sources(&root.join(folder)));
    let long: Vec<String> = files
        .map(|file| (fs::read_to_string(&file).unwrap().lines().count(), file))
        .filter(|(lines, _)| *lines > LONGEST)
        .map(|(lines, file)| format!("{} has {lines} lines", file.display()))
        .collect();
    assert!(long.is_empty(), "split these: {long:?}");
}

#[test]
fn zone_rules_come_from_one_file() {
    let knows_jiff = |file: &PathBuf| {
        let text = fs::read_to_string(file).unwrap();
        statements(&text).iter().any(|statement| mentions(statement, "jiff"))
    };
    let mut users: Vec<_> = sources(&src()).into_iter().filter(knows_jiff).collect();
    users.sort();
    let users: Vec<_> = users.iter().map(|file| file.strip_prefix(src()).unwrap().to_str().unwrap()).collect();
    // The status and Leases hold the API server's own timestamps, which are jiff's.
    assert_eq!(users, ["controller/status/conditions.rs", "domain/schedule/zone.rs", "leader/mod.rs"]);
}

#[test]
fn a_forbidden_word_is_found_however_it_is_imported() {
    let source = "//! about sqlx\nuse crate::{\n    domain::{ids, wake::Wake}, // why\n    dispatch::Dispatcher,\n    store,\n};\n\
                  fn f() { sqlx::query(text); }\n#[cfg(test)]\nmod tests {\n    use crate::http;\n}\n";
    let found = |word: &str| statements(source).iter().any(|statement| mentions(statement, word));
    for word in ["crate::dispatch", "crate::store", "crate::domain", "crate::domain::wake", "sqlx"] {
        assert!(found(word), "{word}");
    }
    for word in ["crate::http", "crate::wake", "crate::disp", "sql", "kube"] {
        assert!(!found(word), "{word}");
    }
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

/// The code of a file: imports as whole paths, one each, everything else line by line. No comments, and nothing of a module
/// `tests` at its foot.
fn statements(source: &str) -> Vec<String> {
    let code: Vec<&str> = source
        .split("\n#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default()
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect();
    let mut found = Vec::new();
    let mut lines = code.into_iter();
    while let Some(line) = lines.next() {
        let start = line.trim_start().trim_start_matches("pub ").trim_start_matches("pub(super) ");
        let Some(mut import) = start.strip_prefix("use ").map(str::to_owned) else {
            found.push(line.to_owned());
            continue;
        };
        while !import.contains(';') {
            import.push_str(lines.next().expect("an import ends"));
        }
        expand("", import.split(';').next().unwrap_or_default().trim(), &mut found);
    }
    found
}

/// `a::{b, c::{d, e}}` → `a::b`, `a::c::d`, `a::c::e`.
fn expand(prefix: &str, tree: &str, found: &mut Vec<String>) {
    let Some((head, group)) = tree.split_once('{') else {
        found.push(format!("{prefix}{tree}"));
        return;
    };
    let prefix = format!("{prefix}{}", head.trim());
    let (mut depth, mut start) = (0, 0);
    let inner = group.rsplit_once('}').map_or(group, |(inner, _)| inner);
    for (at, character) in inner.char_indices().chain([(inner.len(), ',')]) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = inner[start..at].trim();
                if !part.is_empty() {
                    expand(&prefix, part, found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// Whether `word` stands in `line` as a whole: `kube` is not in `kubernetes`.
fn mentions(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(part) && (word.ends_with(':') || !after.is_some_and(part))
    })
}
