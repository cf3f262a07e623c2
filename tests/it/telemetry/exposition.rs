//! A reader of Prometheus' text format that forgives nothing, written from the format's description.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug)]
pub struct Family {
    pub kind: String,
    pub help: String,
    /// Name and sorted labels of a series → its value.
    pub series: BTreeMap<(String, Vec<(String, String)>), f64>,
}

/// Families by name. Panics with the line that cannot stand.
pub fn read(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line ends");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current: Option<String> = None;
    let mut help: Option<(String, String)> = None;
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, words) = rest.split_once(' ').unwrap_or_else(|| panic!("help without words: {line}"));
            assert!(help.is_none(), "help without a type: {line}");
            help = Some((name.to_owned(), words.to_owned()));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or_else(|| panic!("no type: {line}"));
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            let (of, help) = help.take().unwrap_or_else(|| panic!("no help before {line}"));
            assert_eq!(of, name, "help and type of one family stand together");
            let family = Family { kind: kind.to_owned(), help, series: BTreeMap::new() };
            assert!(families.insert(name.to_owned(), family).is_none(), "twice: {line}");
            current = Some(name.to_owned());
        } else {
            assert!(!line.starts_with('#'), "a comment of no use: {line}");
            let family = current.as_ref().unwrap_or_else(|| panic!("a series of no family: {line}"));
            let (name, labels, value) = sample(line);
            let suffix = name.strip_prefix(family.as_str()).unwrap_or_else(|| panic!("{line} among {family}"));
            let found = families.get_mut(family).expect("it was just put there");
            let suffixes: &[&str] = if found.kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.contains(&suffix), "{line} among {family}");
            assert!(found.series.insert((name, labels), value).is_none(), "twice: {line}");
        }
    }
    assert!(help.is_none(), "help without a type at the end");
    for (name, family) in &families {
        check(name, family);
    }
    families
}

fn check(name: &str, family: &Family) {
    assert!(!family.series.is_empty(), "{name} has no series");
    let all = family.series.values();
    match family.kind.as_str() {
        "counter" => {
            assert!(name.ends_with("_total"), "{name}");
            assert!(all.clone().all(|value| *value >= 0.0 && value.fract() == 0.0), "{name}");
        }
        "histogram" => check_histogram(name, family),
        _ => assert!(!name.ends_with("_total"), "{name}"),
    }
    assert!(all.clone().all(|value| value.is_finite()), "{name}");
}

fn check_histogram(name: &str, family: &Family) {
    let of = |suffix: &str| -> BTreeMap<Vec<(String, String)>, f64> {
        let whole = format!("{name}{suffix}");
        family.series.iter().filter(|((n, _), _)| *n == whole).map(|((_, l), v)| (l.clone(), *v)).collect()
    };
    let (sums, counts) = (of("_sum"), of("_count"));
    assert_eq!(sums.keys().collect::<Vec<_>>(), counts.keys().collect::<Vec<_>>(), "{name}");
    for (labels, count) in &counts {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (mut bucket, value) in of("_bucket") {
            let le = bucket.iter().position(|(label, _)| label == "le").expect("a bucket has a bound");
            let (_, bound) = bucket.remove(le);
            if bucket == *labels {
                buckets.push((if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap() }, value));
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1), "{name}: {buckets:?}");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{name}");
    }
}

fn sample(line: &str) -> (String, Vec<(String, String)>, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line}"));
    let (name, inner) = match series.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}').unwrap_or_else(|| panic!("unclosed: {line}"))),
        None => (series, ""),
    };
    assert!(is_name(name), "{line}");
    let mut labels: Vec<(String, String)> = Vec::new();
    for label in inner.split(',').filter(|label| !label.is_empty()) {
        let (key, quoted) = label.split_once('=').unwrap_or_else(|| panic!("no label: {line}"));
        let text = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
        let text = text.unwrap_or_else(|| panic!("not quoted: {line}"));
        // None of our values needs an escape.
        assert!(is_name(key) && !text.contains(['"', '\\']), "{line}");
        labels.push((key.to_owned(), text.to_owned()));
    }
    labels.sort();
    let keys: BTreeSet<&str> = labels.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys.len(), labels.len(), "a label twice: {line}");
    (name.to_owned(), labels, value.parse().unwrap_or_else(|_| panic!("no number: {line}")))
}

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}
