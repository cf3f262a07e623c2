//! YAML as people write it: documents, and the line on which everything stands.
//!
//! A file is cut at its `---` lines before anything is parsed, as kubectl does, so that one broken document does not hide
//! the others. Scalars are read as kubectl reads them (`yes` is a boolean, `010` is eight), since what matters is what the
//! API server would be sent. JSON is YAML.

use std::{fmt, thread};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
use serde_saphyr::{DuplicateKeyPolicy, Spanned};

/// One document of a file.
#[derive(Debug)]
pub struct Document {
    /// Where its first words stand.
    pub line: u64,
    pub read: Result<Node, Broken>,
}

/// A document that is no YAML.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken {
    pub line: u64,
    pub problem: String,
    pub remedy: String,
}

#[derive(Debug)]
pub struct Node {
    pub line: u64,
    pub tree: Tree,
}

#[derive(Debug)]
pub enum Tree {
    Scalar(Value),
    List(Vec<Node>),
    /// In the order of the file. A key may come twice.
    Map(Vec<Entry>),
}

#[derive(Debug)]
pub struct Entry {
    pub key: String,
    pub line: u64,
    pub node: Node,
}

/// A payload that chronos keeps (64 levels) with what stands above it, and a few more, so that the sentence about one that is
/// too deep is the domain's.
const DEEPEST: usize = 80;
/// The parser takes up to 30 KiB a level in a debug build: 2.4 MiB, more than a thread normally has.
const STACK: usize = 16 * 1024 * 1024;

/// On a stack that bears the deepest document, whatever the caller's limit is.
pub fn documents(text: &str) -> Vec<Document> {
    let read = || pieces(text).into_iter().filter_map(|(first_line, piece)| document(first_line, piece)).collect();
    let given_up = || {
        let problem = "cannot be parsed: the parser gave up".to_owned();
        let remedy = "simplify the file, and report what it was".to_owned();
        vec![Document { line: 1, read: Err(Broken { line: 1, problem, remedy }) }]
    };
    thread::scope(|scope| {
        let parser = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, read);
        parser.ok().and_then(|parser| parser.join().ok()).unwrap_or_else(given_up)
    })
}

/// `None` for one that says nothing: comments, or a `---` too many.
fn document(first_line: u64, text: &str) -> Option<Document> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        // Both come through, and the second is told as a mistake among the others.
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        with_snippet: false,
        budget: serde_saphyr::budget! { max_depth: DEEPEST },
    };
    match serde_saphyr::from_str_with_options::<Node>(text, options) {
        Ok(Node { tree: Tree::Scalar(Value::Null), .. }) => None,
        Ok(mut node) => {
            node.move_down(first_line - 1);
            Some(Document { line: node.line, read: Ok(node) })
        }
        Err(error) => {
            let at = error.location().map_or(1, |location| location.line()).max(1);
            let (problem, remedy) = broken(&error.to_string(), line(text, at));
            let silent =
                |line: &&str| line.trim().is_empty() || line.starts_with(['#', '%']) || line.starts_with("---");
            let begin = (0..).zip(text.lines()).find(|(_, line)| !silent(line)).map_or(0, |(number, _)| number);
            let read = Err(Broken { line: first_line - 1 + at, problem, remedy });
            Some(Document { line: first_line + begin, read })
        }
    }
}

/// The pieces between the `---` lines, each with the line it begins on. Such a line may carry the document's first words.
fn pieces(text: &str) -> Vec<(u64, &str)> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut pieces = Vec::new();
    let (mut start, mut start_line, mut at) = (0, 1, 0);
    for (number, line) in (1..).zip(text.split_inclusive('\n')) {
        let separates =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        // What stands before the first one may be directives, which belong to the document behind it.
        if separates && !only_directives(&text[start..at]) {
            pieces.push((start_line, &text[start..at]));
            (start, start_line) = (at, number);
        }
        at += line.len();
    }
    pieces.push((start_line, &text[start..]));
    pieces
}

fn only_directives(text: &str) -> bool {
    let mut lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')).peekable();
    lines.peek().is_some() && lines.all(|line| line.starts_with('%'))
}

fn line(text: &str, number: u64) -> &str {
    let skipped = usize::try_from(number - 1).unwrap_or(usize::MAX);
    text.lines().nth(skipped).unwrap_or_default()
}

/// The parser's words, and a remedy for what people get wrong most: `cronExpr: @daily` and `cronExpr: */5 * * * *`.
fn broken(error: &str, line: &str) -> (String, String) {
    /// What begins something else than a text.
    const MARKS: [char; 5] = ['@', '*', '&', '%', '`'];
    // Its position is told as the document's line, and what it says after that is for programmers.
    let words = error.split(" at line ").next().unwrap_or(error);
    let words = words.split(", set ").next().unwrap_or(words);
    let words = words.split("; use from_str").next().unwrap_or(words);
    if words.starts_with("budget breached") || words.contains("recursion limit") {
        let problem = "is too large or too deeply nested".to_owned();
        return (problem, "split it, or flatten it".to_owned());
    }
    // A colon inside an unquoted text ends it; in a flow or in quotes it does not.
    let is_sentence = |value: &str| value.contains(": ") && !value.starts_with(['{', '[', '"', '\'']);
    let value = line.split_once(": ").map(|(key, value)| (key.trim(), value.trim()));
    let remedy = match value {
        _ if line.contains("{{") => {
            "render the template first, as helm template does, and check what comes out".to_owned()
        }
        Some((key, value)) if (value.starts_with(MARKS) || is_sentence(value)) && value.len() < 100 => {
            format!("put the value in quotes: {key}: {value:?}")
        }
        Some(_) | None if words.contains("found a tab") => {
            "indent with spaces, not with tabs, here or below".to_owned()
        }
        Some(_) | None if line.trim_start_matches(' ').starts_with('\t') => {
            "indent with spaces, not with tabs".to_owned()
        }
        Some(_) | None if words.starts_with("multiple YAML documents") => {
            "begin every document with a line of three dashes".to_owned()
        }
        Some(_) | None => "mend this line or the one before it".to_owned(),
    };
    (format!("is not YAML: {words}"), remedy)
}

impl Node {
    /// The value of a key; of one that comes twice, the last.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().rev().find(|entry| entry.key == key)
    }

    /// Empty unless it is a map.
    pub fn entries(&self) -> &[Entry] {
        match &self.tree {
            Tree::Map(entries) => entries,
            Tree::Scalar(_) | Tree::List(_) => &[],
        }
    }

    pub fn as_text(&self) -> Option<&str> {
        match &self.tree {
            Tree::Scalar(Value::String(text)) => Some(text),
            Tree::Scalar(_) | Tree::List(_) | Tree::Map(_) => None,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self.tree, Tree::Scalar(Value::Null))
    }

    pub fn to_json(&self) -> Value {
        match &self.tree {
            Tree::Scalar(value) => value.clone(),
            Tree::List(items) => items.iter().map(Node::to_json).collect(),
            Tree::Map(entries) => entries.iter().map(|entry| (entry.key.clone(), entry.node.to_json())).collect(),
        }
    }

    fn move_down(&mut self, lines: u64) {
        self.line += lines;
        match &mut self.tree {
            Tree::Scalar(_) => {}
            Tree::List(items) => items.iter_mut().for_each(|item| item.move_down(lines)),
            Tree::Map(entries) => {
                for entry in entries {
                    entry.line += lines;
                    entry.node.move_down(lines);
                }
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Tree>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line().max(1), tree: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyTree)
    }
}

struct AnyTree;

impl<'de> Visitor<'de> for AnyTree {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Scalar(Value::Null))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Scalar(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Scalar(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            let node = map.next_value()?;
            entries.push(Entry { line: key.referenced.line().max(1), key: key.value, node });
        }
        Ok(Tree::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Vec<(u64, Value)> {
        let json = |document: Document| (document.line, document.read.expect("it is YAML").to_json());
        documents(text).into_iter().map(json).collect()
    }

    fn refused(text: &str) -> (u64, String, String) {
        let mut all = documents(text);
        assert_eq!(all.len(), 1, "{all:?}");
        let document = all.remove(0);
        let broken = document.read.expect_err(text);
        assert_eq!(document.line, 1);
        (broken.line, broken.problem, broken.remedy)
    }

    #[test]
    fn a_file_is_its_documents_with_the_lines_they_stand_on() {
        assert_eq!(
            read("# first\na: 1\n---\n# nothing\n---\n--- # here\n\nb: [x, {c: 2}]\n---\n{\"d\": null}\n"),
            [(2, json!({ "a": 1 })), (8, json!({ "b": ["x", { "c": 2 }] })), (10, json!({ "d": null }))]
        );
        assert_eq!(read("%YAML 1.2\n---\na: 1\n---\nb: 2\n"), [(3, json!({ "a": 1 })), (5, json!({ "b": 2 }))]);
        assert_eq!(read("--- {a: 1}\n--- text\n"), [(1, json!({ "a": 1 })), (2, json!("text"))]);
        assert_eq!(read("a: |\n  ---\n  b\r\n"), [(1, json!({ "a": "---\nb\n" }))]);
        for empty in ["", "---", "---\n---\n", "# words\n", "~\n", "\u{feff}", "\n\n"] {
            assert_eq!(read(empty), [], "{empty:?}");
        }
    }

    #[test]
    fn scalars_are_what_kubectl_would_send() {
        let text = "{a: yes, b: 'yes', c: 010, d: 2026-11-16T09:00:00Z, e: 1.5, f: 18446744073709551615, 7: x}";
        assert_eq!(
            read(text)[0].1,
            json!({ "a": true, "b": "yes", "c": 8, "d": "2026-11-16T09:00:00Z", "e": 1.5, "f": u64::MAX, "7": "x" })
        );
        assert_eq!(read("a: &x {b: 1}\nc: {<<: *x, d: *x}\n")[0].1["c"], json!({ "b": 1, "d": { "b": 1 } }));
        assert_eq!(read("{\n\t\"a\": \"\\u0041\"\n}")[0].1, json!({ "a": "A" }), "tabs in JSON");
    }

    #[test]
    fn every_field_knows_its_line_and_a_second_one_is_not_lost() {
        let document = documents("x: 1\n---\na:\n  b: 1\n  b: 2\n").remove(1).read.unwrap();
        let a = document.get("a").unwrap();
        let lines: Vec<_> = a.node.entries().iter().map(|entry| (entry.key.as_str(), entry.line)).collect();
        assert_eq!((a.line, lines), (3, vec![("b", 4), ("b", 5)]));
    }

    #[test]
    fn what_is_no_yaml_says_where_and_what_to_do() {
        let (line, problem, remedy) = refused("spec:\n  cronExpr: @daily\n");
        assert_eq!((line, remedy.as_str()), (2, "put the value in quotes: cronExpr: \"@daily\""));
        assert!(problem.starts_with("is not YAML: unexpected character"), "{problem}");
        assert_eq!(refused("cronExpr: */5 * * * *\n").2, "put the value in quotes: cronExpr: \"*/5 * * * *\"");
        assert_eq!(refused("a:\n\tb: 1\n").2, "indent with spaces, not with tabs");
        assert_eq!(refused("a:\n  b: x\n\tc: 1\n").2, "indent with spaces, not with tabs, here or below");
        assert_eq!(refused("a: Reminder: tea\n").2, "put the value in quotes: a: \"Reminder: tea\"");
        assert!(refused("{{- if .Values.x }}\na: 1\n").2.starts_with("render the template first"));
        assert_eq!(refused("a: 1\n...\nb: 2\n").2, "begin every document with a line of three dashes");
        assert_eq!(refused("a: {b: 1\n").2, "mend this line or the one before it");
    }

    #[test]
    fn one_broken_document_does_not_hide_the_others() {
        let all = documents("a: 1\n---\nb: {\n---\nc: 3\n");
        let fine: Vec<_> = all.iter().map(|document| document.read.is_ok()).collect();
        assert_eq!(fine, [true, false, true]);
        let broken = documents("a: 1\n---\n# words\n\nb: 1\nc: {\n").remove(1);
        assert_eq!((broken.line, broken.read.unwrap_err().line), (5, 6));
    }

    #[test]
    fn no_input_is_too_odd() {
        let flow = |depth: usize| format!("a: {}{}", "[".repeat(depth), "]".repeat(depth));
        let block = (0..5000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect::<Vec<_>>().concat();
        let bomb: String =
            (1..40).fold("a0: &a0 [x]\n".to_owned(), |text, n| text + &format!("a{n}: &a{n} [*a{0}, *a{0}]\n", n - 1));
        assert!(documents(&flow(70))[0].read.is_ok());
        for odd in [flow(200), flow(100_000), block, bomb, "[".repeat(100_000), "&a [*a]".into(), "a: \0".into()] {
            let all = documents(&odd);
            assert!(all[0].read.is_err(), "{:?}", odd.chars().take(40).collect::<String>());
        }
        for odd in ["? [a]\n: b", "a: !!binary /////w==", "a: .nan", "- a\nb", "a: 'x'y", "*x", "!!set {a}", "\u{85}"] {
            drop(documents(odd));
        }
    }
}
