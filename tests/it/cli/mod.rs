//! The commands as people and scripts meet them: what is printed where, and the exit code. `next` and `explain` here; those that ask
//! a database in files of their own.

mod agent;
mod alarm;
mod check;
mod cluster;
mod finalizers;
mod migrate;

use std::{fs, process::Stdio};

use chronos::domain::schedule::Zone;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt, process::Command};

use crate::support::{
    Database, Namespace,
    daemon::{PROMPT, command},
};

pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

async fn chronosd(arguments: &[&str]) -> Ended {
    chronosd_reading("", arguments).await
}

/// Runs it with this text on stdin, in the checkout.
pub async fn chronosd_reading(stdin: &str, arguments: &[&str]) -> Ended {
    run(command(&[]), stdin, arguments).await
}

/// Runs it on a database.
pub async fn chronosd_on(database: &Database, arguments: &[&str]) -> Ended {
    let settings = [("CHRONOS_POSTGRES_URI", database.uri.as_str()), ("CHRONOS_ALLOW_UNSAFE_POSTGRES", "true")];
    run(command(&settings), "", arguments).await
}

/// What it says when all is well.
async fn told(database: &Database, arguments: &[&str]) -> String {
    let ended = chronosd_on(database, arguments).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{arguments:?}");
    ended.stdout
}

/// Why it refuses: said on stderr alone, with exit code 1.
async fn refused(database: &Database, arguments: &[&str]) -> String {
    let ended = chronosd_on(database, arguments).await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(1), ""), "{arguments:?}: {}", ended.stderr);
    ended.stderr
}

async fn run(mut command: Command, stdin: &str, arguments: &[&str]) -> Ended {
    command.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR"));
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("chronosd starts");
    let mut input = child.stdin.take().expect("piped");
    // It need not read what it does not want.
    let _ = input.write_all(stdin.as_bytes()).await;
    drop(input);
    let ended = tokio::time::timeout(PROMPT, child.wait_with_output()).await.expect("it ends in time").unwrap();
    let text = |bytes| String::from_utf8(bytes).expect("it prints text");
    Ended { code: ended.status.code(), stdout: text(ended.stdout), stderr: text(ended.stderr) }
}

pub fn json_of(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {}", ended.stdout))
}

#[tokio::test]
async fn next_shows_words_then_local_time_utc_and_what_a_clock_change_does() {
    let asked = ["next", "30 2 * * *", "--tz", "Europe/Berlin", "--from", "2026-03-27T12:00:00Z", "-n", "3"];
    let told = chronosd(&asked).await;
    let expected = format!(
        "at 02:30 every day, Europe/Berlin (tzdb {})\n\
         Sat 2026-03-28 02:30:00 +01:00   2026-03-28T01:30:00Z\n\
         Sun 2026-03-29 03:00:00 +02:00   2026-03-29T01:00:00Z   the clock skips 02:30; fires when it has\n\
         Mon 2026-03-30 02:30:00 +02:00   2026-03-30T00:30:00Z\n",
        Zone::tzdb_version()
    );
    assert_eq!((told.code, told.stdout, told.stderr), (Some(0), expected, String::new()));
}

#[tokio::test]
async fn next_gives_programs_the_fires_of_a_preview() {
    let told = chronosd(&["next", "@every 90s", "--from", "2026-11-16T10:00:00+01:00", "-n", "2", "--json"]).await;
    assert_eq!(told.code, Some(0));
    let fire =
        |utc: &str, local: &str| json!({ "scheduled_for": utc, "local": local, "note": null, "effective_at": utc });
    assert_eq!(
        json_of(&told),
        json!([
            fire("2026-11-16T09:01:30Z", "2026-11-16T09:01:30+00:00"),
            fire("2026-11-16T09:03:00Z", "2026-11-16T09:03:00+00:00"),
        ])
    );
}

#[tokio::test]
async fn next_asked_about_nothing_but_an_expression_begins_now() {
    let told = chronosd(&["next", "* * * * *"]).await;
    assert_eq!(told.code, Some(0), "{}", told.stderr);
    assert_eq!(told.stdout.lines().count(), 6);
    assert!(told.stdout.starts_with("every minute, UTC (tzdb "), "{}", told.stdout);
}

#[tokio::test]
async fn next_tells_every_wrong_argument_at_once_and_ends_with_one() {
    let told = chronosd(&["next", "0 9 * * * *", "--tz", "+02:00", "--from", "2026-11-16T09:00:00"]).await;
    assert_eq!((told.code, told.stdout.as_str()), (Some(1), ""));
    assert_eq!(
        told.stderr,
        "chronosd next: EXPR: five fields expected, got 6: seconds are not supported; write minute, hour, day of month, \
         month and day of week, such as 0 9 * * MON-FRI\n\
         chronosd next: --tz: \"+02:00\" is an offset, which knows no clock changes; use an IANA name such as \
         Europe/Berlin\n\
         chronosd next: --from: is \"2026-11-16T09:00:00\", without an offset; give date, time and offset, such as \
         2026-11-16T09:00:00Z or 2026-11-16T09:00:00+01:00\n"
    );
    let never = chronosd(&["next", "0 0 30 2 *"]).await;
    assert_eq!((never.code, never.stdout.as_str()), (Some(1), ""));
    assert!(never.stderr.contains("no future instant"), "{}", never.stderr);
}

#[tokio::test]
async fn wrong_usage_ends_with_two() {
    let wrong: [&[&str]; 5] =
        [&["next"], &["next", "@daily", "-n", "0"], &["next", "@daily", "-n", "101"], &["explain"], &["explian"]];
    for arguments in wrong {
        let told = chronosd(arguments).await;
        assert_eq!((told.code, told.stdout.as_str()), (Some(2), ""), "{arguments:?}");
    }
}

#[tokio::test]
async fn the_examples_explain_cleanly() {
    let told = chronosd(&["explain", "-f", "examples", "--from", "2026-11-16T12:00:00Z"]).await;
    let did = "did:matrix:11111111-2222-3333-4444-555555555555:d75a980182b10ab7";
    let expected = format!(
        "examples/agent.yaml:4 Agent portfolio: fine\n  \
           enrols {did}, whose last part fits the key\n\
         examples/alarms.yaml:2 Alarm daily-summary: fine\n  \
           wakes {did} at 09:00 on Monday through Friday, America/New_York\n    \
             Mon 2026-11-16 09:00:00 -05:00   2026-11-16T14:00:00Z\n    \
             Tue 2026-11-17 09:00:00 -05:00   2026-11-17T14:00:00Z\n    \
             Wed 2026-11-18 09:00:00 -05:00   2026-11-18T14:00:00Z\n\
         examples/alarms.yaml:19 Alarm confirm-transaction: fine\n  \
           wakes {did} once, 5 s after it is created\n    \
             Mon 2026-11-16 12:00:05 +00:00   2026-11-16T12:00:05Z\n  \
           note: counts from the resource's creation; the times shown are as if that were 2026-11-16T12:00:00Z\n\
         3 fine\n"
    );
    assert_eq!((told.code, told.stdout, told.stderr), (Some(0), expected, String::new()));
}

const WRONG: &str = r#"apiVersion: chronos.dev/v1alpha1
kind: Alarm
metadata:
  name: Tea
  namespace: home
spec:
  owner: did:matrix:ann:d75a980182b10ab7
  cron_expr: "0 9 * * *"
  cronExpr: 5
  timezone: Berlin
  maxFailures: "3"
---
apiVersion: chronos.dev/v1alpha1
kind: Alarm
metadata: {name: coffee, namespace: home}
spec:
  owner: did:matrix:ann:d75a980182b10ab7
  wakeMessage: coffee
  cronExpr: @daily
---
apiVersion: chronos.dev/v1alpha1
kind: Alarm
metadata: {name: cake, namespace: home}
spec:
  owner: did:matrix:ann:d75a980182b10ab7
  wakeMessage: cake
  fireAt: "2027-01-01T00:00:00+01:00"
"#;

#[tokio::test]
async fn explain_tells_every_mistake_of_every_document_and_ends_with_one() {
    let told = chronosd_reading(WRONG, &["explain", "-f", "-", "--from", "2026-11-16T12:00:00Z"]).await;
    assert_eq!((told.code, told.stderr.as_str()), (Some(1), ""));
    assert_eq!(
        told.stdout,
        r#"stdin:1 Alarm home/Tea: 6 mistakes
  line 4: metadata.name: is "Tea"
      use at most 253 lower-case letters, digits, - and ., first and last a letter or digit
  line 6: spec.wakeMessage: is missing
      give what the agent is told when it wakes
  line 8: spec.cron_expr: is not a known field
      did you mean cronExpr?
  line 9: spec.cronExpr: is the number 5
      put it in quotes, as you wrote it
  line 10: spec.timezone: unknown zone "Berlin"
      did you mean Europe/Berlin?
  line 11: spec.maxFailures: is the text "3"
      write it without quotes: 3
stdin:13: 1 mistake
  line 19: is not YAML: unexpected character: `@'
      put the value in quotes: cronExpr: "@daily"
stdin:21 Alarm home/cake: fine
  wakes did:matrix:ann:d75a980182b10ab7 once at 2026-12-31T23:00:00Z
    Thu 2026-12-31 23:00:00 +00:00   2026-12-31T23:00:00Z
  note: needs an Agent with the DID did:matrix:ann:d75a980182b10ab7 in namespace home; none of these files has one
1 fine, 2 with mistakes
"#
    );
}

#[tokio::test]
async fn explain_gives_programs_one_document() {
    let wrong = WRONG.split("---\n").last().unwrap().replace("fireAt:", "fireat:");
    let told = chronosd_reading(&wrong, &["explain", "-f", "-", "--json"]).await;
    assert_eq!(told.code, Some(1));
    assert_eq!(
        json_of(&told),
        json!([{
            "file": "stdin", "line": 1, "kind": "Alarm", "namespace": "home", "name": "cake", "ok": false,
            "problems": [{
                "field": "spec.fireat", "line": 7, "problem": "is not a known field", "remedy": "did you mean fireAt?"
            }],
            "notes": [], "description": null, "fires": [],
        }])
    );
    let told = chronosd(&["explain", "-f", "examples/agent.yaml", "examples/alarms.yaml", "--json"]).await;
    assert_eq!(told.code, Some(0));
    let told = json_of(&told);
    let kinds: Vec<_> = told.as_array().unwrap().iter().map(|one| (&one["kind"], &one["ok"])).collect();
    let (agent, alarm, ok) = (json!("Agent"), json!("Alarm"), json!(true));
    assert_eq!(kinds, [(&agent, &ok), (&alarm, &ok), (&alarm, &ok)]);
    assert_eq!(told[1]["description"], "at 09:00 on Monday through Friday, America/New_York");
    assert_eq!(told[1]["fires"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn explain_reads_json_and_goes_on_after_a_file_it_cannot_read() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let agent = json!({
        "apiVersion": "chronos.dev/v1alpha1", "kind": "Agent", "metadata": { "name": "ann" },
        "spec": {
            "did": "did:matrix:ann:d75a980182b10ab7",
            "publicKey": "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
        }
    });
    fs::write(path("a.json"), format!("{agent:#}")).unwrap();
    fs::write(path("binary.yaml"), [0xff, 0x00, 0xfe]).unwrap();
    fs::write(path("empty.yml"), "---\n").unwrap();
    fs::write(path("notes.txt"), "not looked at").unwrap();
    let (missing, whole) = (path("missing.yaml"), directory.path().to_str().unwrap());
    let told = chronosd(&["explain", "-f", &missing, "-f", whole]).await;
    assert_eq!((told.code, told.stderr.as_str()), (Some(1), ""));
    let said = told.stdout.replace(whole, "DIR");
    assert_eq!(
        said,
        "DIR/missing.yaml: 1 mistake\n  \
           cannot be read: No such file or directory (os error 2)\n      \
               give a file that exists and may be read\n\
         DIR/a.json:1 Agent ann: fine\n  \
           enrols did:matrix:ann:d75a980182b10ab7, whose last part fits the key\n\
         DIR/binary.yaml: 1 mistake\n  \
           is not UTF-8 text: line 1 holds a byte that is none\n      \
               save it as UTF-8\n\
         DIR/empty.yml: 1 mistake\n  \
           holds no document\n      \
               give a file with an Alarm or an Agent of chronos.dev/v1alpha1\n\
         1 fine, 3 with mistakes\n"
    );
}

/// Fields of a spec, and whether a real API server takes them. What it takes may still be wrong: a cron expression, for one.
const JUDGED_BY_BOTH: &[(&str, bool)] = &[
    ("cronExpr: '@daily'", true),
    ("cronExpr: '@daily', timezone: Europe/Berlin, label: null, maxFailures: 5.0, payload: {a: [1, {b: c}]}", true),
    ("delaySeconds: 010, payloadJson: '[1]'", true),
    ("fireAt: 2099-01-01T00:00:00Z, conversationId: ''", true),
    ("label: no schedule", false),
    ("cronExpr: '@daily', delaySeconds: 5", false),
    ("cronExpr: 5", false),
    ("cronExpr: ''", false),
    ("cronExpr: [x]", false),
    ("cronExpr: '@daily', label: yes", false),
    ("cronExpr: '@daily', cron_expr: x", false),
    ("cronExpr: '@daily', timezone: Mars/Olympus", false),
    ("cronExpr: '@daily', timezone: ''", false),
    ("cronExpr: '@daily', maxFailures: 101", false),
    ("cronExpr: '@daily', maxFailures: 1.5", false),
    ("cronExpr: '@daily', maxFailures: '1'", false),
    ("cronExpr: '@daily', payload: text", false),
    ("cronExpr: '@daily', payload: {}, payloadJson: '1'", false),
    ("delaySeconds: 5, timezone: UTC", false),
    ("delaySeconds: 0", false),
    ("delaySeconds: 99999999999", false),
    ("cronExpr: '@daily', owner: 'did:matrix:ann:D75A980182B10AB7'", false),
    ("cronExpr: '@daily', owner: null", false),
    ("cronExpr: '@daily', wakeMessage: ''", false),
];

#[tokio::test]
async fn explain_judges_as_a_real_api_server_does() {
    let namespace = Namespace::fresh().await;
    let mut documents = Vec::new();
    for (number, (fields, _)) in JUDGED_BY_BOTH.iter().enumerate() {
        let given = |key: &str, value: &str| {
            if fields.contains(&format!("{key}:")) { String::new() } else { format!("{key}: {value}, ") }
        };
        let owner = given("owner", "'did:matrix:ann:d75a980182b10ab7'");
        let message = given("wakeMessage", "wake up");
        documents.push(format!(
            "{{apiVersion: chronos.dev/v1alpha1, kind: Alarm, metadata: {{name: a{number}}}, spec: {{{owner}{message}{fields}}}}}"
        ));
    }
    let told = chronosd_reading(&documents.join("\n---\n"), &["explain", "-f", "-", "--json"]).await;
    let explained: Vec<bool> =
        json_of(&told).as_array().unwrap().iter().map(|one| one["ok"].as_bool().unwrap()).collect();
    let mut served = Vec::new();
    for document in &documents {
        served.push(namespace.apply(document).await.is_ok());
    }
    let judged = |judge: &[bool]| -> Vec<_> {
        JUDGED_BY_BOTH.iter().zip(judge).map(|((fields, _), taken)| (*fields, *taken)).collect()
    };
    assert_eq!(judged(&served), JUDGED_BY_BOTH, "the API server");
    assert_eq!(judged(&explained), JUDGED_BY_BOTH, "explain");
}

#[tokio::test]
async fn a_reader_that_has_seen_enough_is_no_failure() {
    for arguments in [&["next", "* * * * *", "-n", "100"][..], &["explain", "-f", "examples"], &["crd"]] {
        let mut child = command(&[]);
        child.args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        // Gone before anything is written.
        drop(child.stdout.take());
        let ended = tokio::time::timeout(PROMPT, child.wait_with_output()).await.expect("it ends in time").unwrap();
        assert_eq!(ended.status.code(), Some(0), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{arguments:?}");
    }
}

#[tokio::test]
async fn help_fits_a_terminal_and_shows_by_example() {
    let commands = [
        "--help",
        "next --help",
        "explain --help",
        "migrate --help",
        "crd --help",
        "check --help",
        "agent add --help",
        "agent list --help",
        "agent suspend --help",
        "agent resume --help",
        "agent rotate --help",
        "agent remove --help",
        "alarm list --help",
        "alarm show --help",
        "alarm attempts --help",
        "alarm rearm --help",
        "cluster --help",
        "cluster list --help",
        "cluster forget --help",
        "cluster adopt --help",
        "finalizers release --help",
    ];
    for arguments in commands {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let told = chronosd(&arguments).await;
        assert_eq!(told.code, Some(0), "{arguments:?}");
        assert!(told.stdout.contains("Example"), "{}", told.stdout);
        assert!(told.stdout.lines().count() <= 40, "{}", told.stdout);
        let widest = told.stdout.lines().map(str::len).max();
        assert!(widest <= Some(100), "{widest:?}: {}", told.stdout);
    }
    let told = chronosd(&["--help"]).await.stdout;
    for command in ["dev", "next", "explain", "run", "migrate", "check", "agent", "alarm", "cluster", "dispatch", "crd"]
    {
        assert!(told.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))), "{command}: {told}");
    }
}
