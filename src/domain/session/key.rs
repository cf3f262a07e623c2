//! `userId:agentId:threadId`: one conversation of one user with one agent.

use std::{fmt, ops::Range, str::FromStr};

use serde::Serialize;
use thiserror::Error;

/// Keys are capped at 256 bytes everywhere.
const LONGEST: usize = 256;
const PARTS: [&str; 3] = ["user id", "agent id", "thread id"];

/// A well-formed session key. Every table and every query of sessions is keyed by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct SessionKey(String);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyError {
    #[error("is {0} bytes long; a session key has at most {LONGEST}")]
    TooLong(usize),
    #[error("has {0} parts; a session key has three, userId:agentId:threadId")]
    Parts(usize),
    #[error("has an empty {0}; each of the three parts has at least one character")]
    Empty(&'static str),
    #[error("has a {0} with a character other than A-Z a-z 0-9 _ -")]
    Character(&'static str),
}

impl SessionKey {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whose conversation it is. Must be the caller's own.
    pub fn user_id(&self) -> &str {
        &self.0[self.part(0)]
    }

    pub fn agent_id(&self) -> &str {
        &self.0[self.part(1)]
    }

    /// What the router is told as the conversation.
    pub fn thread_id(&self) -> &str {
        &self.0[self.part(2)]
    }

    fn part(&self, index: usize) -> Range<usize> {
        let before: usize = self.0.split(':').take(index).map(|part| part.len() + 1).sum();
        let length = self.0.split(':').nth(index).map_or(0, str::len);
        before..before + length
    }
}

impl FromStr for SessionKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        if text.len() > LONGEST {
            return Err(KeyError::TooLong(text.len()));
        }
        let parts = text.split(':').count();
        if parts != PARTS.len() {
            return Err(KeyError::Parts(parts));
        }
        for (part, name) in text.split(':').zip(PARTS) {
            if part.is_empty() {
                return Err(KeyError::Empty(name));
            }
            if !part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') {
                return Err(KeyError::Character(name));
            }
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Result<SessionKey, KeyError> {
        text.parse()
    }

    #[test]
    fn a_key_says_whose_conversation_with_which_agent_it_is() {
        let key = key("ann:portfolio-agent:thread_7").unwrap();
        assert_eq!((key.user_id(), key.agent_id(), key.thread_id()), ("ann", "portfolio-agent", "thread_7"));
        assert_eq!(key.to_string(), "ann:portfolio-agent:thread_7");
    }

    #[test]
    fn a_malformed_key_is_refused_with_the_part_that_is_wrong() {
        assert_eq!(key(""), Err(KeyError::Parts(1)));
        assert_eq!(key("ann:agent"), Err(KeyError::Parts(2)));
        assert_eq!(key("ann:agent:thread:"), Err(KeyError::Parts(4)));
        assert_eq!(key("ann::thread"), Err(KeyError::Empty("agent id")));
        assert_eq!(key("ann:agent:th read"), Err(KeyError::Character("thread id")));
        assert_eq!(key("änn:agent:thread"), Err(KeyError::Character("user id")));
        assert_eq!(key("ann:agent:\0"), Err(KeyError::Character("thread id")));
        assert_eq!(key(&"a".repeat(257)), Err(KeyError::TooLong(257)));
    }
}
