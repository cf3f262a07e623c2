//! What callers write: bodies of requests, and how they become drafts and changes. Pure.

use std::{collections::BTreeMap, fmt};

use axum::http::HeaderMap;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor},
};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::{
    domain::{
        alarm::{Change, Changes, Defaults, Definition, Draft, Kind},
        invalid::{Invalid, check_correlation_id, check_key, quoted},
        labels::Labels,
    },
    http::{openapi::fields, problem::Problem},
};

const KEY_HEADER: &str = "idempotency-key";

/// `POST /v1/alarms`, and `PUT` by key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AlarmBody)]
pub struct CreateBody {
    #[schema(schema_with = fields::kind, required)]
    pub kind: Option<String>,
    #[schema(schema_with = fields::label)]
    label: Option<String>,
    #[schema(schema_with = fields::labels)]
    labels: Option<Unique<String>>,
    #[schema(schema_with = fields::fire_at)]
    fire_at: Option<String>,
    #[schema(schema_with = fields::delay_seconds)]
    delay_seconds: Option<i64>,
    #[schema(schema_with = fields::cron_expr)]
    cron_expr: Option<String>,
    #[schema(schema_with = fields::timezone)]
    timezone: Option<String>,
    #[schema(schema_with = fields::starts_at)]
    starts_at: Option<String>,
    #[schema(schema_with = fields::ends_at)]
    ends_at: Option<String>,
    #[schema(schema_with = fields::spread_seconds)]
    spread_seconds: Option<i64>,
    #[schema(schema_with = fields::misfire)]
    misfire: Option<String>,
    #[schema(schema_with = fields::max_lateness_seconds)]
    max_lateness_seconds: Option<i64>,
    #[schema(schema_with = fields::conversation_id)]
    conversation_id: Option<String>,
    #[schema(schema_with = fields::wake_message, required)]
    wake_message: Option<String>,
    #[schema(schema_with = fields::payload)]
    payload: Option<Box<RawValue>>,
    #[schema(schema_with = fields::idempotency_key)]
    pub idempotency_key: Option<String>,
    #[schema(schema_with = fields::max_failures)]
    max_failures: Option<i64>,
    #[schema(schema_with = fields::correlation_id)]
    correlation_id: Option<String>,
}

impl CreateBody {
    /// The caller's; `None` when it is left open.
    pub fn correlation_id(&self) -> Option<&str> {
        self.correlation_id.as_deref().filter(|id| !id.is_empty())
    }

    /// The body as a draft that holds for every instant, and what is wrong with the rest of it.
    pub fn draft(self, key: &str) -> (Draft, Vec<Invalid>) {
        let mut invalid = Vec::new();
        check_key(&mut invalid, "idempotency_key", key);
        check_correlation_id(&mut invalid, self.correlation_id().unwrap_or_default());
        let kind = self.kind.clone().and_then(|word| Kind::try_from(word).ok());
        if kind.is_none() {
            let problem = self.kind.as_ref().map_or("is missing".to_owned(), |word| format!("is {}", quoted(word)));
            invalid.push(Invalid::new("kind", problem, "give once or cron"));
        }
        let draft = Draft {
            kind,
            label: self.label.unwrap_or_default(),
            labels: self.labels.map(|labels| labels.0).unwrap_or_default(),
            fire_at: self.fire_at,
            delay_seconds: self.delay_seconds,
            // Views leave an empty one out; whoever sends one back means the same.
            cron_expr: self.cron_expr.filter(|expr| !expr.is_empty()),
            timezone: self.timezone,
            starts_at: self.starts_at,
            ends_at: self.ends_at,
            spread_seconds: self.spread_seconds,
            misfire: self.misfire,
            max_lateness_seconds: self.max_lateness_seconds,
            conversation_id: self.conversation_id.unwrap_or_default(),
            wake_message: self.wake_message.unwrap_or_default(),
            payload: self.payload.map(|raw| raw.get().to_owned()),
            max_failures: self.max_failures,
        };
        (draft, invalid)
    }

    /// The body as an alarm, or everything that is wrong with it at once.
    pub fn define(self, key: &str, defaults: Defaults) -> Result<Definition, Problem> {
        let (draft, invalid) = self.draft(key);
        check(draft, invalid, defaults)
    }
}

/// What a draft defines, unless it or anything beside it is wrong.
pub fn check(draft: Draft, invalid: Vec<Invalid>, defaults: Defaults) -> Result<Definition, Problem> {
    match draft.define(defaults) {
        Err(more) => Err([invalid, more].concat().into()),
        Ok(_) if !invalid.is_empty() => Err(invalid.into()),
        Ok(definition) => Ok(definition),
    }
}

/// `PATCH /v1/alarms/{id}`: a merge patch. What is not there stays, `null` goes back to its default.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AlarmPatch)]
pub struct PatchBody {
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::label)]
    label: Change<String>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::label_changes)]
    labels: Change<Unique<Option<String>>>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::fire_at)]
    fire_at: Change<String>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::delay_seconds)]
    delay_seconds: Change<i64>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::cron_expr)]
    cron_expr: Change<String>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::timezone)]
    timezone: Change<String>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::starts_at)]
    starts_at: Change<String>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::ends_at)]
    ends_at: Change<String>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::spread_seconds)]
    spread_seconds: Change<i64>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::misfire)]
    misfire: Change<String>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::max_lateness_seconds)]
    max_lateness_seconds: Change<i64>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::conversation_id)]
    conversation_id: Change<String>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::wake_message)]
    wake_message: Change<String>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::payload)]
    payload: Change<Box<RawValue>>,
    #[serde(default, deserialize_with = "change")]
    #[schema(schema_with = fields::max_failures)]
    max_failures: Change<i64>,
    // What makes an alarm this alarm.
    #[serde(default, deserialize_with = "change")]
    #[schema(ignore)]
    id: Change<IgnoredAny>,
    #[serde(default, deserialize_with = "change")]
    #[schema(ignore)]
    kind: Change<IgnoredAny>,
    #[serde(default, deserialize_with = "change")]
    #[schema(ignore)]
    idempotency_key: Change<IgnoredAny>,
    #[serde(default, deserialize_with = "change")]
    #[schema(ignore)]
    correlation_id: Change<IgnoredAny>,
}

impl PatchBody {
    pub fn changes(self) -> Result<Changes, Problem> {
        let fixed = [
            ("id", self.id.is_said()),
            ("kind", self.kind.is_said()),
            ("idempotency_key", self.idempotency_key.is_said()),
            ("correlation_id", self.correlation_id.is_said()),
        ];
        let told = |(field, _): &(&'static str, bool)| {
            Invalid::new(
                field,
                "is not changed by PATCH",
                "leave it out, or replace the alarm by PUT /v1/alarms/by-key/…",
            )
        };
        let invalid: Vec<Invalid> = fixed.iter().filter(|(_, given)| *given).map(told).collect();
        if !invalid.is_empty() {
            return Err(invalid.into());
        }
        Ok(Changes {
            label: self.label,
            labels: self.labels.map(|labels| labels.0),
            fire_at: self.fire_at,
            delay_seconds: self.delay_seconds,
            cron_expr: self.cron_expr,
            timezone: self.timezone,
            starts_at: self.starts_at,
            ends_at: self.ends_at,
            spread_seconds: self.spread_seconds,
            misfire: self.misfire,
            max_lateness_seconds: self.max_lateness_seconds,
            conversation_id: self.conversation_id,
            wake_message: self.wake_message,
            payload: self.payload.map(|raw| raw.get().to_owned()),
            max_failures: self.max_failures,
        })
    }
}

/// A field that is there: `null`, or a value.
fn change<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Change<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.map_or(Change::Default, Change::Set))
}

/// `POST /v1/alarms/{id}/rearm`
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Rearm)]
pub struct RearmBody {
    #[schema(schema_with = fields::fire_at)]
    pub fire_at: Option<String>,
    #[schema(schema_with = fields::delay_seconds)]
    pub delay_seconds: Option<i64>,
}

/// An object in which no key stands twice: a second value would silently win over the first.
pub struct Unique<T>(BTreeMap<String, T>);

impl From<Unique<String>> for Labels {
    fn from(unique: Unique<String>) -> Self {
        unique.0
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Unique<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Unique<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unique<T>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<String, T>()? {
                    let told = quoted(&key);
                    if entries.insert(key, value).is_some() {
                        return Err(A::Error::custom(format!("has the key {told} twice")));
                    }
                }
                Ok(Unique(entries))
            }
        }

        deserializer.deserialize_map(Entries(std::marker::PhantomData))
    }
}

/// The header counts as the field.
pub fn idempotency_key(headers: &HeaderMap, field: Option<&str>) -> Result<String, Problem> {
    let field = field.filter(|key| !key.is_empty());
    let header = match headers.get(KEY_HEADER) {
        None => None,
        Some(value) => Some(value.to_str().map_err(|_| {
            Problem::invalid_field(
                "idempotency_key",
                "the Idempotency-Key header holds characters that are not visible ASCII",
            )
        })?),
    };
    match (header.filter(|key| !key.is_empty()), field) {
        (Some(header), Some(field)) if header != field => Err(Problem::invalid_field(
            "idempotency_key",
            "idempotency_key differs from the Idempotency-Key header; give one of them, or the same twice",
        )),
        (Some(key), _) | (None, Some(key)) => Ok(key.to_owned()),
        (None, None) => Ok(String::new()),
    }
}
