//! Client of the downstream router: one wake out, one [`Answer`] back. What service calls are told goes out by the same client, to a
//! sink that may be somebody else, with a bearer of its own then.
//!
//! [`wire`] builds the request, [`answer`] reads the response; both are pure. This file does the talking. Redirects are
//! not followed and no proxy is taken from the environment: the bearer goes to the configured address and nowhere else.
//!
//! Connections are kept and used again: an answer is read to its end, which gives its connection back, unless it is longer
//! than anybody reads or does not end in time, which as a rule closes it. The router may close one that idles at the very moment a
//! wake is put on it. As long as none of the request was written (or, over HTTP/2, the router says that it did not look at
//! it), the client takes another connection by itself, and nothing has happened. Once any of it was written, the router may
//! have taken the wake: the exchange broke off, that is the answer, and the ladder sends the same delivery id again. No wake
//! is repeated in silence.

mod answer;
mod wire;

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use futures::future::BoxFuture;
use reqwest::{
    Client,
    header::{AUTHORIZATION, CONTENT_TYPE, DATE, HeaderName, HeaderValue, RETRY_AFTER},
};
use secrecy::{ExposeSecret, SecretString};
use thiserror::Error;
use tokio::time::{Instant, timeout_at};
use url::Url;

use crate::{
    clock::Clock,
    domain::{
        occurrence::Answer,
        signature::{self, SigningKey},
        trace::Trace,
        wake::{Addressee, Wake},
    },
};

/// As much of an answer as is read. More is not waited for: the status has said everything, the text is for people.
const MOST_READ: usize = 64 * 1024;

/// A connection that nobody used for this long is closed: shorter than what routers and the boxes in between grant, as a rule
/// a minute or more, so that it is seldom they who close it.
const IDLE: Duration = Duration::from_secs(50);

#[derive(Debug, Error)]
pub enum Error {
    #[error("building the client of the router")]
    Client(#[source] reqwest::Error),
    #[error("{0} cannot stand in a header: only visible ASCII characters can")]
    Token(&'static str),
}

/// Whoever takes wakes: the router over HTTP. Benchmarks that want to see the dispatcher alone put somebody in its place who takes
/// everything at once.
pub trait Receive: Send + Sync {
    /// Delivers one wake. Whatever goes wrong is an answer too: the ladder decides, not the caller.
    fn wake<'a>(&'a self, wake: &'a Wake, trace: &'a Trace) -> BoxFuture<'a, Answer>;
}

/// Where what goes.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Wakes of agents and sessions.
    pub router: Url,
    /// Events of service calls.
    pub sink: Url,
}

/// What proves that it comes from us.
#[derive(Clone, Debug)]
pub struct Secrets {
    pub wake_token: SecretString,
    pub sink_token: SecretString,
    /// Over everything that goes out, wherever it goes.
    pub signing_keys: Vec<SigningKey>,
}

#[derive(Clone)]
pub struct Router {
    client: Client,
    addresses: Addresses,
    /// Each wake goes out with the newest.
    credentials: Arc<RwLock<Arc<Credentials>>>,
    timeout: Duration,
    clock: Arc<dyn Clock>,
}

/// The secrets, ready to be sent.
struct Credentials {
    router: HeaderValue,
    sink: HeaderValue,
    signing_keys: Vec<SigningKey>,
}

impl Credentials {
    fn new(secrets: Secrets) -> Result<Arc<Self>, Error> {
        let Secrets { wake_token, sink_token, signing_keys } = secrets;
        let router = bearer(&wake_token).ok_or(Error::Token("CHRONOS_WAKE_TOKEN"))?;
        let sink = bearer(&sink_token).ok_or(Error::Token("CHRONOS_TIMER_SINK_TOKEN"))?;
        Ok(Arc::new(Self { router, sink, signing_keys }))
    }
}

fn bearer(token: &SecretString) -> Option<HeaderValue> {
    let mut bearer = HeaderValue::from_str(&format!("Bearer {}", token.expose_secret())).ok()?;
    bearer.set_sensitive(true);
    Some(bearer)
}

impl Router {
    pub fn new(
        addresses: Addresses,
        secrets: Secrets,
        timeout: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let client = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            // As many as were ever in flight at once: what has landed is flown again.
            .pool_max_idle_per_host(usize::MAX)
            .pool_idle_timeout(IDLE)
            // A wake is one small write: do not wait for more.
            .tcp_nodelay(true)
            .user_agent(concat!("chronos/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(Error::Client)?;
        let credentials = Arc::new(RwLock::new(Credentials::new(secrets)?));
        Ok(Self { client, addresses, credentials, timeout, clock })
    }

    /// Takes other tokens and keys, for this client and all its clones: the next wake carries them.
    pub fn renew(&self, secrets: Secrets) -> Result<(), Error> {
        let renewed = Credentials::new(secrets)?;
        *self.credentials.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(())
    }

    /// Delivers one wake: one exchange.
    pub async fn wake(&self, wake: &Wake, trace: &Trace) -> Answer {
        // One deadline over connect, headers and body.
        let deadline = Instant::now() + self.timeout;
        let credentials = Arc::clone(&self.credentials.read().unwrap_or_else(PoisonError::into_inner));
        let (url, bearer) = match wake.to {
            Addressee::Agent | Addressee::Session { .. } => (&self.addresses.router, &credentials.router),
            Addressee::ServiceCall { .. } => (&self.addresses.sink, &credentials.sink),
        };
        let body = wire::body(wake);
        let mut headers = wire::headers(wake, trace);
        let timestamp = self.clock.now().timestamp();
        if let Some(signatures) = signature::sign(&credentials.signing_keys, wake.delivery_id, timestamp, &body) {
            headers.extend(wire::signed(timestamp, &signatures));
        }
        let request = self
            .client
            .post(url.clone())
            .header(AUTHORIZATION, bearer.clone())
            .header(CONTENT_TYPE, "application/json")
            .headers(headers)
            .body(body);
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

impl Receive for Router {
    fn wake<'a>(&'a self, wake: &'a Wake, trace: &'a Trace) -> BoxFuture<'a, Answer> {
        Box::pin(Self::wake(self, wake, trace))
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
