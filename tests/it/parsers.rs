//! Every parser of outside text, on what was seen before (`fuzz/corpus`) and on what proptest thinks of. The functions and
//! their properties are those of `make fuzz`: one list, so that nothing drifts.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
};

use proptest::{
    prelude::*,
    string::string_regex,
    test_runner::{Config, TestRunner},
};

#[path = "../../fuzz/parsers/mod.rs"]
mod functions;

use functions::{PARSERS, run};

/// For each parser. As many again come from the corpus, and millions from `make fuzz`.
const CASES: u32 = 500;

/// Words for the patterns below.
const WORDS: [(&str, &str); 6] = [
    ("<did>", r"did:matrix:[a-cA-C-]{1,4}:[0-9a-f]{16}"),
    ("<field>", r"([1-9]|1[0-2]|\*|\*/[1-9]|[1-5]-[4-8]|[1-7],[0-9]|[0-9*/,-]{1,3})"),
    (
        "<cron>",
        r"(<field> <field> <field> <field> (<field>|MON-FRI)|@every [0-9]{1,3}[hms]|@(dai|week|h)ly|[@0-9*/, -]{0,12})",
    ),
    ("<instant>", r"20[0-9]{2}-(0[1-9]|1[0-3])-[0-3][1-8]T[01][0-9]:00:[0-6][0-9](\.[0-9]{1,9})?(Z|[+-]0[0-9]:00)"),
    ("<zone>", r"(UTC|Asia/Tokyo|[A-Z]{1,3})"),
    ("<http date>", r"(Sun|Mon|Tue), [0-3][0-9] (Nov|Dec|Feb) [0-9]{4} [0-2][0-9]:[0-5][0-9]:[0-6][0-9] GMT"),
];

/// Text that nearly fits, as a pattern: what a slip of the finger makes of something valid.
fn nearly(name: &str) -> String {
    let lines: &[&str] = match name {
        "agent_resource" => {
            &[r#"\{"metadata":\{\},"spec":\{"#, r#""did":"(<did>|[a-z:\\]{0,9})","publicKey":"[0-9a-f]{0,64}"\}\}"#]
        }
        "alarm_resource" => &[
            r#"\{"metadata":\{("uid":"[0-9a-f-]{36}")?\},"spec":\{"owner":"<did>","wakeMessage":"[a-z ]{0,5}""#,
            r#",("delaySeconds":-?[0-9]{1,19}|"cronExpr":"<cron>"|"fireAt":"<instant>")"#,
            r#",("maxFailures":-?[0-9]{1,3}|"payloadJson":"[\[\]0-9,]{0,5}"|"payload":\{("a":[0-9\[\]]{1,3})?\}"#,
            r#"|"timezone":"<zone>")\}\}"#,
        ],
        "alarm_yaml" => &[
            r"metadata: \{\}\nspec:\n  owner: <did>\n  wakeMessage: ([a-z&*!|>%@ ]{0,8}|'[a-z]{0,3}')\n",
            r"  (delaySeconds: [0-9_xeo.+-]{1,9}|cronExpr: '<cron>'|fireAt: <instant>)\n",
            r"(  payload: [\[\]{}a:, ]{0,8}\n)?",
        ],
        "bulk_body" => &[
            r#"\{"action":"(cancel|pause|resume|rearm|[a-z]{0,3})","selector":"([a-z]{0,3}(=|!=|)[a-z]{0,2},?){0,2}""#,
            r#"(,"status":"(active|fired|[a-z,]{0,4})"|,"dry_run":(true|null|1)|,"[a-z\\n]{1,3}":1)?\}"#,
        ],
        "challenge" => &[r"(did:matrix:[ab:]{1,3}:[0-9a-f]{15,17}\n[ab:\n]{0,3}\n?){1,2}"],
        "checkpoint_body" => &[
            r#"\{"checkpoint_id":"[a-z\\n]{0,3}","event_seq":-?[0-9]{1,19},"effects":\[(\{"type":"(send_message"#,
            r#""(,"payload":\{"content":"[a-z\\ud8]{0,5}"(,"[a-z\\n]{1,2}":1)?\})?|schedule_timer","payload":\{"timer_id":"[a-zé]{0,2}""#,
            r#","fire_at":"<instant>"(,"payload":[\[\]0-9,{}nul]{0,5})?\}|wake","payload":\{\})\},?){0,2}\]\}"#,
        ],
        "create_body" => &[
            r#"\{"wake_message":"[a-z ]{0,5}",("kind":"once","delay_seconds":-?[0-9]{1,19}|"#,
            r#""kind":"once","fire_at":"<instant>"|"kind":"cron","cron_expr":"<cron>"|"kind":"[a-z\\n]{0,3}")"#,
            r#",("max_failures":-?[0-9]{1,3}|"payload":[\[\]0-9,{}]{0,5}|"timezone":"<zone>"|"[a-z`]{1,3}":[0-9])\}"#,
        ],
        "cron" => &[
            r"[ \t]?(<cron>|<field>/[1-5] <field>(,<field>){1,3} (\*|[1-3]?[0-9](-3[01])?(/[0-9])?) ",
            r"(\*|\?|JAN|jun-DEC|[a-fA-F]{3}|1?[0-9]) ([0-7*?](-[5-7])?|MON-FRI|sun))[ \n]?",
        ],
        "cursor" => &[r"AAY[A-Za-z0-9_-]{28,30}|[A-Za-z0-9_-]{31,33}"],
        "did" => &[r"(did|DID):(matrix|web):[A-Za-z0-9_-]{0,36}:[0-9a-fA-Fg]{15,17}(:)?"],
        "event_body" => &[
            r#"\{("id":"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{11,12}",)?"type":"#,
            r#"("user_message","payload":\{"text":("[a-z\\u0d8]{0,6}"|[0-9\[\]]{1,2})|"tool_result","payload":\{"tool_id":"[a-z]{0,2}""#,
            r#"(,"payload":[\[\]0-9,{}nul]{0,5})?|"timer","payload":\{"timer_id":"t")(,"[a-z\\n]{1,4}": ?1e?[0-9])?\}\}"#,
        ],
        "every" => &[r" ?([0-9]{1,5}[hms]){1,3}[hmsd]?|0*[0-9]{17,22}[hms]"],
        "page_size" => &[r"(limit|limi[tT]|%6[0-9a-f]imit)=(%3[0-9]|[0-9+-]){0,6}(&[a-z%0]{0,4}=?)?"],
        "patch_body" => &[
            r#"\{("cron_expr":("<cron>"|null)|"delay_seconds":-?[0-9]{1,19}|"fire_at":("<instant>"|null)|"label":("[a-z]{0,3}"|null)"#,
            r#"|"labels":(null|\{"[a-z ]{1,2}":("[a-z]{0,2}"|null)\})|"max_failures":(null|-?[0-9]{1,3})|"timezone":("<zone>"|null)"#,
            r#"|"misfire":"(skip|fire_all|[a-z]{0,3})"|"kind":(null|"cron")|"payload":[\[\]0-9,{}]{0,5})\}"#,
        ],
        "preview_body" => &[
            r#"\{("cron_expr":"<cron>"|"delay_seconds":-?[0-9]{1,19}|"fire_at":"<instant>")"#,
            r#"(,"n":-?[0-9]{1,3}|,"from":"<instant>"|,"timezone":"<zone>"|,"spread_seconds":-?[0-9]{1,9}|,"ends_at":"<instant>")?\}"#,
        ],
        "payload" => &[
            r#"[ \t]?(\{("a":[0-9.eE+-]{1,6}(,"[\\u0ad8"]{0,6}":\[\])?)?\}"#,
            r#"|\[{0,70}\]{0,70}|"[\\u0d8"\[]{0,9}")[ \n]?"#,
        ],
        "principal_token" => &[r"[A-Za-z0-9_-]{30,80}\.[A-Za-z0-9_-]{43}|.<did>"],
        "retry_after" => &[
            r"([0-9]{1,22}|<http date>|Sun Nov  6 08:49:[0-6][0-9] 1994)",
            r"(\nSun, 06 Nov 1994 08:49:37 GMT|\n<http date>)?",
        ],
        "selector" => &[
            r"((!|)([a-z]{1,3}\.com/)?[a-zA-Z]{1,3}[ ]?(=|==|!=|)[a-z.-]{0,2}",
            r"|[a-z]{1,2} (in|notin) ?\([a-z, ]{0,5}\)?)(,[ ]?[a-z]{1,5}){0,3}",
        ],
        "service_call_id" => &[r"[A-Za-z0-9_.:-]{0,130}[ /é]?"],
        "session_key" => &[r"([A-Za-z0-9_-]{0,80}:){1,3}[A-Za-z0-9_é -]{0,80}"],
        "timer_body" => &[
            r#"\{"due_at":("<instant>"|null|[0-9]{1,3}|"[a-z0-9T:-]{0,9}")"#,
            r#"(,"correlation_id":("[a-zé ]{0,5}"|null)|,"payload":[\[\]0-9,{}]{0,5}|,"[a-z`]{1,3}":[0-9])?\}"#,
        ],
        "verify_body" => &[
            r#"\{"did":"<did>"(,"nonce":"[A-Za-z0-9_-]{31,33}","public_key":"[0-9a-f]{64}","#,
            r#""signature":"[0-9a-f]{128}")?(,"[a-z\\n]{1,4}":1)?\}"#,
        ],
        "zone" => &[
            r"(Europe|america|Etc)/(Berlin|New[ _]York|GMT[+-]?[0-9]{1,2}|[A-Z][a-z]{2,6})",
            r"|(UTC|GMT)?[+-][0-9]{1,2}(:[0-9]{2})?",
        ],
        unknown => panic!("say here what nearly fits {unknown}"),
    };
    // Backwards: a word may hold those above it.
    WORDS.iter().rev().fold(lines.concat(), |pattern, (word, meaning)| pattern.replace(word, meaning))
}

#[test]
fn everything_the_fuzzers_found_before_still_holds() {
    for (name, _) in PARSERS {
        let verdict = |path: &PathBuf| {
            println!("{}", path.display()); // shown when it panics
            run(name, &fs::read(path).unwrap())
        };
        let verdicts: BTreeSet<bool> = seeds(name).iter().map(verdict).collect();
        assert_eq!(verdicts, BTreeSet::from([false, true]), "of the seeds of {name} some are taken, some refused");
    }
}

#[test]
fn no_text_breaks_a_parser() {
    for (name, _) in PARSERS {
        let near = string_regex(&nearly(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let bytes = prop_oneof![
            1 => prop::collection::vec(any::<u8>(), 0..300),
            1 => any::<String>().prop_map(String::into_bytes),
            4 => near.prop_map(String::into_bytes),
            2 => slip(seeds(name)),
        ];
        // Not kept beside the sources: what breaks a parser belongs into the corpus.
        let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
        let tried = TestRunner::new(config).run(&bytes.prop_map(Shown), |data| {
            run(name, &data.0);
            Ok(())
        });
        tried.unwrap_or_else(|failure| panic!("{name}: {failure}\nKeep the input as a file in fuzz/corpus/{name}/"));
    }
}

/// Bytes that a failure prints as text.
struct Shown(Vec<u8>);

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// A seed with a few bytes replaced, dropped or repeated.
fn slip(seeds: Vec<PathBuf>) -> impl Strategy<Value = Vec<u8>> {
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_usize), 1..4);
    (prop::sample::select(seeds), edits).prop_map(|(path, edits)| {
        let mut data = fs::read(path).unwrap();
        for (place, byte, length) in edits {
            let place = place.index(data.len() + 1);
            let end = (place + length).min(data.len());
            data.splice(place..end, [byte]);
        }
        data
    })
}

#[test]
fn every_parser_has_a_fuzz_target_and_seeds_and_there_are_no_others() {
    let listed: BTreeSet<String> = PARSERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(listed.len(), PARSERS.len(), "no name stands twice");
    assert_eq!(listed, names(&fuzz().join("corpus")), "fuzz/corpus has a directory for each");
    assert!(listed.iter().all(|name| !seeds(name).is_empty()), "and none is empty");
    assert_eq!(listed, names(&fuzz().join("fuzz_targets")), "fuzz/fuzz_targets has a file for each");

    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let built = manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/")?.strip_suffix(".rs\""));
    assert_eq!(listed, built.map(str::to_owned).collect(), "fuzz/Cargo.toml builds each");

    // All alike: each tries the entry of the list that has its own name.
    let sources: BTreeSet<_> =
        listed.iter().map(|name| fs::read(fuzz().join(format!("fuzz_targets/{name}.rs"))).unwrap()).collect();
    assert_eq!(sources.len(), 1, "the targets differ in more than their names");
}

#[test]
fn fuzzing_tries_the_versions_that_are_shipped() {
    let ours = locked("Cargo.lock");
    // What only fuzzing needs; the last belongs to cc, which builds libFuzzer on all cores.
    let own = ["arbitrary", "chronos-fuzz", "libfuzzer-sys", "jobserver"];
    let foreign: Vec<_> = locked("fuzz/Cargo.lock")
        .into_iter()
        .filter(|package| !ours.contains(package) && !own.contains(&package.0.as_str()))
        .collect();
    assert!(foreign.is_empty(), "fuzz/Cargo.lock is stale, run make generate: {foreign:?}");
}

/// Names and versions of a lock file.
fn locked(path: &str) -> BTreeSet<(String, String)> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let value = |line: Option<&str>, key: &str| Some(line?.strip_prefix(key)?.trim_matches('"').to_owned());
    let package = |package: &str| {
        let mut lines = package.lines();
        Some((value(lines.next(), "name = ")?, value(lines.next(), "version = ")?))
    };
    text.split("[[package]]\n").skip(1).map(|text| package(text).expect("a package has name and version")).collect()
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn seeds(name: &str) -> Vec<PathBuf> {
    let mut paths: Vec<_> = entries(&fuzz().join("corpus").join(name));
    paths.sort();
    paths
}

/// What stands in a directory, without its extensions.
fn names(directory: &Path) -> BTreeSet<String> {
    entries(directory).iter().map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries.map(|entry| entry.unwrap().path()).collect()
}
