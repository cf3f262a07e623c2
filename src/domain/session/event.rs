//! What a `timer` event carries.

use crate::domain::payload::Payload;

/// `{"timer_id": …, "payload": …}`; without a payload when the timer has none. The payload's bytes stay as they are.
pub fn timer_payload(timer_id: &str, payload: &Payload) -> String {
    let timer_id = serde_json::Value::from(timer_id);
    if is_none(payload) {
        format!("{{\"timer_id\":{timer_id}}}")
    } else {
        format!("{{\"timer_id\":{timer_id},\"payload\":{}}}", payload.as_str())
    }
}

/// A timer that carries nothing has the JSON null.
pub fn is_none(payload: &Payload) -> bool {
    payload.as_str() == "null"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timers_payload_is_kept_to_the_byte_and_nothing_is_left_out_but_nothing() {
        let payload = |text: &str| Payload::parse(text.to_owned()).unwrap();
        assert_eq!(timer_payload("t", &payload("{ \"n\": 1.0 }")), r#"{"timer_id":"t","payload":{ "n": 1.0 }}"#);
        assert_eq!(timer_payload("t\"ä\n", &payload("{}")), r#"{"timer_id":"t\"ä\n","payload":{}}"#);
        assert_eq!(timer_payload("t", &payload("null")), r#"{"timer_id":"t"}"#);
    }
}
