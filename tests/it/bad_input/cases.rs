//! Every way we know to write an Alarm or an Agent wrongly, where that is told, and in which words.

/// Ann's: the first test vector of RFC 8032.
pub const DID: &str = "did:matrix:ann:d75a980182b10ab7";
pub const KEY: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

/// Bob's, with the same key. His id is a UUID, which is the same in either case.
pub const UUID_DID: &str = "did:matrix:aaaaaaaa-2222-3333-4444-555555555555:d75a980182b10ab7";

pub struct Case {
    /// The resource, with `NAME` where its name belongs.
    pub yaml: String,
    /// Where it is told.
    pub told: Told,
    /// What is told, or its essence: the field, and what to do about it.
    pub sentence: String,
    /// The field that `explain` names.
    pub field: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// By the API server.
    Apply,
    /// In the status, with this reason.
    Stalled(&'static str),
    /// Nowhere: it looks odd, and is right.
    Nowhere,
}

const SCHEDULE: Told = Told::Stalled("InvalidSchedule");
const SPEC: Told = Told::Stalled("InvalidSpec");

pub fn resource(kind: &str, metadata: &str, spec: &str) -> String {
    format!("{{apiVersion: chronos.dev/v1alpha1, kind: {kind}, metadata: {{name: NAME{metadata}}}, spec: {{{spec}}}}}")
}

/// An Alarm of Ann's with these fields of a spec, in flow style.
pub fn alarm(fields: &str) -> String {
    alarm_with("", fields)
}

fn alarm_with(metadata: &str, fields: &str) -> String {
    let default = |key: &str, value: &str| {
        if fields.contains(&format!("{key}:")) { String::new() } else { format!("{key}: {value}, ") }
    };
    let (owner, message) = (default("owner", &format!("'{DID}'")), default("wakeMessage", "wake up"));
    resource("Alarm", metadata, &format!("{owner}{message}{fields}"))
}

fn agent(did: &str, key: &str, more: &str) -> String {
    resource("Agent", "", &format!("did: '{did}', publicKey: '{key}'{more}"))
}

pub fn cases() -> Vec<Case> {
    [schedules(), zones_and_windows(), numbers(), texts(), payloads(), owners_and_metadata(), agents()]
        .into_iter()
        .flatten()
        .collect()
}

fn case(told: Told, field: &'static str, sentence: &str, yaml: String) -> Case {
    Case { yaml, told, sentence: sentence.to_owned(), field }
}

fn schedules() -> Vec<Case> {
    let apply = |field, sentence: &str, fields: &str| case(Told::Apply, field, sentence, alarm(fields));
    let stalled = |sentence: &str, expression: &str| {
        case(SCHEDULE, "spec.cronExpr", sentence, alarm(&format!("cronExpr: '{expression}'")))
    };
    let one = "spec: Invalid value: give exactly one of fireAt, delaySeconds and cronExpr";
    let instant = |text: &str| {
        let told = format!(
            "spec.fireAt: Invalid value: {text:?}: give date, time and offset, from 1970 to 2100, such as 2026-11-16T09:00:00Z"
        );
        apply("spec.fireAt", &told, &format!("fireAt: '{text}'"))
    };
    vec![
        apply("spec.fireAt", one, "label: none"),
        apply("spec.delaySeconds", one, "delaySeconds: 5, cronExpr: '@daily'"),
        apply("spec.fireAt", one, "delaySeconds: 5, cronExpr: '@daily', fireAt: '2099-01-01T00:00:00Z'"),
        apply("spec.delaySeconds", "spec.delaySeconds in body should be greater than or equal to 1", "delaySeconds: 0"),
        apply(
            "spec.delaySeconds",
            "spec.delaySeconds in body should be greater than or equal to 1",
            "delaySeconds: -1",
        ),
        apply(
            "spec.delaySeconds",
            "spec.delaySeconds in body should be less than or equal to 2365200000",
            "delaySeconds: 2365200001",
        ),
        case(
            SCHEDULE,
            "spec.delaySeconds",
            "spec.delaySeconds: lies after the year 2100, where the calendar of this service ends; give an earlier one",
            alarm("delaySeconds: 2365200000"),
        ),
        apply(
            "spec.delaySeconds",
            ".spec.delaySeconds: expected numeric (int or float), got string",
            "delaySeconds: '5'",
        ),
        apply("spec.delaySeconds", "spec.delaySeconds in body must be of type int64", "delaySeconds: 1.5"),
        instant("tomorrow"),
        instant("2099-01-01"),
        instant("2099-01-01T00:00:00"),
        instant("2099-01-01 00:00:00Z"),
        instant("2099-01-01t00:00:00z"),
        instant("2101-01-01T00:00:00Z"),
        instant("1969-12-31T23:59:59Z"),
        instant(""),
        apply("spec.fireAt", "give date, time and offset, from 1970 to 2100", "fireAt: '2099-02-30T00:00:00Z'"),
        apply(
            "spec.fireAt",
            "spec.fireAt: Too long: may not be more than 64 bytes",
            &format!("fireAt: {}", "x".repeat(65)),
        ),
        stalled(
            "five fields expected, got 6: seconds are not supported; write minute, hour, day of month",
            "0 0 9 * * *",
        ),
        stalled("spec.cronExpr: hour 25 is out of range; write 0 to 23", "0 25 * * *"),
        stalled("range \"FRI-MON\" runs backwards; write it as two ascending ranges", "0 9 * * FRI-MON"),
        stalled(
            "a TZ= prefix is not supported; leave it out, and give the zone as timezone",
            "TZ=Europe/Berlin 0 9 * * *",
        ),
        stalled("\"L\" in the day of month field: L, W and # are not supported; use values, ranges", "0 9 L * *"),
        stalled("\"15W\" in the day of month field: L, W and # are not supported; use values, ranges", "0 9 15W * *"),
        stalled("\"5#2\" in the day of week field: L, W and # are not supported; use values, ranges", "0 9 * * 5#2"),
        stalled("unknown descriptor \"@fortnightly\"; use @hourly, @daily,", "@fortnightly"),
        stalled("an interval of \"0s\" is out of range; write 1s to 8760h", "@every 0s"),
        stalled(
            "the schedule has no future instant up to the year 2100, where the calendar ends; give one that",
            "0 0 30 2 *",
        ),
        apply(
            "spec.cronExpr",
            "is blank: write five fields such as 0 9 * * MON-FRI, or a descriptor",
            "cronExpr: '  '",
        ),
        apply("spec.cronExpr", "is blank: write five fields such as 0 9 * * MON-FRI, or a descriptor", "cronExpr: ''"),
        apply(
            "spec.cronExpr",
            "spec.cronExpr: Too long: may not be more than 256 bytes",
            &format!("cronExpr: {}", "x".repeat(257)),
        ),
        apply("spec.cronExpr", ".spec.cronExpr: expected string", "cronExpr: 5"),
    ]
}

fn zones_and_windows() -> Vec<Case> {
    let zone = |name: &str| {
        let told = "no such time zone: use an IANA name in its own spelling, such as Europe/Berlin";
        case(Told::Apply, "spec.timezone", told, alarm(&format!("cronExpr: '@daily', timezone: '{name}'")))
    };
    let apply = |field, sentence: &str, fields: &str| case(Told::Apply, field, sentence, alarm(fields));
    let later = "2099-01-02T00:00:00Z";
    vec![
        zone("Mars/Olympus"),
        zone("europe/berlin"),
        zone("+02:00"),
        zone("Local"),
        zone(""),
        apply(
            "spec.timezone",
            "spec.timezone: Too long: may not be more than 64 bytes",
            &format!("cronExpr: '@daily', timezone: {}", "x".repeat(65)),
        ),
        apply(
            "spec.timezone",
            "spec.timezone: Invalid value: timezone goes with cronExpr only: leave it out, or give cronExpr",
            "fireAt: '2099-01-01T00:00:00Z', timezone: Europe/Berlin",
        ),
        apply(
            "spec.startsAt",
            "spec.startsAt: Invalid value: startsAt goes with cronExpr only: leave it out, or give cronExpr",
            &format!("delaySeconds: 5, startsAt: '{later}'"),
        ),
        apply(
            "spec.endsAt",
            "spec.endsAt: Invalid value: endsAt goes with cronExpr only: leave it out, or give cronExpr",
            &format!("delaySeconds: 5, endsAt: '{later}'"),
        ),
        apply(
            "spec.spreadSeconds",
            "spec.spreadSeconds: Invalid value: spreadSeconds goes with cronExpr only: leave it out, or give cronExpr",
            "delaySeconds: 5, spreadSeconds: 5",
        ),
        apply(
            "spec.startsAt",
            "spec.startsAt: Invalid value: \"soon\": give date, time and offset, from 1970 to 2100, such as",
            &format!("cronExpr: '@daily', startsAt: soon, endsAt: '{later}'"),
        ),
        apply(
            "spec.endsAt",
            "spec.endsAt: Invalid value: \"2099-01-01\": give date, time and offset, from 1970 to 2100, such as",
            "cronExpr: '@daily', endsAt: '2099-01-01'",
        ),
        apply(
            "spec.endsAt",
            "spec.endsAt: Invalid value: endsAt must lie after startsAt: give a later one",
            &format!("cronExpr: '@daily', startsAt: '{later}', endsAt: '2099-01-02T00:00:00+01:00'"),
        ),
        case(
            SCHEDULE,
            "spec.cronExpr",
            "has no future instant up to the year 2100, where the calendar ends; give one that still has an instant ahead, \
             before endsAt if that is given",
            alarm("cronExpr: '@daily', endsAt: '2020-01-01T00:00:00Z'"),
        ),
    ]
}

fn numbers() -> Vec<Case> {
    let apply = |field: &'static str, sentence: &str, value: &str| {
        let name = field.trim_start_matches("spec.");
        let told = format!("{field} in body {sentence}");
        case(Told::Apply, field, &told, alarm(&format!("cronExpr: '@daily', {name}: {value}")))
    };
    vec![
        apply("spec.spreadSeconds", "should be greater than or equal to 0", "-1"),
        apply("spec.spreadSeconds", "should be less than or equal to 31536000", "31536001"),
        apply("spec.maxLatenessSeconds", "should be greater than or equal to 1", "0"),
        apply("spec.maxLatenessSeconds", "should be less than or equal to 2365200000", "2365200001"),
        apply("spec.maxFailures", "should be greater than or equal to 0", "-1"),
        apply("spec.maxFailures", "should be less than or equal to 100", "101"),
        apply("spec.maxFailures", "should be less than or equal to 100", "3000000000"),
        case(
            Told::Apply,
            "spec.misfire",
            "spec.misfire: Unsupported value: \"never\": supported values: \"fire_once\", \"skip\", \"fire_all\"",
            alarm("cronExpr: '@daily', misfire: never"),
        ),
        case(
            Told::Apply,
            "spec.suspend",
            ".spec.suspend: expected boolean",
            alarm("cronExpr: '@daily', suspend: 'yes'"),
        ),
    ]
}

fn texts() -> Vec<Case> {
    let apply = |field: &'static str, sentence: &str, value: &str| {
        let name = field.trim_start_matches("spec.");
        case(
            Told::Apply,
            field,
            &format!("{field}: {sentence}"),
            alarm(&format!("delaySeconds: 3600, {name}: {value}")),
        )
    };
    let letters = |count: usize| "x".repeat(count);
    // Two bytes each: few enough characters for the API server's own limit.
    let bytes = |count: usize| "é".repeat(count / 2 + 1);
    let nul = |field: &'static str| {
        let name = field.trim_start_matches("spec.");
        let told = format!("{field}: holds a NUL character, which Postgres cannot keep; leave it out");
        case(SPEC, field, &told, alarm(&format!("delaySeconds: 3600, {name}: \"a\\0b\"")))
    };
    let blank = "Invalid value: \" \\n\": is blank: say what the agent should do when it wakes";
    let without_message = resource("Alarm", "", &format!("owner: '{DID}', delaySeconds: 3600"));
    vec![
        case(Told::Apply, "spec.wakeMessage", "spec.wakeMessage: Required value", without_message),
        apply("spec.wakeMessage", blank, "\" \\n\""),
        apply("spec.wakeMessage", "Invalid value: \"\": is blank: say what the agent should do when it wakes", "''"),
        apply("spec.wakeMessage", "Too long: may not be more than 32768 bytes", &letters(32769)),
        apply("spec.wakeMessage", "Invalid value: is longer than 32768 bytes: shorten it", &bytes(32768)),
        // Blank only where letters of all scripts are known.
        case(
            SPEC,
            "spec.wakeMessage",
            "spec.wakeMessage: is missing or empty; say what the agent should do when it wakes",
            alarm("delaySeconds: 3600, wakeMessage: \"\\u2003\""),
        ),
        apply("spec.label", "Too long: may not be more than 256 bytes", &letters(257)),
        apply("spec.label", "Invalid value: is longer than 256 bytes: shorten it", &bytes(256)),
        apply("spec.conversationId", "Too long: may not be more than 256 bytes", &letters(257)),
        apply("spec.conversationId", "Invalid value: is longer than 256 bytes: shorten it", &bytes(256)),
        nul("spec.label"),
        nul("spec.conversationId"),
        nul("spec.wakeMessage"),
    ]
}

fn payloads() -> Vec<Case> {
    let apply = |field, sentence: &str, fields: &str| {
        case(Told::Apply, field, sentence, alarm(&format!("delaySeconds: 3600, {fields}")))
    };
    let stalled = |field, sentence: &str, fields: &str| {
        case(SPEC, field, &format!("{field}: {sentence}"), alarm(&format!("delaySeconds: 3600, {fields}")))
    };
    let nested = |depth: usize| format!("{}1{}", "{a: ".repeat(depth), "}".repeat(depth));
    vec![
        apply("spec.payload", ".spec.payload: expected map", "payload: [1]"),
        apply("spec.payload", ".spec.payload: expected map", "payload: text"),
        stalled(
            "spec.payload",
            "is nested 65 deep; flatten it to at most 64 levels",
            &format!("payload: {}", nested(65)),
        ),
        stalled(
            "spec.payload",
            "is 262152 bytes long; shorten it to at most 262144 bytes",
            &format!("payload: {{a: {}}}", "x".repeat(262_144)),
        ),
        stalled(
            "spec.payload",
            "holds a NUL character (\\u0000), which Postgres cannot keep; leave it out",
            "payload: {a: \"\\0\"}",
        ),
        stalled("spec.payloadJson", "is not JSON: EOF while parsing", "payloadJson: '{'"),
        stalled("spec.payloadJson", "holds a NUL character (\\u0000)", "payloadJson: '\"\\u0000\"'"),
        stalled(
            "spec.payloadJson",
            "is nested 65 deep",
            &format!("payloadJson: '{}{}'", "[".repeat(65), "]".repeat(65)),
        ),
        case(Told::Nowhere, "", "", alarm("delaySeconds: 3600, payloadJson: '{\"a\": 1, \"a\": 2}'")),
        apply(
            "spec.payloadJson",
            "spec.payloadJson: Invalid value: give payload or payloadJson, not both",
            "payload: {}, payloadJson: '1'",
        ),
        apply(
            "spec.payloadJson",
            "spec.payloadJson: Too long: may not be more than 262144 bytes",
            &format!("payloadJson: '\"{}\"'", "x".repeat(262_144)),
        ),
        apply(
            "spec.payloadJson",
            "spec.payloadJson: Invalid value: is longer than 262144 bytes: shorten it",
            &format!("payloadJson: '\"{}\"'", "é".repeat(131_072)),
        ),
    ]
}

fn owners_and_metadata() -> Vec<Case> {
    let form = "write did:matrix:<user id>:<first 16 hex digits of the public key>, in lower case";
    let owner = |did: &str| {
        let told = format!("spec.owner: Invalid value: {did:?}: {form}");
        case(Told::Apply, "spec.owner", &told, alarm(&format!("delaySeconds: 3600, owner: '{did}'")))
    };
    let labels = |count: usize| (0..count).map(|number| format!("l{number}: x")).collect::<Vec<_>>().join(", ");
    let request = |bytes: usize| format!(", annotations: {{chronos.dev/fire-requested-at: {}}}", "x".repeat(bytes));
    let odd = ", labels: {a: '', A.b-c_d: 'a.b-C_d', example.com/e: '1'}";
    let without_owner = resource("Alarm", "", "delaySeconds: 3600, wakeMessage: x");
    vec![
        owner("ann"),
        owner("did:web:ann:d75a980182b10ab7"),
        owner("did:matrix:ann:D75A980182B10AB7"),
        owner("did:matrix:a n n:d75a980182b10ab7"),
        case(Told::Apply, "spec.owner", "spec.owner: Required value", without_owner),
        case(
            Told::Apply,
            "spec.owner",
            "spec.owner: Too long: may not be more than 256 bytes",
            alarm(&format!("delaySeconds: 3600, owner: 'did:matrix:{}:d75a980182b10ab7'", "a".repeat(256))),
        ),
        case(
            Told::Apply,
            "spec.snooze",
            ".spec.snooze: field not declared in schema",
            alarm("delaySeconds: 3600, snooze: 5"),
        ),
        case(
            Told::Nowhere,
            "",
            "",
            alarm(&format!("delaySeconds: 3600, owner: '{}'", UUID_DID.replace("aaaa", "AAAA"))),
        ),
        case(Told::Nowhere, "", "", alarm_with(odd, "delaySeconds: 3600")),
        case(
            SPEC,
            "metadata.labels",
            "metadata.labels: has 65 entries; give at most 64",
            alarm_with(&format!(", labels: {{{}}}", labels(65)), "delaySeconds: 3600"),
        ),
        case(Told::Nowhere, "", "", alarm_with(&request(256), "delaySeconds: 3600")),
        case(
            SPEC,
            "metadata.annotations.chronos.dev/fire-requested-at",
            "metadata.annotations.chronos.dev/fire-requested-at: is 257 bytes long; give at most 256, such as the time of day",
            alarm_with(&request(257), "delaySeconds: 3600"),
        ),
        // Of several mistakes each is told, and what is not only the schedule's is the whole spec's.
        case(
            SPEC,
            "spec.cronExpr",
            "spec.payloadJson: is not JSON: EOF while parsing an object at line 1 column 1; give one JSON value; \
             spec.cronExpr: hour 25 is out of range; write 0 to 23",
            alarm("cronExpr: '0 25 * * *', payloadJson: '{'"),
        ),
    ]
}

fn agents() -> Vec<Case> {
    let apply = |field, sentence: &str, yaml: String| case(Told::Apply, field, sentence, yaml);
    let key = |key: &str| {
        let told = format!(
            "spec.publicKey: Invalid value: {key:?}: write the agent's whole ed25519 public key: 64 hex digits, in lower case"
        );
        apply("spec.publicKey", &told, agent(DID, key, ""))
    };
    let quota = |field: &'static str, value: &str, sentence: &str| {
        let name = field.trim_start_matches("spec.");
        apply(field, &format!("{field} in body {sentence}"), agent(DID, KEY, &format!(", {name}: {value}")))
    };
    let form = "write did:matrix:<user id>:<first 16 hex digits of the public key>, in lower case";
    vec![
        apply("spec.did", &format!("spec.did: Invalid value: \"ann\": {form}"), agent("ann", KEY, "")),
        apply("spec.did", form, agent("did:matrix:ann:D75A980182B10AB7", KEY, "")),
        key(&KEY[..63]),
        key("d75a"),
        key(&format!("{KEY}00")),
        key(&format!("0x{KEY}")),
        key(&KEY.to_uppercase()),
        apply(
            "spec.did",
            "spec.did: Invalid value: the DID's last part must be the first 16 hex digits of publicKey",
            agent(DID, &KEY.replace("d75a", "0000"), ""),
        ),
        apply("spec.publicKey", "spec.publicKey: Required value", resource("Agent", "", &format!("did: '{DID}'"))),
        quota("spec.maxActiveAlarms", "-1", "should be greater than or equal to 0"),
        quota("spec.maxActiveAlarms", "3000000000", "should be less than or equal to 2147483647"),
        quota("spec.minIntervalSeconds", "-1", "should be greater than or equal to 0"),
        quota("spec.minIntervalSeconds", "3000000000", "should be less than or equal to 2147483647"),
        apply("spec.suspended", ".spec.suspended: expected boolean", agent(DID, KEY, ", suspended: 'yes'")),
        apply("spec.quota", ".spec.quota: field not declared in schema", agent(DID, KEY, ", quota: 5")),
    ]
}
