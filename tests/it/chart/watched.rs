//! Alerts and dashboard: promtool judges the rules and plays each alert through, and a real Prometheus, which scrapes real processes under
//! way, is asked everything that they ask.

use std::{collections::BTreeSet, fs, path::Path, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use super::{CHART, objects, rendered, tool, variant};
use crate::support::{AgentKey, Daemon, Namespace, PATIENCE, Reply, World, eventually, with_tls};

/// Where the metrics of a release come from, as the rules have it.
const HOME: &str = "chronos-system";

/// The rules as Prometheus reads them.
async fn rules() -> Value {
    let values = variant("default");
    let shown =
        ["--values", &values, "--set", "prometheusRule.enabled=true", "--show-only", "templates/prometheusrule.yaml"];
    objects(&rendered(HOME, &shown).await)[0]["spec"].clone()
}

fn each_rule(rules: &Value) -> impl Iterator<Item = &Value> {
    rules["groups"].as_array().unwrap().iter().flat_map(|group| group["rules"].as_array().unwrap())
}

#[tokio::test]
async fn every_alert_passes_promtool_and_fires_when_it_should() {
    let mut rules = rules().await;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("whole.yaml"), rules.to_string()).unwrap();
    let (passed, said) = tool("promtool", &["check", "rules", "--lint=all", "--lint-fatal", &path("whole.yaml")]).await;
    assert!(passed, "{said}");

    // promtool compares annotations word by word; what they say is for people.
    let play = fs::read_to_string(format!("{CHART}/tests/alerts.promtool.yaml")).unwrap();
    for rule in rules["groups"][0]["rules"].as_array_mut().unwrap() {
        rule.as_object_mut().unwrap().remove("annotations").expect("it says what to do");
    }
    fs::write(path("rules.yaml"), rules.to_string()).unwrap();
    fs::write(path("play.yaml"), &play).unwrap();
    let (passed, said) = tool("promtool", &["test", "rules", &path("play.yaml")]).await;
    assert!(passed, "{said}");
    for rule in each_rule(&rules) {
        let alert = rule["alert"].as_str().unwrap();
        let fires = play.lines().any(|line| line.contains(&format!("alertname: {alert}, exp_alerts: [{{")));
        assert!(fires, "nobody has seen {alert} fire");
    }
}

/// A page for each alert: what its `runbook_url` names is there.
#[tokio::test]
async fn every_alert_names_a_section_of_the_guide() {
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guides/troubleshoot.md")).unwrap();
    let sections: BTreeSet<String> = guide
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .collect();
    for rule in each_rule(&rules().await) {
        let url = rule["annotations"]["runbook_url"].as_str().unwrap();
        let anchor = url.strip_prefix("docs/guides/troubleshoot.md#").expect("the guide");
        assert!(sections.contains(anchor), "docs/guides/troubleshoot.md has no section {}", rule["alert"]);
    }
}

/// What the panels ask, by panel, as Grafana would ask it.
fn questions() -> Vec<(String, String)> {
    let text = fs::read_to_string(format!("{CHART}/dashboards/chronos.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut questions = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            let asked = target["expr"].as_str().unwrap().replace("$namespace", HOME).replace("$__rate_interval", "20s");
            questions.push((title.to_owned(), asked));
        }
    }
    assert!(questions.len() > 30, "{}", questions.len());
    questions
}

#[tokio::test]
async fn everything_that_dashboard_and_alerts_ask_has_an_answer() {
    let (world, namespace) = tokio::join!(World::new(), Namespace::fresh());
    let settings = [
        ("KUBECONFIG", namespace.kubeconfig.to_str().unwrap()),
        ("CHRONOS_WATCH_NAMESPACES", namespace.name.as_str()),
        ("CHRONOS_NAMESPACE", namespace.name.as_str()),
    ];
    // Combined, and a facade by itself: a process without the other roles answers, too.
    let both = [world.chronosd_with("controller,dispatch,api", &settings).await, world.chronosd_with("api", &[]).await];
    let prometheus = Prometheus::start(&both, &rules().await).await;
    keep_busy(&world, &namespace).await;

    let exposed = both[0].probe("/metrics").await.1;
    let mut asked = questions();
    let rules = rules().await;
    asked.extend(each_rule(&rules).map(|rule| (rule["alert"].to_string(), rule["expr"].as_str().unwrap().to_owned())));
    for (title, question) in &asked {
        for metric in metrics_in(question) {
            assert!(exposed.contains(&format!("# TYPE {metric} ")), "{title} asks for {metric}, which nobody tells");
        }
    }
    for (title, question) in questions() {
        eventually(&format!("{title}: {question} has an answer"), || prometheus.answers(&question)).await;
    }
    // Alerts mostly have none: nothing is wrong. But each was asked without an error, again and again.
    eventually("all rules are well", || prometheus.rules_are_well(each_rule(&rules).count())).await;
}

/// Alarms that fire every second for as long as the test lasts, some of them refused.
async fn keep_busy(world: &World, namespace: &Namespace) {
    let AgentKey { did, public_key, .. } = AgentKey::of("ann");
    let refusals = vec![Reply::Status(503); 100];
    world.sink.reply_to("refused", refusals);
    let object = |kind: &str, name: &str, spec: Value| {
        json!({ "apiVersion": "chronos.dev/v1alpha1", "kind": kind, "metadata": { "name": name }, "spec": spec })
            .to_string()
    };
    namespace.apply(&object("Agent", "ann", json!({ "did": did, "publicKey": public_key }))).await.unwrap();
    for (name, label, most) in [("taken", "taken", 5), ("refused", "refused", 0)] {
        let spec = json!({ "owner": did, "cronExpr": "@every 1s", "wakeMessage": "wake up", "label": label, "maxFailures": most });
        namespace.apply(&object("Alarm", name, spec)).await.unwrap();
    }
    namespace.status("taken", "has fired", |status| status.fired_count > 0).await;
}

/// The metrics that a question names, without what a histogram's series have behind its name.
fn metrics_in(question: &str) -> BTreeSet<&str> {
    let words = question.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    let ours = words.filter(|word| word.starts_with("chronos_"));
    ours.map(|word| ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word))
        .collect()
}

/// A Prometheus that looks every half second. Dropping it kills it.
struct Prometheus {
    _child: Child,
    _folder: TempDir,
    url: String,
}

impl Prometheus {
    async fn start(scraped: &[Daemon], rules: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rules.yaml"), rules.to_string()).unwrap();
        let targets: Vec<Value> = scraped
            .iter()
            .enumerate()
            .map(|(number, daemon)| {
                json!({ "targets": [daemon.probes.to_string()], "labels": { "namespace": HOME, "pod": format!("chronos-{number}") } })
            })
            .collect();
        let config = json!({
            "global": { "scrape_interval": "500ms", "scrape_timeout": "400ms", "evaluation_interval": "500ms" },
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{ "job_name": "chronos-metrics", "static_configs": targets }],
        });
        fs::write(folder.path().join("prometheus.yaml"), config.to_string()).unwrap();
        let assets = std::env::var_os("KUBEBUILDER_ASSETS").expect("make sets it");
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--"])
            .arg(Path::new(&assets).join("prometheus"))
            .args(["--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:0"])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the test bed has a Prometheus");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let listening = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if let Some((_, rest)) = line.split_once("msg=\"Listening on\"") {
                    let address = rest.split("address=").nth(1).expect("it says where");
                    return format!("http://{}", address.split_whitespace().next().unwrap());
                }
                eprintln!("prometheus: {line}");
            }
            panic!("Prometheus ended before it listened; its words are above");
        };
        let url = timeout(PATIENCE, listening).await.expect("Prometheus listens in time");
        tokio::spawn(async move { while let Ok(Some(_unread)) = lines.next_line().await {} });
        Self { _child: child, _folder: folder, url }
    }

    async fn get(&self, path: &str, query: &[(&str, &str)]) -> Option<Value> {
        with_tls();
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build().unwrap();
        let mut url = reqwest::Url::parse(&format!("{}/api/v1/{path}", self.url)).unwrap();
        url.query_pairs_mut().extend_pairs(query);
        let answer = client.get(url).send().await.ok()?.text().await.ok()?;
        serde_json::from_str(&answer).ok()
    }

    /// With at least one number that is one.
    async fn answers(&self, question: &str) -> Option<()> {
        let answer = self.get("query", &[("query", question)]).await?;
        assert!(answer["error"].is_null() || answer["errorType"] == "unavailable", "{question}: {answer}");
        let series = answer["data"]["result"].as_array()?;
        let number = |one: &Value| one["value"][1].as_str().and_then(|text| text.parse::<f64>().ok());
        series.iter().filter_map(number).any(f64::is_finite).then_some(())
    }

    async fn rules_are_well(&self, count: usize) -> Option<()> {
        let answer = self.get("rules", &[]).await?;
        let rules = answer["data"]["groups"][0]["rules"].as_array()?;
        for rule in rules {
            assert!(rule["lastError"].as_str().unwrap_or_default().is_empty(), "{rule}");
        }
        (rules.len() == count && rules.iter().all(|rule| rule["health"] == "ok")).then_some(())
    }
}
