//! The facade's own document: whole, true, and there for everybody.

use std::{collections::BTreeSet, path::Path, process::Stdio, time::Duration};

use chronos::http::openapi;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::{AgentKey, World, api::Api, daemon};

/// The document itself, its page, and the WebSocket, for which OpenAPI has no words: described in words, not as operations.
const NOT_OPERATIONS: &[&str] = &["/openapi.json", "/docs", "/docs/", "/docs/{file}", "/v1/sessions/{key}/stream"];
/// Far more than schemathesis takes; only a hang meets it.
const HANGS_AFTER: Duration = Duration::from_secs(240);

fn document() -> Value {
    serde_json::from_str(openapi::text()).unwrap()
}

fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let paths = document["paths"].as_object().unwrap();
    let of_path = |(path, methods): (&String, &Value)| {
        let methods = methods.as_object().unwrap().clone();
        methods.into_iter().map(|(method, operation)| (path.clone(), method, operation)).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
}

#[tokio::test]
async fn every_route_is_in_the_document_and_nothing_else() {
    let source = include_str!("../../../src/http/mod.rs");
    let routes = source.split(".route(\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    let routes: BTreeSet<&str> = routes.filter(|route| !NOT_OPERATIONS.contains(route)).collect();
    let document = document();
    let described: BTreeSet<&str> = document["paths"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(routes, described);

    // The methods, by what the facade itself says that each path takes.
    let world = World::new().await;
    let daemon = world.chronosd_with("api", &[("CHRONOS_OWNER_RATE", "0")]).await;
    let api = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    for path in described {
        let response = api.request(Method::TRACE, path).send().await.unwrap();
        assert_eq!(response.status(), 405, "{path}");
        let allowed = response.headers()["allow"].to_str().unwrap().to_ascii_lowercase();
        let allowed: BTreeSet<&str> = allowed.split(',').map(str::trim).filter(|method| *method != "head").collect();
        let methods = document["paths"][path].as_object().unwrap();
        assert_eq!(allowed, methods.keys().map(String::as_str).collect(), "{path}");
    }
}

#[test]
fn every_operation_says_what_it_needs_to() {
    let mut ids = BTreeSet::new();
    for (path, method, operation) in operations(&document()) {
        let told = format!("{method} {path}");
        assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{told}: an id of its own");
        assert!(operation["summary"].is_string() && operation["description"].is_string(), "{told}");
        if let Some(body) = operation.get("requestBody") {
            for content in body["content"].as_object().unwrap().values() {
                assert!(content["examples"].as_object().is_some_and(|examples| !examples.is_empty()), "{told}");
            }
        }
        for (status, response) in operation["responses"].as_object().unwrap() {
            let content = &response["content"]["application/json"];
            assert!(response["description"].is_string(), "{told}: {status}");
            assert!(content["schema"].is_object(), "{told}: {status}");
            assert!(content["example"].is_object() || content["examples"].is_object(), "{told}: {status}");
            assert!(response["headers"]["X-Request-Id"].is_object(), "{told}: {status}");
            assert_eq!(response["headers"]["Retry-After"].is_object(), status == "429", "{told}: {status}");
        }
        let has = |status: &str| operation["responses"].get(status).is_some();
        let expected = match path.as_str() {
            "/" | "/healthz" => json!([]),
            "/v1/agent/auth/challenge" | "/v1/agent/auth/verify" => json!([{ "transport": [] }]),
            _ => json!([{ "transport": [], "agent": [] }]),
        };
        assert_eq!(operation["security"], expected, "{told}");
        assert!(!path.starts_with("/v1/") || (has("401") && has("500")), "{told}");
        assert!(operation.get("requestBody").is_none() || (has("400") && has("413") && has("415")), "{told}");
        let named = path.contains("{id}") || path.ends_with("/timer") || path.starts_with("/v1/sessions/");
        assert_eq!(has("404"), named || path == "/v1/schedules/preview", "{told}");
    }
}

#[tokio::test]
async fn the_document_and_its_page_are_there_for_everybody() {
    let world = World::new().await;
    let daemon = world.chronosd_with("api", &[("CHRONOS_OWNER_RATE", "0")]).await;
    let anybody = Api::new(&daemon.api_url()).with_bearer(None);

    let served = anybody.request(Method::GET, "/openapi.json").send().await.unwrap();
    assert_eq!(served.headers()["content-type"], "application/json");
    let served = served.text().await.unwrap();
    let printed = daemon::command(&[]).arg("openapi").stderr(Stdio::inherit()).output().await.unwrap();
    assert_eq!(served, String::from_utf8(printed.stdout).unwrap());

    let page = anybody.get("/docs").await;
    assert_eq!(page.status, 200);
    let linked = ["src=\"", "href=\""].into_iter().flat_map(|attribute| page.text.split(attribute).skip(1));
    let linked: Vec<&str> = linked.map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(linked.len() >= 3, "{}", page.text);
    for link in linked {
        let asset = link.strip_prefix("./").unwrap_or(link);
        assert!(!asset.contains("//"), "{asset} comes from elsewhere");
        let answer = anybody.request(Method::GET, &format!("/docs/{asset}")).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{asset}");
        assert!(answer.headers()["content-security-policy"].to_str().unwrap().starts_with("default-src 'self';"));
    }
    let start = anybody.get("/docs/swagger-initializer.js").await.text;
    assert!(start.contains("../openapi.json") && start.contains(r#""validatorUrl": "none""#), "{start}");
    assert_eq!(anybody.get("/docs/nothing.js").await.refusal(), (404, "not_found", ""));
}

#[tokio::test]
async fn every_operation_asks_for_the_credentials_that_it_names() {
    let world = World::new().await;
    let daemon = world.chronosd_with("api", &[("CHRONOS_OWNER_RATE", "0")]).await;
    let agent = AgentKey::of("ann").sign_in(&daemon.api_url()).await;
    let stranger = Api::new(&daemon.api_url());
    let without_bearer = agent.with_bearer(None);
    for (path, method, operation) in operations(&document()) {
        let method: Method = method.to_uppercase().parse().unwrap();
        let status = async |api: &Api| api.send(api.request(method.clone(), &path)).await.status;
        let asks = |scheme: &str| operation["security"][0].get(scheme).is_some();
        assert_eq!(status(&without_bearer).await == 401, asks("transport"), "{method} {path}");
        // Who signs in has no body here, and hears of that instead.
        assert_eq!(status(&stranger).await == 401, asks("agent"), "{method} {path}");
    }
}

/// schemathesis makes up requests from the document, right ones and wrong ones, and holds every answer against it.
#[tokio::test]
async fn the_facade_does_what_its_document_says() {
    let world = World::new().await;
    let daemon = world.chronosd_with("api", &[("CHRONOS_OWNER_RATE", "0")]).await;
    let url = daemon.api_url();
    // The user of the document's examples, whose session is made by one of them.
    let api = AgentKey::of("11111111-2222-3333-4444-555555555555").sign_in(&url).await;
    let found = schemathesis(&url, &api, CHECKS).await;
    assert!(found.is_ok(), "{}", found.unwrap_err());
}

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                      response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance,\
                      missing_required_header,ignored_auth";

/// An unknown header is nobody's mistake, and HTTP has us pass over it.
const SETTINGS: &str = "[generation]\nallow-extra-parameters = false\n";

async fn schemathesis(url: &str, api: &Api, checks: &str) -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tools =
        Command::new(root.join("testbed/tools.sh")).arg("python").stderr(Stdio::inherit()).output().await.unwrap();
    let tools = String::from_utf8(tools.stdout).unwrap();
    let nowhere = tempfile::tempdir().unwrap();
    std::fs::write(nowhere.path().join("schemathesis.toml"), SETTINGS).unwrap();
    let mut command = Command::new(Path::new(tools.trim()).join("schemathesis"));
    command.current_dir(nowhere.path()).kill_on_drop(true);
    command.arg("run").arg(format!("{url}/openapi.json")).args(["--url", url]);
    for (name, value) in api.credentials() {
        command.arg("--header").arg(format!("{name}: {value}"));
    }
    // One seed, one worker, nothing remembered: the same requests every time.
    command.args(["--seed", "1", "--generation-deterministic", "--workers", "1"]);
    command.args(["--phases", "examples,coverage,fuzzing", "--max-examples", "8", "--checks", checks]);
    // How long it thinks about its requests is the machine's business, not the facade's.
    command.args(["--suppress-health-check", "too_slow"]);
    command.args(["--continue-on-failure", "--no-color", "--warnings", "off", "--request-timeout", "20"]);
    let output = tokio::time::timeout(HANGS_AFTER, command.output()).await.expect("schemathesis ends").unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() { Ok(()) } else { Err(said) }
}
