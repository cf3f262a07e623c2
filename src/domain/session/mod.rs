//! Conversation sessions that follow up by themselves: which session, which sends are autonomous, and when an
//! autonomous one may go out. The tables and sockets around these decisions are elsewhere.
//!
//! | file | answers |
//! |---|---|
//! | [`key`] | which session |
//! | [`autonomy`] | whether a send is the agent's own idea, and whether it may go out now |
//! | [`effect`] | what an effect is, where it stands, and when two are the same |
//! | [`event`] | what an event says that chronos itself writes |
//! | [`checkpoint`] | what becomes of the effects that a checkpoint asks for, and when two checkpoints are the same |

pub mod autonomy;
pub mod checkpoint;
pub mod effect;
pub mod event;
pub mod key;

pub use key::{KeyError, SessionKey};
