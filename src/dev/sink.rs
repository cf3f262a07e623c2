//! A small router: takes every wake and prints it.

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
    routing::post,
};
use serde_json::{Value, json, value::RawValue};
use tokio::net::TcpListener;

#[derive(Clone, Copy)]
pub enum Printer {
    Text,
    Json,
}

/// Listens on a free port of the loopback: the address to wake, and what serves it for as long as it is polled.
pub async fn start(
    wake_token: &str,
    printer: Printer,
) -> anyhow::Result<(String, impl Future<Output = std::io::Result<()>> + use<>)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}/internal/wake", listener.local_addr()?);
    let bearer = format!("Bearer {wake_token}");
    let router = Router::new().route("/internal/wake", post(wake)).with_state((bearer, printer));
    Ok((url, axum::serve(listener, router).into_future()))
}

async fn wake(
    State((bearer, printer)): State<(String, Printer)>,
    headers: HeaderMap,
    body: String,
) -> (StatusCode, &'static str) {
    if headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()) != Some(bearer.as_str()) {
        return (StatusCode::UNAUTHORIZED, "the wake token is wrong");
    }
    match printer {
        Printer::Json => {
            let headers: serde_json::Map<String, Value> = headers
                .iter()
                .filter(|(name, _)| *name != AUTHORIZATION)
                .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
                .collect();
            // Verbatim: what the agent stored comes back to the byte.
            let quoted = || json!(body).to_string();
            let body = serde_json::from_str::<&RawValue>(&body).map_or_else(|_| quoted(), |raw| raw.get().to_owned());
            println!(r#"{{"event":"wake","headers":{},"body":{body}}}"#, Value::Object(headers));
        }
        Printer::Text => {
            let wake: Value = serde_json::from_str(&body).unwrap_or_default();
            let text = |name: &str| wake[name].as_str().unwrap_or_default().to_owned();
            // A service call is told of its timer: nobody is woken.
            if wake["service_call_id"].is_string() {
                let (call, due_at, payload) = (text("service_call_id"), text("due_at"), &wake["payload"]);
                println!("due time reached for {call}: {payload}  (delivery {}, due at {due_at})", text("delivery_id"));
                return (StatusCode::ACCEPTED, "taken");
            }
            // A session's timer says nothing by itself: what happened is in the session's log.
            if wake["session_key"].is_string() {
                let (timer, session, seq) = (text("timer_id"), text("session_key"), &wake["event_seq"]);
                let (delivery, attempt) = (text("delivery_id"), &wake["attempt"]);
                println!("wake for {session}: timer {timer} is event {seq}  (delivery {delivery}, attempt {attempt})");
                return (StatusCode::ACCEPTED, "taken");
            }
            println!(
                "wake for {}: {}  (alarm {}, scheduled for {}, attempt {})",
                text("user_id"),
                text("message"),
                text("alarm_id"),
                text("scheduled_for"),
                wake["attempt"]
            );
        }
    }
    (StatusCode::ACCEPTED, "taken")
}
