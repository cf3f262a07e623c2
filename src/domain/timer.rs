//! What a service call asks for: one instant, and what the event is to carry that tells of it.

use chrono::{DateTime, Utc};

use super::{
    alarm::{instant, within_calendar},
    invalid::{Invalid, check_correlation_id},
    payload::Payload,
};

/// A timer as its caller wrote it.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    pub due_at: Option<String>,
    /// Empty is as good as none.
    pub correlation_id: Option<String>,
    /// Raw JSON.
    pub payload: Option<String>,
}

/// A timer that can be scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timer {
    /// On the whole millisecond: what this kind of timer is told and tells.
    pub due_at: DateTime<Utc>,
    /// `None`: the caller has none in mind.
    pub correlation_id: Option<String>,
    pub payload: Payload,
}

impl Draft {
    /// The timer, or everything that is wrong with it at once. An instant that has passed is none of it: that timer is due at once.
    pub fn define(self) -> Result<Timer, Vec<Invalid>> {
        let mut invalid = Vec::new();
        let correlation_id = self.correlation_id.filter(|id| !id.is_empty());
        check_correlation_id(&mut invalid, correlation_id.as_deref().unwrap_or_default());
        let due_at = due_at(&mut invalid, self.due_at.as_deref());
        let payload = self.payload.map_or_else(|| Ok(Payload::default()), Payload::parse).unwrap_or_else(|error| {
            invalid.push(Invalid::new("payload", error.to_string(), error.remedy()));
            Payload::default()
        });
        match due_at {
            Some(due_at) if invalid.is_empty() => Ok(Timer { due_at, correlation_id, payload }),
            Some(_) | None => Err(invalid),
        }
    }
}

fn due_at(invalid: &mut Vec<Invalid>, text: Option<&str>) -> Option<DateTime<Utc>> {
    let Some(text) = text else {
        invalid.push(Invalid::new("due_at", "is missing", "give date, time and offset, such as 2026-11-16T09:00:00Z"));
        return None;
    };
    let instant = instant(invalid, "due_at", text)?;
    // Upwards: rounding down would be early.
    let early = i64::from(instant.timestamp_subsec_micros() % 1000);
    let rounded = instant + chrono::TimeDelta::microseconds((1000 - early) % 1000);
    within_calendar(invalid, "due_at", rounded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::rfc3339_millis;

    fn due(text: &str) -> Result<String, Vec<Invalid>> {
        let draft = Draft { due_at: Some(text.to_owned()), ..Draft::default() };
        draft.define().map(|timer| rfc3339_millis(timer.due_at))
    }

    #[test]
    fn an_instant_is_rounded_up_to_the_millisecond() {
        for (written, meant) in [
            ("2026-11-16T09:00:00Z", "2026-11-16T09:00:00.000Z"),
            ("2026-11-16T10:00:00.5+01:00", "2026-11-16T09:00:00.500Z"),
            ("2026-11-16T09:00:00.001Z", "2026-11-16T09:00:00.001Z"),
            ("2026-11-16T09:00:00.0010001Z", "2026-11-16T09:00:00.002Z"),
            ("2026-11-16T09:00:00.000000001Z", "2026-11-16T09:00:00.001Z"),
            ("2026-11-16T09:00:59.999999Z", "2026-11-16T09:01:00.000Z"),
            ("2026-12-31T23:59:60.5Z", "2027-01-01T00:00:00.500Z"),
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00.000Z"),
            ("2100-12-31T23:59:59.999Z", "2100-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(due(written).unwrap(), meant, "{written}");
        }
    }

    #[test]
    fn an_instant_beyond_the_calendar_is_refused_by_name() {
        for (written, problem) in [
            ("2100-12-31T23:59:59.9991Z", "lies after the year 2100"),
            ("2101-01-01T00:00:00Z", "lies after the year 2100"),
            ("1969-12-31T23:59:59Z", "lies before the year 1970"),
            ("tomorrow", "is \"tomorrow\", which is no instant"),
        ] {
            let [told] = due(written).unwrap_err().try_into().unwrap();
            assert!(told.field == "due_at" && told.problem.starts_with(problem), "{told}");
        }
    }

    #[test]
    fn what_is_left_out_is_left_open_and_everything_wrong_is_told_at_once() {
        let draft = Draft { due_at: Some("2026-11-16T09:00:00Z".to_owned()), ..Draft::default() };
        let timer = draft.clone().define().unwrap();
        assert_eq!((timer.correlation_id.as_deref(), timer.payload.as_str()), (None, "{}"));
        let empty = Draft { correlation_id: Some(String::new()), ..draft };
        assert_eq!(empty.define().unwrap(), timer);

        let wrong = Draft { due_at: None, correlation_id: Some("é".to_owned()), payload: Some("[".repeat(65)) };
        let fields: Vec<_> = wrong.define().unwrap_err().into_iter().map(|told| told.field).collect();
        assert_eq!(fields, ["correlation_id", "due_at", "payload"]);
    }
}
