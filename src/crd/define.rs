//! From what a user wrote to what chronos relies on. The controller and `chronosd explain` both come through here, so that
//! a file which passes the one is not refused by the other.

use std::collections::BTreeMap;

use chrono::{DateTime, Timelike};

use super::{
    AgentSpec, AlarmSpec, FIRE_REQUESTED_AT, Mistake,
    rule::{DID_FORM, KEY_FORM},
};
use crate::domain::{
    access::{Did, DidError},
    alarm::{Defaults, Definition, Draft},
    invalid::quoted,
    labels::Labels,
    quota::Quotas,
    rfc3339, schedule,
};

const KEY_BYTES: usize = 32;
/// Of a request to fire, as the column has it.
const REQUEST_CAP: usize = 256;

impl Mistake {
    /// Of an expression that can be read and has no instant ahead.
    pub fn never_fires() -> Self {
        let error = schedule::Error::NoFutureInstant;
        Self::new("spec.cronExpr", error.to_string(), format!("{}, before endsAt if that is given", error.remedy()))
    }
}

/// What the annotations ask to be fired now. Any text will do, as long as it differs from the one before.
pub fn fire_requested(annotations: &BTreeMap<String, String>) -> Result<Option<String>, Mistake> {
    let mistake = |problem: String, remedy: String| {
        Err(Mistake::new(format!("metadata.annotations.{FIRE_REQUESTED_AT}"), problem, remedy))
    };
    match annotations.get(FIRE_REQUESTED_AT).filter(|request| !request.is_empty()) {
        None => Ok(None),
        Some(request) if request.len() > REQUEST_CAP => mistake(
            format!("is {} bytes long", request.len()),
            format!("give at most {REQUEST_CAP}, such as the time of day"),
        ),
        Some(request) if request.contains('\0') => {
            mistake("holds a NUL character".to_owned(), "leave it out".to_owned())
        }
        Some(request) => Ok(Some(request.clone())),
    }
}

/// A DID as the API server takes it: the domain would also read its hex digits in upper case.
fn did(field: &str, text: &str) -> Result<Did, Mistake> {
    let parsed: Result<Did, DidError> = text.parse();
    let did = parsed.map_err(|error| Mistake::new(field, error.to_string(), DID_FORM))?;
    if !text.ends_with(did.fingerprint()) {
        return Err(Mistake::new(field, "has hex digits in upper case", DID_FORM));
    }
    Ok(did)
}

impl AlarmSpec {
    /// Whom it wakes and what is kept of it, with the labels of the resource, or every mistake at once.
    pub fn define(&self, labels: Labels, defaults: Defaults) -> Result<(Did, Definition), Vec<Mistake>> {
        let owner = did("spec.owner", &self.owner);
        let defined = Draft { labels, ..self.draft() }.define(defaults);
        let mut mistakes = self.combined_wrongly();
        mistakes.extend(owner.as_ref().err().cloned());
        if let Err(invalid) = &defined {
            let told = invalid.iter().map(Mistake::in_spec);
            mistakes.extend(told.map(|mistake| self.payload_by_its_name(mistake)));
        }
        match (owner, defined) {
            (Ok(owner), Ok(definition)) if mistakes.is_empty() => Ok((owner, definition)),
            (_, _) => Err(mistakes),
        }
    }

    fn draft(&self) -> Draft {
        // Taken apart whole: a field that is added and forgotten here breaks the build.
        let Self {
            owner: _,
            label,
            fire_at,
            delay_seconds,
            cron_expr,
            timezone,
            starts_at,
            ends_at,
            spread_seconds,
            misfire,
            max_lateness_seconds,
            suspend: _,
            conversation_id,
            wake_message,
            payload,
            payload_json,
            max_failures,
        } = self.clone();
        Draft {
            kind: None,
            label: label.unwrap_or_default(),
            fire_at,
            delay_seconds,
            cron_expr,
            timezone,
            starts_at,
            ends_at,
            spread_seconds,
            misfire,
            max_lateness_seconds,
            conversation_id: conversation_id.unwrap_or_default(),
            wake_message,
            payload: payload.map(|raw| raw.get().to_owned()).or(payload_json),
            max_failures: max_failures.map(i64::from),
            ..Draft::default()
        }
    }

    /// What the CRD's rules refuse and the domain does not know of. The API server tells it first, except to `explain`.
    fn combined_wrongly(&self) -> Vec<Mistake> {
        let mut mistakes = Vec::new();
        if self.timezone.is_some() && self.cron_expr.is_none() {
            let problem = "goes with cronExpr only: an instant carries its own offset";
            mistakes.push(Mistake::new("spec.timezone", problem, "leave it out, or give cronExpr"));
        }
        // Over HTTP an empty one counts as none.
        if self.cron_expr.is_some() && self.timezone.as_deref() == Some("") {
            let error = schedule::Error::ZoneEmpty;
            mistakes.push(Mistake::new("spec.timezone", error.to_string(), error.remedy()));
        }
        let instants = [("fireAt", &self.fire_at), ("startsAt", &self.starts_at), ("endsAt", &self.ends_at)];
        mistakes.extend(instants.into_iter().filter_map(|(field, text)| spelled_wrongly(field, text.as_deref()?)));
        if self.payload.is_some() && self.payload_json.is_some() {
            mistakes.push(Mistake::new("spec.payloadJson", "stands beside payload", "give one of them"));
        }
        mistakes
    }

    /// The domain knows one payload; here it has two names.
    fn payload_by_its_name(&self, mistake: Mistake) -> Mistake {
        if mistake.field == "spec.payload" && self.payload.is_none() {
            Mistake { field: "spec.payloadJson".to_owned(), ..mistake }
        } else {
            mistake
        }
    }
}

/// An instant that the domain reads and the API server does not: RFC 3339 allows `t`, `z` and leap seconds.
fn spelled_wrongly(field: &str, text: &str) -> Option<Mistake> {
    let instant = DateTime::parse_from_rfc3339(text).ok()?;
    let leaps = instant.nanosecond() >= 1_000_000_000;
    let problem = format!("is {}, in a spelling that the API server does not take", quoted(text));
    // The second after it, as everywhere: a leap second's own name is what is not taken.
    let remedy = format!("write {}", rfc3339(DateTime::from_timestamp_micros(instant.timestamp_micros())?));
    (leaps || text.contains(['t', 'z'])).then(|| Mistake::new(format!("spec.{field}"), problem, remedy))
}

/// An agent as its resource has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enrolment {
    pub did: Did,
    pub public_key: [u8; KEY_BYTES],
    pub suspended: bool,
    pub quotas: Quotas,
}

impl AgentSpec {
    /// The agent it enrols, or every mistake at once.
    pub fn define(&self) -> Result<Enrolment, Vec<Mistake>> {
        let mut mistakes = Vec::new();
        let did = did("spec.did", &self.did).map_err(|mistake| mistakes.push(mistake)).ok();
        let spelled: Option<&String> = Some(&self.public_key).filter(|key| **key == key.to_ascii_lowercase());
        let key: Option<[u8; KEY_BYTES]> =
            spelled.and_then(|key| hex::decode(key).ok()).and_then(|key| key.try_into().ok());
        if key.is_none() {
            let problem = format!("is not {} hex digits in lower case", 2 * KEY_BYTES);
            mistakes.push(Mistake::new("spec.publicKey", problem, KEY_FORM));
        }
        let mut quota = |field: &str, number: Option<i32>| {
            number.and_then(|number| {
                let problem = || Mistake::new(field, format!("is {number}"), "give a whole number from 0 on");
                u32::try_from(number).map_err(|_negative| mistakes.push(problem())).ok()
            })
        };
        let quotas = Quotas {
            max_active_alarms: quota("spec.maxActiveAlarms", self.max_active_alarms),
            min_interval_seconds: quota("spec.minIntervalSeconds", self.min_interval_seconds),
        };
        match (did, key) {
            (Some(did), Some(public_key)) if did.names_key(&public_key) && mistakes.is_empty() => {
                Ok(Enrolment { did, public_key, suspended: self.suspended, quotas })
            }
            (Some(did), Some(key)) if did.names_key(&key) => Err(mistakes),
            (Some(did), Some(key)) => {
                let digits = hex::encode(&key[..8]);
                let problem =
                    format!("ends in {}, but the first 16 hex digits of publicKey are {digits}", did.fingerprint());
                let remedy = format!("write did:matrix:{}:{digits}, or give the key of this DID", did.user_id());
                mistakes.push(Mistake::new("spec.did", problem, remedy));
                Err(mistakes)
            }
            (_, _) => Err(mistakes),
        }
    }

    /// Whether it is that owner's, however the two spell it.
    pub fn enrols(&self, owner: &str) -> bool {
        let parse = |text: &str| text.parse::<Did>().ok();
        parse(&self.did).is_some_and(|did| Some(did) == parse(owner))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const DID: &str = "did:matrix:ann:d75a980182b10ab7";
    const KEY: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

    fn mistakes(fields: Value) -> Vec<String> {
        let mut spec = json!({ "owner": DID, "wakeMessage": "wake up" });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let spec: AlarmSpec = serde_json::from_value(spec).unwrap();
        let born_at = "2026-11-16T12:00:00Z".parse().unwrap();
        let refused =
            spec.define(Labels::new(), Defaults { born_at, delays_from: born_at, max_failures: 5 }).unwrap_err();
        refused.iter().map(ToString::to_string).collect()
    }

    fn spec(did: &str, public_key: &str) -> AgentSpec {
        serde_json::from_value(json!({ "did": did, "publicKey": public_key })).unwrap()
    }

    fn enrolled(did: &str, public_key: &str) -> Result<Did, Vec<String>> {
        let told = |mistakes: Vec<Mistake>| mistakes.iter().map(ToString::to_string).collect();
        spec(did, public_key).define().map(|enrolment| enrolment.did).map_err(told)
    }

    #[test]
    fn mistakes_of_the_owner_of_combinations_and_of_fields_are_told_together() {
        assert_eq!(
            mistakes(json!({
                "owner": "ann", "delaySeconds": 60, "timezone": "Europe/Berlin", "payload": {}, "payloadJson": "{}",
                "maxFailures": 101
            })),
            [
                "spec.timezone: goes with cronExpr only: an instant carries its own offset; leave it out, or give cronExpr",
                "spec.payloadJson: stands beside payload; give one of them",
                "spec.owner: does not have the form did:matrix:<user id>:<16 hex digits>; write did:matrix:<user \
                 id>:<first 16 hex digits of the public key>, in lower case",
                "spec.maxFailures: is 101; give a whole number from 0 to 100",
            ]
        );
        assert_eq!(
            mistakes(json!({})),
            ["spec.fireAt: is missing; give exactly one of fireAt, delaySeconds and cronExpr"]
        );
    }

    #[test]
    fn a_payload_is_called_what_the_user_called_it() {
        let of = |fields| mistakes(fields)[0].split(':').next().unwrap().to_owned();
        assert_eq!(of(json!({ "delaySeconds": 60, "payloadJson": "{" })), "spec.payloadJson");
        assert_eq!(of(json!({ "delaySeconds": 60, "payload": { "a": "\0" } })), "spec.payload");
    }

    #[test]
    fn an_agent_holds_the_key_that_its_did_names() {
        assert_eq!(enrolled(DID, KEY), Ok(DID.parse().unwrap()));
        assert_eq!(
            enrolled("did:matrix:ann:0000000000000000", KEY),
            Err(vec![
                "spec.did: ends in 0000000000000000, but the first 16 hex digits of publicKey are d75a980182b10ab7; \
                 write did:matrix:ann:d75a980182b10ab7, or give the key of this DID"
                    .to_owned()
            ])
        );
        let both = enrolled("did:web:ann", "d75a").unwrap_err();
        assert!(both[0].starts_with("spec.did: ") && both[1].starts_with("spec.publicKey: "), "{both:?}");
    }

    #[test]
    fn what_the_api_server_does_not_take_is_refused_here_too() {
        let of = |fields| mistakes(fields).remove(0);
        let told = of(json!({ "delaySeconds": 60, "owner": "did:matrix:ann:D75A980182B10AB7" }));
        assert!(told.starts_with("spec.owner: has hex digits in upper case; write did:matrix:"), "{told}");
        let told = of(json!({ "cronExpr": "@daily", "timezone": "" }));
        assert_eq!(told, "spec.timezone: the zone is empty; use an IANA name such as Europe/Berlin");
        let told = of(json!({ "cronExpr": "@daily", "endsAt": "2099-01-01t00:00:00+01:00" }));
        assert_eq!(
            told,
            "spec.endsAt: is \"2099-01-01t00:00:00+01:00\", in a spelling that the API server does not take; write \
             2098-12-31T23:00:00Z"
        );
        let told = of(json!({ "fireAt": "2026-12-31T23:59:60Z" }));
        assert!(told.ends_with("; write 2027-01-01T00:00:00Z"), "{told}");
        let told = enrolled(DID, &KEY.to_uppercase()).unwrap_err();
        assert_eq!(told, [format!("spec.publicKey: is not 64 hex digits in lower case; {KEY_FORM}")]);
    }

    #[test]
    fn a_request_to_fire_is_any_short_text() {
        let asked = |text: &str| fire_requested(&[(FIRE_REQUESTED_AT.to_owned(), text.to_owned())].into());
        assert_eq!(fire_requested(&BTreeMap::new()), Ok(None));
        assert_eq!(asked(""), Ok(None));
        assert_eq!(asked("now"), Ok(Some("now".to_owned())));
        assert_eq!(
            asked(&"x".repeat(257)).unwrap_err().to_string(),
            "metadata.annotations.chronos.dev/fire-requested-at: is 257 bytes long; give at most 256, such as the time of day"
        );
        assert!(asked("\0").is_err());
    }

    #[test]
    fn an_agent_enrols_its_owner_however_the_two_spell_it() {
        let did = "did:matrix:AAAAAAAA-2222-3333-4444-555555555555:d75a980182b10ab7";
        let agent = spec(did, KEY);
        assert!(agent.enrols(&did.to_lowercase()));
        assert!(!agent.enrols(DID) && !agent.enrols(""));
    }
}
