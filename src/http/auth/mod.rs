//! Both layers of auth.
//!
//! **Transport**: `Authorization: Bearer <CHRONOS_TOKEN>` on everything under `/v1`. Hashed, then compared in constant
//! time, so that neither content nor length of a secret leaks through timing.
//! **Principal**: an agent asks for a challenge, signs it with the key its DID names, and gets a token that it sends as
//! `X-Chronos-Agent`. A signature proves a key, not that the key belongs to the user in the DID: so the DID must be enrolled, with that
//! very key (`CHRONOS_ENROLMENT=registered`), and is looked up with every request.

mod secrets;
pub mod sign_in;

use axum::{
    extract::{FromRequestParts, Request, State},
    http::request::Parts,
    middleware::Next,
    response::Response,
};
use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::{
    Facade,
    problem::Problem,
    turns::{Turn, Turns},
};
use crate::{
    config::Enrolment,
    domain::{
        access::{self, Did, Principal},
        quota::Quotas,
    },
    store::{
        agents::{Agent, Presence},
        alarms::May,
    },
};

pub use secrets::Auth;
pub use sign_in::{ChallengeBody, Proof, VerifyBody, challenge, verify};

const AGENT_HEADER: &str = "x-chronos-agent";

/// The first layer, in front of everything under `/v1`.
pub async fn transport(State(facade): State<Facade>, request: Request, next: Next) -> Result<Response, Problem> {
    if facade.auth.admits(request.headers()) { Ok(next.run(request).await) } else { Err(Problem::unauthorized()) }
}

/// The second layer: the owner on whose behalf a request is made, and what every request needs to know of it. A handler that needs
/// one takes one.
pub struct Caller {
    pub owner: Did,
    pub quotas: Quotas,
    /// By the database's clock, the one that counts.
    pub now: DateTime<Utc>,
    /// What goes on for longer than a request ends with the caller's token.
    pub token_until: Instant,
    turns: Turns,
}

impl Caller {
    /// Waits for the owner's turn at the database, and holds it. Asked for when the body has come, which may take its time.
    pub async fn turn(&self) -> Turn {
        self.turns.wait(&self.owner).await
    }
}

impl FromRequestParts<Facade> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, facade: &Facade) -> Result<Self, Problem> {
        let token = parts.headers.get(AGENT_HEADER).and_then(|value| value.to_str().ok());
        let asked_at = facade.clock.now();
        let principal = token.and_then(|token| facade.auth.principal(token, asked_at));
        let Principal { did: owner, expires_at } = principal.ok_or_else(Problem::unauthorized)?;
        let token_until = Instant::now() + (expires_at - asked_at).to_std().unwrap_or_default();
        // Before the database is asked anything: it is what this protects.
        facade.rate.admit(&owner).map_err(|wait| facade.rate.problem(wait))?;
        // With every request, not only when signing in: who is suspended or removed is out at once, token or not.
        let Presence { now, agent } = facade.store.presence(&owner).await?;
        if !facade.enrolment.admits(agent.as_ref()) {
            return Err(Problem::unauthorized());
        }
        Ok(Self {
            owner,
            quotas: agent.map(|agent| agent.quotas).unwrap_or_default(),
            now,
            token_until,
            turns: facade.turns.clone(),
        })
    }
}

impl Facade {
    /// What the caller may do, to be seen once more where it is done.
    pub fn may(&self, caller: &Caller) -> May {
        May { quotas: caller.quotas, unenrolled: self.enrolment == Enrolment::Open }
    }
}

impl Enrolment {
    /// Whether an agent, or somebody who is not enrolled, may speak.
    fn admits(self, agent: Option<&Agent>) -> bool {
        access::is_let_in(agent.map(|agent| agent.suspended), self == Self::Open)
    }
}
