//! What callers write: events, and checkpoints with the effects they ask for. Pure. What is wrong is told with its whole path, such
//! as `effects[2].payload.fire_at`, and all at once.

use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::{
    domain::{
        alarm::parse_fire_at,
        ids::EventId,
        invalid::{Invalid, check_key, quoted},
        payload::Payload,
        session::{autonomy::EventType, effect::EffectType},
    },
    http::{envelope::parse_at, openapi::fields, problem::Problem},
    store::checkpoints::{Asked, What},
};

/// What comes of one event; more than this is a loop that has run away.
pub const MOST_EFFECTS: usize = 100;

/// `POST /v1/sessions/{key}/events`
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SessionEventBody)]
pub struct EventBody {
    #[schema(schema_with = fields::event_id)]
    id: Option<String>,
    #[serde(rename = "type")]
    #[schema(schema_with = fields::posted_event_type, required)]
    event_type: Option<String>,
    #[schema(schema_with = fields::event_payload, required)]
    payload: Option<Box<RawValue>>,
}

/// An event that a client may tell of.
#[derive(Debug)]
pub struct NewEvent {
    pub id: Option<EventId>,
    pub event_type: EventType,
    pub payload: Payload,
}

impl EventBody {
    pub fn event(self) -> Result<NewEvent, Problem> {
        let mut wrong = Wrong::default();
        let id = self.id.map(|text| event_id(&text)).transpose();
        let id = wrong.or_note(id);
        let event_type = wrong.or_note(posted(self.event_type.as_deref()));
        let payload = wrong.or_note(event_payload(self.payload.as_deref(), event_type));
        match (id, event_type, payload) {
            (Some(id), Some(event_type), Some(payload)) => Ok(NewEvent { id, event_type, payload }),
            (None, _, _) | (_, None, _) | (_, _, None) => Err(wrong.problem()),
        }
    }
}

/// As this service writes ids, and in no other spelling.
fn event_id(text: &str) -> Result<EventId, Problem> {
    let id = text.parse().ok().filter(|id: &EventId| id.to_string().eq_ignore_ascii_case(text));
    id.ok_or_else(|| {
        let remedy = "give a UUID such as 019a8f6e-3c1a-7b52-9d7e-0f3a5c2b1d4e, or leave it out";
        refused("id", &format!("is {}, which is no UUID", quoted(text)), remedy)
    })
}

/// The type of an event that may be posted: all but what only chronos knows.
fn posted(word: Option<&str>) -> Result<EventType, Problem> {
    let problem = match word.map(|word| (word, EventType::try_from(word.to_owned()))) {
        None => "is missing".to_owned(),
        Some((_, Ok(event_type @ (EventType::UserMessage | EventType::ToolResult)))) => return Ok(event_type),
        Some((_, Ok(EventType::Timer))) => {
            "is \"timer\", an event that chronos writes when a timer comes due and nobody can post".to_owned()
        }
        Some((word, Err(_))) => format!("is {}", quoted(word)),
    };
    Err(refused("type", &problem, "give user_message or tool_result"))
}

/// What the user said. Anything may stand beside it.
#[derive(Deserialize)]
struct UserMessage {
    text: Option<Box<RawValue>>,
}

/// What a tool found. Anything may stand beside it.
#[derive(Deserialize)]
struct ToolResult {
    tool_id: Option<Box<RawValue>>,
    /// Whether there is one; what it is, `null` for instance, is the tool's business.
    #[serde(default, deserialize_with = "is_there")]
    payload: bool,
}

fn is_there<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

/// The payload to the byte, if it has the shape that goes with the type.
fn event_payload(value: Option<&RawValue>, event_type: Option<EventType>) -> Result<Payload, Problem> {
    let Some(value) = value else {
        return Err(refused("payload", "is missing", "give an object, such as {\"text\": \"…\"} of a user_message"));
    };
    let payload = payload("payload", value)?;
    match event_type {
        Some(EventType::UserMessage) => {
            let message: UserMessage = parse_at("payload", value)?;
            a_text("payload.text", message.text.as_deref(), "give what the user said, a text")?;
        }
        Some(EventType::ToolResult) => {
            let result: ToolResult = parse_at("payload", value)?;
            a_text("payload.tool_id", result.tool_id.as_deref(), "give the id of the tool's call, a text")?;
            if !result.payload {
                return Err(refused("payload.payload", "is missing", "give what the tool found, any JSON value"));
            }
        }
        // Nobody posts the one, and the other is told of already.
        Some(EventType::Timer) | None => {}
    }
    Ok(payload)
}

/// Any JSON string, also one that only JSON can spell.
fn a_text(place: &str, value: Option<&RawValue>, remedy: &str) -> Result<(), Problem> {
    match value {
        Some(value) if value.get().starts_with('"') => Ok(()),
        Some(_) => Err(refused(place, "is not a text", remedy)),
        None => Err(refused(place, "is missing", remedy)),
    }
}

/// `POST /v1/sessions/{key}/checkpoints`
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CheckpointBody)]
pub struct CheckpointBody {
    #[schema(schema_with = fields::checkpoint_id, required)]
    checkpoint_id: Option<String>,
    #[schema(schema_with = fields::checkpoint_event_seq, required)]
    event_seq: Option<i64>,
    /// What the agent wants done, in this order. At most 100.
    #[schema(value_type = Option<Vec<EffectBody>>, max_items = 100)]
    effects: Option<Vec<Box<RawValue>>>,
}

/// Something that the agent wants done.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = EffectBody)]
pub struct EffectBody {
    #[serde(rename = "type")]
    #[schema(schema_with = fields::asked_effect_type, required)]
    effect_type: Option<String>,
    #[schema(schema_with = fields::asked_effect_payload, required)]
    payload: Option<Box<RawValue>>,
}

/// A checkpoint that may be stored.
#[derive(Debug)]
pub struct Checkpoint {
    pub checkpoint_id: String,
    pub event_seq: i64,
    pub effects: Vec<Asked>,
}

impl CheckpointBody {
    pub fn checkpoint(self) -> Result<Checkpoint, Problem> {
        let mut wrong = Wrong::default();
        let checkpoint_id = wrong.or_note(name("checkpoint_id", self.checkpoint_id));
        let event_seq = wrong.or_note(event_seq(self.event_seq));
        let effects = self.effects.unwrap_or_default();
        let mut asked = Vec::new();
        if effects.len() > MOST_EFFECTS {
            let problem = format!("has {} effects", effects.len());
            wrong.note(refused("effects", &problem, &format!("give at most {MOST_EFFECTS} in one checkpoint")));
        } else {
            let effects = effects.iter().enumerate();
            asked
                .extend(effects.filter_map(|(at, effect)| wrong.or_note(effect_at(&format!("effects[{at}]"), effect))));
        }
        match (checkpoint_id, event_seq) {
            (Some(checkpoint_id), Some(event_seq)) if wrong.is_nothing() => {
                Ok(Checkpoint { checkpoint_id, event_seq, effects: asked })
            }
            (Some(_) | None, Some(_) | None) => Err(wrong.problem()),
        }
    }
}

fn event_seq(given: Option<i64>) -> Result<i64, Problem> {
    let remedy = "give the number of the event that was processed, 1 or more";
    match given {
        Some(number) if number >= 1 => Ok(number),
        Some(number) => Err(refused("event_seq", &format!("is {number}"), remedy)),
        None => Err(refused("event_seq", "is missing", remedy)),
    }
}

fn effect_at(place: &str, value: &RawValue) -> Result<Asked, Problem> {
    let body: EffectBody = parse_at(place, value)?;
    let effect_type = asked(&format!("{place}.type"), body.effect_type.as_deref())?;
    let place = format!("{place}.payload");
    let Some(value) = body.payload else {
        let remedy = match effect_type {
            AskedType::SendMessage => "give {\"content\": \"…\"}",
            AskedType::ScheduleTimer => "give {\"timer_id\": \"…\", \"fire_at\": \"…\"}",
        };
        return Err(refused(&place, "is missing", remedy));
    };
    let what = match effect_type {
        AskedType::SendMessage => send_message(&place, &value)?,
        AskedType::ScheduleTimer => schedule_timer(&place, &value)?,
    };
    Ok(Asked { payload: payload(&place, &value)?, what })
}

/// What agents may ask for.
enum AskedType {
    SendMessage,
    ScheduleTimer,
}

fn asked(place: &str, word: Option<&str>) -> Result<AskedType, Problem> {
    let problem = match word.map(|word| (word, EffectType::try_from(word.to_owned()))) {
        None => "is missing".to_owned(),
        Some((_, Ok(EffectType::SendMessage))) => return Ok(AskedType::SendMessage),
        Some((_, Ok(EffectType::ScheduleTimer))) => return Ok(AskedType::ScheduleTimer),
        Some((_, Ok(EffectType::Wake))) => {
            "is \"wake\", an effect that chronos makes of a timer and nobody can ask for".to_owned()
        }
        Some((word, Err(_))) => format!("is {}", quoted(word)),
    };
    Err(refused(place, &problem, "give send_message or schedule_timer"))
}

/// Only the content is delivered: whatever stood beside it would be lost without a word.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SendMessage {
    content: Option<String>,
}

fn send_message(place: &str, value: &RawValue) -> Result<What, Problem> {
    let message: SendMessage = parse_at(place, value)?;
    if message.content.is_none() {
        return Err(refused(&format!("{place}.content"), "is missing", "give what the client is to be told, a text"));
    }
    Ok(What::SendMessage)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleTimer {
    timer_id: Option<String>,
    fire_at: Option<String>,
    payload: Option<Box<RawValue>>,
}

fn schedule_timer(place: &str, value: &RawValue) -> Result<What, Problem> {
    let timer: ScheduleTimer = parse_at(place, value)?;
    let mut wrong = Wrong::default();
    let timer_id = wrong.or_note(name(&format!("{place}.timer_id"), timer.timer_id));
    let fire_at = wrong.or_note(fire_at(&format!("{place}.fire_at"), timer.fire_at.as_deref()));
    let carried = timer.payload.map(|value| payload(&format!("{place}.payload"), &value)).transpose();
    let carried = wrong.or_note(carried);
    match (timer_id, fire_at, carried) {
        (Some(timer_id), Some(fire_at), Some(payload)) => Ok(What::ScheduleTimer { timer_id, fire_at, payload }),
        (None, _, _) | (_, None, _) | (_, _, None) => Err(wrong.problem()),
    }
}

fn fire_at(place: &str, text: Option<&str>) -> Result<chrono::DateTime<chrono::Utc>, Problem> {
    let Some(text) = text else {
        return Err(refused(place, "is missing", "give an instant with an offset, such as 2026-11-16T09:00:00Z"));
    };
    parse_fire_at(text).map_err(|invalid| at(place, &invalid))
}

/// An id of the caller's own choice: 1 to 256 bytes.
fn name(place: &str, text: Option<String>) -> Result<String, Problem> {
    let text = text.unwrap_or_default();
    if text.is_empty() {
        return Err(refused(place, "is missing or empty", "give a text of 1 to 256 bytes"));
    }
    let mut invalid = Vec::new();
    check_key(&mut invalid, "", &text);
    if invalid.is_empty() { Ok(text) } else { Err(at(place, &invalid)) }
}

fn payload(place: &str, value: &RawValue) -> Result<Payload, Problem> {
    Payload::parse(value.get().to_owned()).map_err(|error| refused(place, &error.to_string(), &error.remedy()))
}

fn refused(place: &str, problem: &str, remedy: &str) -> Problem {
    Problem::invalid_field(place, format!("{place}: {problem}; {remedy}"))
}

/// What the domain found, told of the place where it was found.
fn at(place: &str, invalid: &[Invalid]) -> Problem {
    let sentences: Vec<String> = invalid.iter().map(Invalid::sentence).collect();
    Problem::invalid_field(place, format!("{place}: {}", sentences.join("; ")))
}

/// Everything that was found wrong so far.
#[derive(Default)]
struct Wrong(Vec<Problem>);

impl Wrong {
    fn note(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// `None` after a note.
    fn or_note<T>(&mut self, found: Result<T, Problem>) -> Option<T> {
        found.map_err(|problem| self.note(problem)).ok()
    }

    const fn is_nothing(&self) -> bool {
        self.0.is_empty()
    }

    fn problem(&self) -> Problem {
        Problem::invalid_fields(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::envelope::parse;

    #[test]
    fn an_event_is_kept_to_the_byte() {
        let body =
            br#"{"type": "tool_result", "payload": { "payload":null, "tool_id":"\u0061", "n":1e400 } , "id": null}"#;
        let event = parse::<EventBody>(body).unwrap().event().unwrap();
        assert_eq!((event.id, event.event_type), (None, EventType::ToolResult));
        assert_eq!(event.payload.as_str(), r#"{ "payload":null, "tool_id":"\u0061", "n":1e400 }"#);
    }

    #[test]
    fn a_timer_is_never_early_and_carries_what_was_written_or_nothing() {
        let fields = r#""timer_id": "t", "fire_at": "2026-11-16T10:00:00.0000001+01:00""#;
        for (rest, carried) in
            [("", None), (r#", "payload": null"#, None), (r#", "payload": [ 1.0 ]"#, Some("[ 1.0 ]"))]
        {
            let payload = format!("{{ {fields}{rest} }}");
            let body = format!(
                r#"{{"checkpoint_id":"c","event_seq":7,"effects":[{{"type":"schedule_timer","payload":{payload}}}]}}"#
            );
            let mut checkpoint = parse::<CheckpointBody>(body.as_bytes()).unwrap().checkpoint().unwrap();
            assert_eq!((checkpoint.checkpoint_id.as_str(), checkpoint.event_seq), ("c", 7));
            let what = What::ScheduleTimer {
                timer_id: "t".to_owned(),
                fire_at: "2026-11-16T09:00:00.000001Z".parse().unwrap(),
                payload: carried.map(|text| Payload::parse(text.to_owned()).unwrap()),
            };
            assert_eq!(checkpoint.effects.remove(0), Asked { payload: Payload::parse(payload).unwrap(), what });
        }
    }
}
