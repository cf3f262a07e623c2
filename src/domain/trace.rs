//! Which trace a wake belongs to, as W3C Trace Context writes it: the router and the agent behind it find the whole way of
//! a wake under one id.

use std::fmt;

use super::ids::DeliveryId;

/// One attempt in its trace. Written as the header `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Never 0.
    pub trace_id: u128,
    /// This attempt; never 0.
    pub span_id: u64,
    /// Asks those behind us to record their part. It says that we *may* have recorded ours; whether we did is a matter of
    /// configuration.
    pub sampled: bool,
}

impl Trace {
    /// The caller's trace when the correlation id is one (32 lower-case hex digits, not all 0), else one that follows from
    /// the delivery id, so that all attempts at one occurrence share it. `span` is random, new for every attempt.
    pub fn of(correlation_id: &str, delivery_id: DeliveryId, span: u64) -> Self {
        let trace_id = trace_id(correlation_id).unwrap_or(delivery_id.as_uuid().as_u128());
        Self { trace_id: trace_id.max(1), span_id: span.max(1), sampled: true }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.span_id, u8::from(self.sampled))
    }
}

/// The trace that a request belongs to, by its header `traceparent`; `None`: it has none that can be read.
pub fn of_request(traceparent: &str) -> Option<&str> {
    let mut parts = traceparent.split('-');
    let (version, id) = (parts.next()?, parts.next()?);
    // A later version may append parts; ff is none.
    (version.len() == 2 && version != "ff" && parts.count() >= 2 && trace_id(id).is_some()).then_some(id)
}

fn trace_id(text: &str) -> Option<u128> {
    // `from_str_radix` alone would take a sign, capitals and fewer digits.
    let digits = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    digits.then(|| u128::from_str_radix(text, 16).ok()).flatten().filter(|id| *id != 0)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const DELIVERY: DeliveryId = DeliveryId::from_uuid(Uuid::from_u128(0x0123_4567_89ab_5def_8123_4567_89ab_cdef));

    fn written(correlation_id: &str, span: u64) -> String {
        Trace::of(correlation_id, DELIVERY, span).to_string()
    }

    #[test]
    fn a_correlation_id_that_is_a_trace_id_is_the_trace() {
        let theirs = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(written(theirs, 0x00f0_67aa_0ba9_02b7), format!("00-{theirs}-00f067aa0ba902b7-01"));
    }

    #[test]
    fn any_other_correlation_id_leaves_the_trace_to_the_delivery() {
        let zeros = "0".repeat(32);
        let others = ["", "trace-1", "4BF92F3577B34DA6A3CE929D0E0E4736", "+bf92f3577b34da6a3ce929d0e0e4736", &zeros];
        for other in others {
            assert_eq!(written(other, 7), "00-0123456789ab5def8123456789abcdef-0000000000000007-01", "{other}");
        }
    }

    #[test]
    fn no_id_is_zero_which_receivers_refuse() {
        let nobody = DeliveryId::from_uuid(Uuid::nil());
        let zero = Trace::of("", nobody, 0);
        assert_eq!((zero.trace_id, zero.span_id), (1, 1));
    }

    #[test]
    fn a_request_says_which_trace_it_belongs_to() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(of_request(&format!("00-{id}-00f067aa0ba902b7-01")), Some(id));
        assert_eq!(of_request(&format!("01-{id}-00f067aa0ba902b7-01-more")), Some(id));
        for other in
            ["", "00", "00-x-y-z", &format!("ff-{id}-00f067aa0ba902b7-01"), &format!("00-{}-1-01", "0".repeat(32))]
        {
            assert_eq!(of_request(other), None, "{other}");
        }
    }
}
