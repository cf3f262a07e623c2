//! Taking leave of a cluster. While nobody reconciles, a finalizer of ours would hold every Alarm and Agent, and every namespace with
//! one in it, for ever. So before the operator is uninstalled:
//!
//! 1. [`deployments`]: what would put the finalizers back ends.
//! 2. [`finalizers`]: ours are taken off every Alarm and Agent, in rounds, until a round finds none.
//!
//! Rows stay as they are: a controller that comes later finds the same uids, and puts the finalizers back on. No database is asked. Every
//! step may be repeated, and cut short anywhere.

mod deployments;
mod finalizers;

use std::time::Duration;

use kube::Client;
use thiserror::Error;
use tokio::time::{Instant, timeout, timeout_at};

use crate::telemetry::chain;

pub use deployments::Ended;
pub use finalizers::Tally;

/// Between two looks. Also how long a controller that is still at work has to put a finalizer back, and so to be noticed.
const PAUSE: Duration = Duration::from_secs(1);
/// For one request: an API server that is frozen answers nothing, not even an error.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Error)]
pub enum Error {
    #[error("scaling Deployment {name} to 0: {why}")]
    Scale { name: String, why: String },
    #[error("Deployment {0} has no selector, so nobody can say which pods are its")]
    NoSelector(String),
    #[error("listing the pods of Deployment {name}: {why}")]
    Pods { name: String, why: String },
    #[error("listing {kind}s{place}: {why}")]
    List { kind: &'static str, place: String, why: String },
    #[error("{count} finalizers cannot be taken off; the first is that of {first}")]
    Refused { count: usize, first: String },
    #[error(
        "the finalizer of {0} is put back again and again: a controller is at work. Stop it first, or name its Deployment with \
         --deployment"
    )]
    PutBack(String),
    #[error("not done within {} s: {last}", .timeout.as_secs())]
    Timeout { timeout: Duration, last: String },
}

/// What is to be done.
pub struct Release {
    pub client: Client,
    /// Where the Deployments are.
    pub home: String,
    pub deployments: Vec<String>,
    /// Of the Alarms and Agents; empty: all.
    pub namespaces: Vec<String>,
    /// For all of it.
    pub timeout: Duration,
}

/// What was done, also when not all was.
#[derive(Default)]
pub struct Report {
    pub deployments: Vec<(String, Ended)>,
    /// `None`: that was not come to.
    pub alarms: Option<Tally>,
    pub agents: Option<Tally>,
    /// What it waits for just now.
    waits_for: String,
}

impl Release {
    pub async fn run(&self, report: &mut Report) -> Result<(), Error> {
        let deadline = Instant::now() + self.timeout;
        let steps = async {
            deployments::end(&self.client, &self.home, &self.deployments, report).await?;
            finalizers::release(&self.client, &self.namespaces, report).await
        };
        match timeout_at(deadline, steps).await {
            Ok(done) => done,
            Err(_elapsed) => {
                let last = match report.waits_for.as_str() {
                    "" => "there were too many of them; run it again".to_owned(),
                    waits_for => waits_for.to_owned(),
                };
                Err(Error::Timeout { timeout: self.timeout, last })
            }
        }
    }
}

/// What to make of a request that was not granted.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// There is no such thing, or no such kind.
    Gone,
    /// It is not as it was when we looked.
    Changed,
    /// It may well be granted in a moment.
    Later(String),
    /// It will not be.
    Refused(String),
}

/// One request, in its time.
async fn ask<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Answer> {
    match timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(|error| answer_of(&error)),
        Err(_elapsed) => Err(Answer::Later("the API server does not answer".to_owned())),
    }
}

fn answer_of(error: &kube::Error) -> Answer {
    if let kube::Error::Api(status) = error {
        // By the code alone: of a group that it does not know, an API server says so in no form that has a reason.
        return match status.code {
            404 => Answer::Gone,
            // A list that was continued too late is 410.
            409 | 410 => Answer::Changed,
            429 | 500.. => Answer::Later(status.message.clone()),
            _ => Answer::Refused(status.message.clone()),
        };
    }
    if matches!(error, kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_)) {
        return Answer::Later(format!("the API server cannot be reached: {}", chain(error)));
    }
    Answer::Refused(chain(error))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn what_passes_is_tried_again_and_what_does_not_is_told() {
        let answer = |code: u16, reason: &str| {
            let status =
                Status { code, reason: reason.to_owned(), message: "so it is".to_owned(), ..Status::default() };
            answer_of(&kube::Error::Api(Box::new(status)))
        };
        let told = || "so it is".to_owned();
        assert_eq!(answer(404, "NotFound"), Answer::Gone);
        assert_eq!(answer(404, "Failed to parse error data"), Answer::Gone, "no such group");
        assert_eq!(answer(409, "Conflict"), Answer::Changed);
        assert_eq!(answer(410, "Expired"), Answer::Changed);
        assert_eq!(answer(429, "TooManyRequests"), Answer::Later(told()));
        assert_eq!(answer(503, "ServiceUnavailable"), Answer::Later(told()));
        assert_eq!(answer(403, "Forbidden"), Answer::Refused(told()));
        assert_eq!(answer(422, "Invalid"), Answer::Refused(told()));
    }
}
