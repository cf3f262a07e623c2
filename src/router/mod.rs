//! Client of the downstream router: one wake out, one [`Answer`] back.
//!
//! [`wire`] builds the request, [`answer`] reads the response; both are pure. This file does the talking. Redirects are
//! not followed and no proxy is taken from the environment: the bearer goes to the configured address and nowhere else.

mod answer;
mod wire;

use std::time::Duration;

use reqwest::{
    Client,
    header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderName, HeaderValue, RETRY_AFTER},
};
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;
use tokio::time::{Instant, timeout_at};
use url::Url;

use crate::domain::{occurrence::Answer, wake::Wake};

/// As much of an answer as is read. More is not waited for: the status has said everything, the text is for people.
const MOST_READ: usize = 64 * 1024;

#[derive(Debug, Error)]
pub enum Error {
    #[error("building the client of the router")]
    Client(#[source] reqwest::Error),
    #[error("CHRONOS_WAKE_TOKEN cannot stand in a header: only visible ASCII characters can")]
    Token,
}

#[derive(Clone, Debug)]
pub struct Router {
    client: Client,
    url: Url,
    bearer: HeaderValue,
    timeout: Duration,
}

impl Router {
    pub fn new(url: Url, token: &SecretString, timeout: Duration) -> Result<Self, Error> {
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("chronos/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(Error::Client)?;
        let mut bearer =
            HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())).map_err(|_| Error::Token)?;
        bearer.set_sensitive(true);
        Ok(Self { client, url, bearer, timeout })
    }

    /// Delivers one wake. Whatever goes wrong is an answer too: the ladder decides, not the caller.
    pub async fn wake(&self, wake: &Wake) -> Answer {
        // One deadline over connect, headers and body.
        let deadline = Instant::now() + self.timeout;
        let request = self
            .client
            .post(self.url.clone())
            .header(AUTHORIZATION, self.bearer.clone())
            .header(CONTENT_TYPE, "application/json")
            .headers(wire::headers(wake))
            .body(wire::body(wake));
        match timeout_at(deadline, request.send()).await {
            Err(_elapsed) => answer::timed_out(self.timeout),
            Ok(Err(error)) => answer::unreachable(&error),
            Ok(Ok(mut response)) => {
                let status = response.status().as_u16();
                let (retry_after, date) = (header(&response, RETRY_AFTER), header(&response, DATE));
                let text = read_start(&mut response, deadline).await;
                let headers = answer::Headers { retry_after: retry_after.as_deref(), date: date.as_deref() };
                answer::answer(status, headers, &text)
            }
        }
    }
}

fn header(response: &reqwest::Response, name: HeaderName) -> Option<String> {
    response.headers().get(name)?.to_str().ok().map(str::to_owned)
}

/// The start of a body. An answer that breaks off, or whose text does not end in time, has still been given: its status
/// counts.
async fn read_start(response: &mut reqwest::Response, deadline: Instant) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < MOST_READ {
        match timeout_at(deadline, response.chunk()).await {
            Ok(Ok(Some(chunk))) => bytes.extend_from_slice(&chunk[..chunk.len().min(MOST_READ - bytes.len())]),
            Ok(Ok(None) | Err(_)) | Err(_) => break,
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
