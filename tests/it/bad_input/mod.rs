//! What becomes of bad input: each mistake gets its sentence, at apply or in the status; nothing of it reaches Postgres; and whoever
//! mends it need not restart anything.

mod cases;

use chronos::crd::{AlarmStatus, Phase};
use kube::api::DeleteParams;
use sqlx::Row;

use self::cases::{Case, DID, KEY, Told, UUID_DID, alarm, cases, resource};
use crate::{
    cli::{chronosd_on, chronosd_reading, json_of},
    support::{AgentKey, Daemon, Namespace, World, eventually},
};

/// A controller, the same from beginning to end, and its database.
struct Site {
    world: World,
    _daemon: Daemon,
}

impl Site {
    async fn serving(namespaces: &[&Namespace]) -> Self {
        let world = World::new().await;
        let names: Vec<_> = namespaces.iter().map(|namespace| namespace.name.as_str()).collect();
        let settings = [
            ("KUBECONFIG", namespaces[0].kubeconfig.to_str().unwrap()),
            ("CHRONOS_WATCH_NAMESPACES", &names.join(",")),
            ("CHRONOS_NAMESPACE", names[0]),
        ];
        let daemon = world.chronosd_with("controller", &settings).await;
        Self { world, _daemon: daemon }
    }

    /// The names of the resources that have a row.
    async fn stored(&self) -> Vec<String> {
        let rows = sqlx::query("SELECT resource_name FROM alarms ORDER BY 1");
        let rows = rows.fetch_all(&mut self.world.database.connect().await).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn enrolled(&self) -> Vec<String> {
        let rows = sqlx::query("SELECT did FROM agents ORDER BY 1");
        let rows = rows.fetch_all(&mut self.world.database.connect().await).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

async fn apply(namespace: &Namespace, name: &str, yaml: &str) -> Result<(), String> {
    namespace.apply(&yaml.replace("NAME", name)).await.map_err(|error| error.to_string())
}

/// The sentence with which the Alarm is refused, once it is for this reason.
async fn refused(namespace: &Namespace, name: &str, reason: &str) -> String {
    let is_refused =
        |status: &AlarmStatus| status.phase == Some(Phase::Invalid) && status.conditions[0].reason == reason;
    let status = namespace.status(name, &format!("is refused: {reason}"), is_refused).await;
    let conditions: Vec<_> =
        status.conditions.iter().map(|one| (one.type_.as_str(), one.status.as_str(), one.reason.as_str())).collect();
    assert_eq!(conditions, [("Ready", "False", reason), ("Stalled", "True", reason)], "{name}");
    assert_eq!(status.conditions[0].message, status.conditions[1].message);
    status.conditions[0].message.clone()
}

async fn active(namespace: &Namespace, name: &str) {
    let is_active = |status: &AlarmStatus| {
        status.phase == Some(Phase::Active) && status.conditions.iter().all(|condition| condition.type_ != "Stalled")
    };
    namespace.status(name, "is Active", is_active).await;
}

/// Reason and sentence of the Agent's condition Ready, once it has this status.
async fn agent_is(namespace: &Namespace, name: &str, ready: &str) -> (String, String) {
    let agents = namespace.agents();
    eventually(&format!("Agent {name} is Ready={ready}"), || async {
        let conditions = agents.get_opt(name).await.unwrap()?.status?.conditions;
        let found = conditions.into_iter().find(|one| one.type_ == "Ready" && one.status == ready)?;
        Some((found.reason, found.message))
    })
    .await
}

fn agent(did: &str, key: &str, more: &str) -> String {
    resource("Agent", "", &format!("did: '{did}', publicKey: '{key}'{more}"))
}

#[tokio::test]
async fn each_mistake_gets_its_sentence_stores_nothing_and_is_mended_without_a_restart() {
    let namespace = Namespace::fresh().await;
    let site = Site::serving(&[&namespace]).await;
    apply(&namespace, "ann", &agent(DID, KEY, "")).await.unwrap();
    apply(&namespace, "bob", &agent(UUID_DID, KEY, "")).await.unwrap();
    agent_is(&namespace, "ann", "True").await;
    let cases: Vec<(String, Case)> =
        cases().into_iter().enumerate().map(|(number, case)| (format!("case-{number:03}"), case)).collect();

    for (name, case) in &cases {
        let answer = apply(&namespace, name, &case.yaml).await;
        match (case.told, &answer) {
            (Told::Apply, Err(said)) => assert!(said.contains(&case.sentence), "{name}: {said}\n{}", case.sentence),
            (Told::Stalled(_) | Told::Nowhere, Ok(())) => {}
            (told, answer) => panic!("{name} is told {told:?}, but: {answer:?}: {:.200}", case.yaml),
        }
    }
    let mut fine = Vec::new();
    for (name, case) in &cases {
        match case.told {
            Told::Apply => {}
            Told::Stalled(reason) => {
                let said = refused(&namespace, name, reason).await;
                assert!(said.contains(&case.sentence), "{name}: {said}");
            }
            Told::Nowhere => {
                active(&namespace, name).await;
                fine.push(name.clone());
            }
        }
    }
    assert_eq!(site.stored().await, fine, "nothing that is refused has a row");
    assert_eq!(site.enrolled().await, [UUID_DID, DID]);

    let is_wrong = |case: &Case| case.told != Told::Nowhere && case.yaml.contains("kind: Alarm");
    let wrong: Vec<_> = cases.iter().filter(|(_, case)| is_wrong(case)).collect();
    for (name, _) in &wrong {
        apply(&namespace, name, &alarm("cronExpr: '0 9 * * *', timezone: Europe/Berlin")).await.unwrap();
    }
    for (name, _) in &wrong {
        active(&namespace, name).await;
    }
    assert_eq!(site.stored().await.len(), wrong.len() + fine.len());
}

#[tokio::test]
async fn explain_says_offline_what_the_api_server_and_the_controller_say() {
    let cases = cases();
    let documents: Vec<String> =
        cases.iter().enumerate().map(|(number, case)| case.yaml.replace("NAME", &format!("c{number}"))).collect();
    let told = json_of(&chronosd_reading(&documents.join("\n---\n"), &["explain", "-f", "-", "--json"]).await);
    let findings = told.as_array().unwrap();
    assert_eq!(findings.len(), cases.len());
    for (case, finding) in cases.iter().zip(findings) {
        let problems = finding["problems"].as_array().unwrap();
        let text = |key: &str, problem: &serde_json::Value| problem[key].as_str().unwrap_or_default().to_owned();
        let said: Vec<String> = problems
            .iter()
            .map(|problem| {
                format!("{}: {}; {}", text("field", problem), text("problem", problem), text("remedy", problem))
            })
            .collect();
        match case.told {
            Told::Nowhere => assert_eq!(said, [""; 0], "{:.200}", case.yaml),
            // In its own words, which have more room than a rule of the API server's.
            Told::Apply => {
                let fields: Vec<String> = problems.iter().map(|problem| text("field", problem)).collect();
                assert_eq!(fields, [case.field], "{said:?}: {:.200}", case.yaml);
            }
            // In the very words of the status.
            Told::Stalled(_) => {
                assert!(said.iter().any(|said| said.starts_with(case.field)), "{said:?}");
                let each =
                    said.iter().filter(|said| case.sentence.contains(said.as_str()) || said.contains(&case.sentence));
                assert_eq!(each.count(), said.len(), "{said:?}: {}", case.sentence);
            }
        }
    }
}

#[tokio::test]
async fn who_an_alarm_belongs_to_and_which_key_an_agent_has_cannot_be_changed() {
    let namespace = Namespace::fresh().await;
    let eve = AgentKey::of("eve");
    apply(&namespace, "tea", &alarm("cronExpr: '@daily'")).await.unwrap();
    let stolen = alarm(&format!("owner: '{}', cronExpr: '@daily'", eve.did));
    let said = apply(&namespace, "tea", &stolen).await.unwrap_err();
    assert!(said.contains("spec.owner: Invalid value: owner is immutable: create another Alarm"), "{said}");

    apply(&namespace, "ann", &agent(DID, KEY, "")).await.unwrap();
    let said = apply(&namespace, "ann", &agent(&eve.did, &eve.public_key, "")).await.unwrap_err();
    assert!(said.contains("spec.did: Invalid value: did is immutable: create another Agent"), "{said}");
    let told = "spec.publicKey: Invalid value: publicKey is immutable: create another Agent, because another key makes another DID";
    assert!(said.contains(told), "{said}");
}

#[tokio::test]
async fn an_owner_without_an_agent_beside_it_is_refused_until_there_is_one() {
    let (here, there) = (Namespace::fresh().await, Namespace::fresh().await);
    let site = Site::serving(&[&here, &there]).await;
    apply(&here, "tea", &alarm("cronExpr: '@daily'")).await.unwrap();
    let said = refused(&here, "tea", "OwnerNotAllowed").await;
    let nobody = format!("spec.owner: no Agent with the DID {DID} stands in namespace {}", here.name);
    assert!(said.starts_with(&format!("{nobody}; ask an administrator to create one")), "{said}");

    // One in another namespace is none, and says so.
    apply(&there, "ann", &agent(DID, KEY, "")).await.unwrap();
    agent_is(&there, "ann", "True").await;
    apply(&here, "cake", &alarm("cronExpr: '@daily'")).await.unwrap();
    let said = refused(&here, "cake", "OwnerNotAllowed").await;
    assert!(said.starts_with(&format!("{nobody} (it is held by Agent {}/ann)", there.name)), "{said}");
    assert_eq!(site.stored().await, [""; 0]);

    // A second one here does not hold the DID; whoever hangs on it is told which of the two does.
    there.until_another_is_younger("ann").await;
    apply(&here, "ann-too", &agent(DID, KEY, "")).await.unwrap();
    let (reason, said) = agent_is(&here, "ann-too", "False").await;
    let held = format!("spec.did: {DID} is held by Agent {}/ann, which is older; delete one of the two", there.name);
    assert_eq!((reason.as_str(), said), ("DuplicateDid", held));
    let told = format!("spec.owner: Agent ann-too of namespace {} does not hold the DID {DID}", here.name);
    let is_told = |status: &AlarmStatus| status.conditions[0].message.starts_with(&told);
    here.status("tea", "is told of ann-too", is_told).await;

    there.agents().delete("ann", &DeleteParams::default()).await.unwrap();
    assert_eq!(agent_is(&here, "ann-too", "True").await.0, "Enrolled");
    active(&here, "tea").await;
    active(&here, "cake").await;
    assert_eq!(site.stored().await, ["cake", "tea"]);
}

#[tokio::test]
async fn what_was_enrolled_on_the_command_line_owns_no_alarms_until_an_agent_takes_its_place() {
    let namespace = Namespace::fresh().await;
    let site = Site::serving(&[&namespace]).await;
    let added = chronosd_on(&site.world.database, &["agent", "add", DID, "--public-key", KEY]).await;
    assert_eq!(added.code, Some(0), "{}", added.stderr);
    apply(&namespace, "tea", &alarm("cronExpr: '@daily'")).await.unwrap();
    let said = refused(&namespace, "tea", "OwnerNotAllowed").await;
    assert!(
        said.contains("(it was enrolled on the command line, which is for HTTP alone); ask an administrator"),
        "{said}"
    );

    apply(&namespace, "ann", &agent(DID, KEY, "")).await.unwrap();
    let (reason, said) = agent_is(&namespace, "ann", "False").await;
    assert_eq!(reason, "DuplicateDid");
    assert!(said.contains(&format!("was enrolled on the command line; run `chronosd agent remove {DID}`")), "{said}");
    assert_eq!(site.stored().await, [""; 0]);

    let removed = chronosd_on(&site.world.database, &["agent", "remove", DID]).await;
    assert_eq!(removed.code, Some(0), "{}", removed.stderr);
    assert_eq!(agent_is(&namespace, "ann", "True").await.0, "Enrolled");
    active(&namespace, "tea").await;
}

#[tokio::test]
async fn what_is_beyond_a_quota_is_refused_until_there_is_room() {
    let namespace = Namespace::fresh().await;
    let site = Site::serving(&[&namespace]).await;
    apply(&namespace, "ann", &agent(DID, KEY, ", maxActiveAlarms: 1, minIntervalSeconds: 3600")).await.unwrap();
    apply(&namespace, "fast", &alarm("cronExpr: '*/5 * * * *'")).await.unwrap();
    let said = refused(&namespace, "fast", "QuotaExceeded").await;
    let told = "spec.cronExpr: the schedule fires every 300 s at its fastest, and the agent's alarms may fire every 3600 s at most; \
                make it slower";
    assert!(said.starts_with(told), "{said}");
    assert_eq!(site.stored().await, [""; 0]);
    apply(&namespace, "fast", &alarm("cronExpr: '@hourly'")).await.unwrap();
    active(&namespace, "fast").await;

    apply(&namespace, "many", &alarm("cronExpr: '@daily'")).await.unwrap();
    let said = refused(&namespace, "many", "QuotaExceeded").await;
    assert!(
        said.starts_with("spec.owner: the agent may have 1 alarm") && said.contains("cancel one, or ask"),
        "{said}"
    );
    assert_eq!(site.stored().await, ["fast"]);
    apply(&namespace, "ann", &agent(DID, KEY, ", maxActiveAlarms: 2")).await.unwrap();
    active(&namespace, "many").await;
}

#[tokio::test]
async fn the_definitions_are_installed_without_a_warning() {
    let namespace = Namespace::fresh().await;
    let (crds, examples) =
        (concat!(env!("CARGO_MANIFEST_DIR"), "/crds"), concat!(env!("CARGO_MANIFEST_DIR"), "/examples"));
    let (done, said) =
        namespace.kubectl(&["apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", crds]).await;
    assert!(done && !said.contains("Warning"), "{said}");
    let (done, said) = namespace.kubectl(&["create", "--dry-run=server", "--validate=strict", "-f", examples]).await;
    assert!(done && !said.contains("Warning"), "{said}");
}
