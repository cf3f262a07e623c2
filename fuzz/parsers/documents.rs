//! Payloads, bodies of requests, resources: text with structure.

use std::fmt::Debug;

use chrono::{DateTime, Timelike, Utc};
use chronos::{
    controller::validate::validate,
    crd::{Agent, Alarm},
    domain::{
        access::Did,
        alarm::{Defaults, Definition, Draft},
        payload::{self, Payload},
        schedule::Schedule,
        session::autonomy::EventType,
    },
    http::read,
    store::checkpoints::What,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    assert_readable, assert_told,
    schedule::{assert_before_the_end, assert_described},
    text,
};

const UID: &str = "00000000-0000-0000-0000-000000000001";
const REASONS: [&str; 2] = ["InvalidSchedule", "InvalidSpec"];

fn defaults() -> Defaults {
    let born_at = DateTime::from_timestamp(1_800_000_000, 0).expect("2027-01-15T08:00:00Z is an instant");
    Defaults { born_at, delays_from: born_at, max_failures: 5 }
}

/// The bytes are a payload.
pub fn payload(data: &[u8]) -> bool {
    let written = text(data);
    // What is in it by another parser's reading; nothing when it is no JSON, or a number does not fit a double.
    let value: Option<Value> = serde_json::from_str(&written).ok();
    match Payload::parse(written.clone().into_owned()) {
        Ok(payload) => {
            assert_eq!(payload.as_str(), written, "it comes back byte for byte");
            assert!(written.len() <= payload::LONGEST);
            let canonical = payload.canonical();
            let again = Payload::parse(canonical.clone()).expect("the canonical spelling is a payload too");
            assert_eq!(again.canonical(), canonical, "canonical is canonical");
            assert_eq!(again.is_empty(), payload.is_empty(), "{written:?} and {canonical:?} differ in substance");
            if let Some(value) = value {
                assert_eq!(payload.is_empty(), value == json!({}), "{written:?}");
                assert!(depth(&value) <= payload::DEEPEST);
                assert!(!holds_nul(&value), "{written:?} holds a NUL");
            }
            true
        }
        Err(error) => {
            assert_readable(&error.to_string());
            match error {
                payload::Error::NotJson(_) => assert_eq!(value, None, "{written:?} is JSON"),
                payload::Error::TooLong(bytes) => assert!(bytes == written.len() && bytes > payload::LONGEST),
                payload::Error::TooDeep(levels) => {
                    assert!(levels > payload::DEEPEST && written.matches(['[', '{']).count() >= levels);
                }
                payload::Error::Nul => assert!(written.contains('\0') || written.contains("\\u0000")),
            }
            false
        }
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

fn holds_nul(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(holds_nul),
        Value::Object(members) => members.iter().any(|(key, value)| key.contains('\0') || holds_nul(value)),
        Value::String(text) => text.contains('\0'),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The bytes are the body of `POST /v1/alarms`.
pub fn create_body(data: &[u8]) -> bool {
    match read::create(data, defaults()) {
        Ok(definition) => {
            let body: Value = serde_json::from_slice(data).unwrap_or_default();
            assert_holds(&definition, defaults().born_at);
            if let Some(message) = body["wake_message"].as_str() {
                assert_eq!(definition.wake_message, message);
            }
            if let Some(failures) = body["max_failures"].as_u64() {
                assert_eq!(u64::from(definition.max_failures), failures);
            }
            true
        }
        Err(problem) => {
            assert_told(&problem);
            false
        }
    }
}

/// The bytes are the body of `PATCH /v1/alarms/{id}`, for a series and for an alarm that fires once.
pub fn patch_body(data: &[u8]) -> bool {
    let born = defaults();
    let draft = |cron_expr: Option<&str>, delay_seconds| Draft {
        cron_expr: cron_expr.map(str::to_owned),
        delay_seconds,
        wake_message: "wake up".to_owned(),
        ..Draft::default()
    };
    let taken = [draft(Some("@every 90m"), None), draft(None, Some(60))].map(|draft| {
        let before = draft.define(born).expect("it is right");
        match read::patch(data, &before, born) {
            Ok(after) => {
                assert_holds(&after, born.born_at);
                assert_eq!(
                    after.timing.schedule.kind(),
                    before.timing.schedule.kind(),
                    "another kind is another alarm"
                );
                assert_eq!(read::patch(data, &after, born), Ok(after), "patching twice is patching once");
                true
            }
            Err(problem) => {
                assert_told(&problem);
                false
            }
        }
    });
    taken.contains(&true)
}

/// The bytes are the body of `POST /v1/alarms/bulk`.
pub fn bulk_body(data: &[u8]) -> bool {
    match read::bulk(data) {
        Ok(meant) => {
            assert!(!meant.selector.is_empty(), "nobody means every alarm by saying nothing");
            true
        }
        Err(problem) => {
            assert_told(&problem);
            false
        }
    }
}

/// The bytes are the body of `PUT /v1/service-calls/{service_call_id}/timer`.
pub fn timer_body(data: &[u8]) -> bool {
    match read::timer(data) {
        Ok(timer) => {
            assert!(timer.due_at.nanosecond().is_multiple_of(1_000_000), "{} is on no millisecond", timer.due_at);
            assert!(timer.due_at >= DateTime::UNIX_EPOCH && timer.due_at.to_rfc3339().as_str() < "2101");
            let traceable =
                |id: &String| (1..=256).contains(&id.len()) && id.bytes().all(|byte| (b' '..=b'~').contains(&byte));
            assert!(timer.correlation_id.as_ref().is_none_or(traceable));
            true
        }
        Err(problem) => {
            assert_told(&problem);
            false
        }
    }
}

/// The bytes are the body of `POST /v1/schedules/preview`.
pub fn preview_body(data: &[u8]) -> bool {
    let now = defaults().born_at;
    match read::preview(data, now) {
        Ok(fires) => {
            assert!((1..=100).contains(&fires.len()));
            assert!(fires.windows(2).all(|pair| pair[0].scheduled_for < pair[1].scheduled_for), "one after another");
            let body: Value = serde_json::from_slice(data).unwrap_or_default();
            if body["from"].is_null() {
                assert!(fires[0].scheduled_for > now, "ahead");
            }
            true
        }
        Err(problem) => {
            assert_told(&problem);
            false
        }
    }
}

/// The bytes are the body of `POST /v1/sessions/{key}/events`.
pub fn event_body(data: &[u8]) -> bool {
    match read::event(data) {
        Ok(event) => {
            assert_written(data, &event.payload);
            let value: Option<Value> = serde_json::from_str(event.payload.as_str()).ok();
            match event.event_type {
                EventType::UserMessage => assert!(value.is_none_or(|value| value["text"].is_string())),
                EventType::ToolResult => {
                    assert!(value.is_none_or(|value| value["tool_id"].is_string() && value.get("payload").is_some()));
                }
                EventType::Timer => panic!("nobody posts that a timer came due"),
            }
            true
        }
        Err(problem) => {
            assert_told(&problem);
            false
        }
    }
}

/// The bytes are the body of `POST /v1/sessions/{key}/checkpoints`.
pub fn checkpoint_body(data: &[u8]) -> bool {
    let fits = |text: &str| (1..=256).contains(&text.len()) && !text.contains('\0');
    match read::checkpoint(data) {
        Ok(checkpoint) => {
            assert!(fits(&checkpoint.checkpoint_id) && checkpoint.event_seq >= 1 && checkpoint.effects.len() <= 100);
            for effect in checkpoint.effects {
                assert_written(data, &effect.payload);
                let value: Option<Value> = serde_json::from_str(effect.payload.as_str()).ok();
                match effect.what {
                    What::SendMessage => {
                        assert!(value.is_none_or(|value| value["content"].is_string()));
                    }
                    What::ScheduleTimer { timer_id, fire_at, payload } => {
                        assert!(fits(&timer_id), "{timer_id:?} does not fit its column");
                        assert!(value.is_none_or(|value| value["timer_id"] == timer_id));
                        assert_before_the_end(fire_at);
                        assert_eq!(fire_at.nanosecond() % 1000, 0, "{fire_at} is finer than Postgres");
                        if let Some(payload) = payload {
                            assert!(
                                effect.payload.as_str().contains(payload.as_str()),
                                "it is carried as it was written"
                            );
                            assert_ne!(payload.as_str(), "null", "null is nothing");
                        }
                    }
                }
            }
            true
        }
        Err(problem) => {
            assert_told(&problem);
            false
        }
    }
}

/// What is kept of a body is kept to the byte.
fn assert_written(data: &[u8], payload: &Payload) {
    assert!(text(data).contains(payload.as_str()), "{payload:?} was not written so");
    assert!(Payload::parse(payload.as_str().to_owned()).is_ok(), "a payload stays one");
}

/// What everything behind both doors relies on.
fn assert_holds(definition: &Definition, born_at: DateTime<Utc>) {
    let again = Draft::of(definition).define(Defaults { born_at, ..defaults() });
    assert_eq!(again.as_ref(), Ok(definition), "what was defined is written and defined again");
    let Definition { label, conversation_id, wake_message, payload, .. } = definition;
    for (text, cap) in [(label, 256), (conversation_id, 256), (wake_message, 32 * 1024)] {
        assert!(text.len() <= cap && !text.contains('\0'), "{text:?} does not fit its column");
    }
    assert!(!wake_message.trim().is_empty(), "a wake says something");
    assert!(definition.max_failures <= 100);
    assert!(Payload::parse(payload.as_str().to_owned()).is_ok(), "a payload stays one");
    match &definition.timing.schedule {
        Schedule::Once { fire_at } => {
            assert_before_the_end(*fire_at);
            assert_eq!(fire_at.nanosecond() % 1000, 0, "{fire_at} is finer than Postgres");
        }
        Schedule::Cron(recurrence) => {
            if let Some(slot) = recurrence.next_after(defaults().born_at) {
                assert!(slot > defaults().born_at);
                assert_before_the_end(slot);
            }
            assert_described(recurrence);
        }
    }
}

/// The bytes are an Alarm in JSON, as the API server hands it out.
pub fn alarm_resource(data: &[u8]) -> bool {
    serde_json::from_slice::<Alarm>(data).is_ok_and(validated)
}

/// The bytes are an Alarm in YAML, as a person writes it.
pub fn alarm_yaml(data: &[u8]) -> bool {
    let value = serde_saphyr::from_str::<Value>(&text(data));
    value.is_ok_and(|value| serde_json::from_value::<Alarm>(value).is_ok_and(validated))
}

fn validated(mut alarm: Alarm) -> bool {
    assert_printed_and_read_again(&alarm.spec);
    // What an API server would have filled in, so that the search for mistakes goes on behind it.
    let metadata = &mut alarm.metadata;
    metadata.uid.get_or_insert_with(|| UID.to_owned());
    metadata.namespace.get_or_insert_with(|| "home".to_owned());
    metadata.generation.get_or_insert(1);
    let created = || serde_json::from_value(json!("2027-01-15T08:00:00Z")).expect("an instant is a Time");
    metadata.creation_timestamp.get_or_insert_with(created);

    match validate(&alarm, 5) {
        Ok(valid) => {
            assert!(valid.owner.as_str().eq_ignore_ascii_case(&alarm.spec.owner));
            assert_eq!(Some(valid.uid.to_string()), alarm.metadata.uid.map(|uid| uid.to_ascii_lowercase()));
            assert_holds(&valid.definition, valid.created_at);
            assert_eq!(valid.definition.wake_message, alarm.spec.wake_message);
            true
        }
        Err(refused) => {
            assert!(REASONS.contains(&refused.reason), "{refused:?}");
            assert_readable(&refused.message);
            let named = refused.message.starts_with("spec.") || refused.message.starts_with("metadata");
            assert!(named, "a refusal begins with the field: {refused:?}");
            false
        }
    }
}

/// The bytes are an Agent, in JSON or YAML.
pub fn agent_resource(data: &[u8]) -> bool {
    let value = serde_json::from_slice(data).ok().or_else(|| serde_saphyr::from_str::<Value>(&text(data)).ok());
    let Some(agent) = value.and_then(|value| serde_json::from_value::<Agent>(value).ok()) else { return false };
    assert_printed_and_read_again(&agent.spec);
    match agent.spec.did.parse::<Did>() {
        Ok(did) => {
            assert!(
                agent.spec.enrols(did.as_str()) && agent.spec.enrols(&agent.spec.did),
                "an Agent enrols its own DID"
            );
            assert!(!agent.spec.enrols("did:matrix:nobody:0000000000000000") || did.user_id() == "nobody");
            true
        }
        Err(_) => {
            assert!(!agent.spec.enrols(&agent.spec.did), "what is no DID enrols nobody, not even itself");
            false
        }
    }
}

fn assert_printed_and_read_again<T: Serialize + DeserializeOwned + PartialEq + Debug>(spec: &T) {
    let printed = serde_json::to_string(spec).expect("a spec can be printed");
    let again = serde_json::from_str::<T>(&printed).unwrap_or_else(|error| panic!("{printed}: {error}"));
    assert_eq!(again, *spec, "what was read is written and read again");
}
