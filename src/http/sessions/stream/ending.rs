//! Every way in which a stream ends, and what the client is told then.
//!
//! | code | means | the client had better |
//! |---|---|---|
//! | 1001 | this replica stops | connect again at once: another has the session |
//! | 1002, 1007 | that was no WebSocket | be mended |
//! | 1008 | too many frames that nobody asked for | be mended |
//! | 1009 | a frame over 4 KiB | be mended |
//! | 1011 | something went wrong on our side | connect again, less and less often |
//! | 1013 | the database is away | connect again, less and less often |
//! | 4401 | its token has expired, or the agent may not speak any more | sign in again |
//! | 4408 | a send was not acknowledged in time | connect again: it is sent again |
//! | 4409 | a newer connection has the session | leave it to that one |

use std::time::Duration;

use axum::extract::ws::{CloseCode, CloseFrame, close_code};
use tungstenite::Error as Fault;

use super::frame::LARGEST;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client closed it, or the connection broke.
    Gone,
    /// Nothing was heard of the client for long, not even an answer to a ping.
    Silent,
    /// The process stops.
    Stopping,
    /// Frames that are none.
    Garbled,
    /// A text that is none.
    NotUtf8,
    Flood,
    TooLarge,
    /// The database refused something, which is our mistake.
    Broken,
    /// The database is away for longer than anybody waits.
    Away,
    Expired,
    Barred,
    Unacknowledged {
        within: Duration,
    },
    TakenOver,
}

impl Ending {
    /// What it means that the next frame cannot be read.
    pub fn of(error: axum::Error) -> Self {
        let fault = error.into_inner();
        match fault.downcast_ref::<Fault>() {
            Some(Fault::Capacity(_)) => Self::TooLarge,
            Some(Fault::Utf8(_)) => Self::NotUtf8,
            Some(Fault::Protocol(tungstenite::error::ProtocolError::ResetWithoutClosingHandshake)) => Self::Gone,
            Some(Fault::Protocol(_)) => Self::Garbled,
            Some(_) | None => Self::Gone,
        }
    }

    /// What the client is told; `None`: there is nobody to hear it.
    pub fn farewell(self) -> Option<CloseFrame> {
        let told = |code: CloseCode, reason: String| Some(CloseFrame { code, reason: reason.into() });
        let say = |code: CloseCode, reason: &str| told(code, reason.to_owned());
        match self {
            Self::Gone | Self::Silent => None,
            Self::Stopping => say(close_code::AWAY, "this replica stops; connect again, another takes over"),
            Self::Garbled => say(close_code::PROTOCOL, "that was no WebSocket frame of a client"),
            Self::NotUtf8 => say(close_code::INVALID, "a text frame holds UTF-8"),
            Self::Flood => say(close_code::POLICY, "too many frames that nobody asked for; send acknowledgements only"),
            Self::TooLarge => told(close_code::SIZE, format!("a frame has at most {LARGEST} bytes")),
            Self::Broken => say(close_code::ERROR, "something went wrong on our side; nothing was lost, connect again"),
            Self::Away => say(close_code::AGAIN, "try again later: the database does not answer; nothing was lost"),
            Self::Expired => say(4401, "the agent token has expired; sign in and connect again"),
            Self::Barred => say(4401, "the agent is not admitted any more, or the session is gone"),
            Self::Unacknowledged { within } => {
                let within = within.as_secs_f64();
                told(4408, format!("no acknowledgement within {within} s; connect again, it is sent again"))
            }
            Self::TakenOver => say(4409, "a newer connection has this session"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: &[Ending] = &[
        Ending::Gone,
        Ending::Silent,
        Ending::Stopping,
        Ending::Garbled,
        Ending::NotUtf8,
        Ending::Flood,
        Ending::TooLarge,
        Ending::Broken,
        Ending::Away,
        Ending::Expired,
        Ending::Barred,
        Ending::Unacknowledged { within: Duration::from_millis(86_400_001) },
        Ending::TakenOver,
    ];

    #[test]
    fn whoever_can_hear_it_is_told_in_a_reason_that_fits_a_close_frame() {
        for ending in ALL {
            let reason = ending.farewell().map(|frame| frame.reason.to_string());
            // 125 bytes of a control frame, less the code.
            assert!(reason.is_none_or(|reason| (10..=123).contains(&reason.len())), "{ending:?}");
        }
    }

    #[test]
    fn the_wait_for_an_acknowledgement_is_told_in_seconds() {
        let reason = |millis| {
            let ending = Ending::Unacknowledged { within: Duration::from_millis(millis) };
            ending.farewell().unwrap().reason.to_string()
        };
        assert!(reason(30_000).starts_with("no acknowledgement within 30 s"), "{}", reason(30_000));
        assert!(reason(500).starts_with("no acknowledgement within 0.5 s"), "{}", reason(500));
    }
}
