//! The API server, asked directly.

use std::time::Duration;

use anyhow::Context;
use reqwest::{Certificate, Client, Method, RequestBuilder, redirect, retry};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::caller::sent;
use crate::{log::Answer, world::Entry};

const TIMEOUT: Duration = Duration::from_secs(4);
/// How long one call waits for a deleted object to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(8);

pub struct Cluster {
    client: Client,
    base: String,
    token: String,
}

impl Cluster {
    pub fn new(entry: &Entry) -> anyhow::Result<Self> {
        let client = Client::builder()
            .no_proxy()
            .http1_only()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .tls_certs_only([Certificate::from_pem(&entry.apiserver.ca).context("the CA is no PEM")?])
            .pool_max_idle_per_host(4)
            .connect_timeout(TIMEOUT / 2)
            .timeout(TIMEOUT)
            .build()
            .context("no client for the API server")?;
        let base = format!("{}/apis/chronos.dev/v1alpha1/namespaces/{}", entry.apiserver.url, entry.namespace);
        Ok(Self { client, base, token: entry.apiserver.token.clone() })
    }

    /// Server-side apply.
    pub async fn apply(&self, plural: &str, name: &str, object: &Value) -> Answer {
        let query = "fieldManager=gauntlet&force=true&fieldValidation=Strict";
        let request = self.request(Method::PATCH, &format!("{plural}/{name}?{query}"));
        let request = request.header("content-type", "application/apply-patch+yaml").body(object.to_string());
        match sent(request).await {
            Ok((status @ 200..=299, mut body)) => {
                if let Some(metadata) = body["metadata"].as_object_mut() {
                    metadata.remove("managedFields");
                }
                Answer::Done { status, body }
            }
            Ok((status @ 400..=499, body)) => Answer::Refused { status, body },
            Ok((status, body)) => Answer::Unknown { why: format!("{status} {}", body["message"]) },
            Err(why) => Answer::Unknown { why },
        }
    }

    /// Done when it is gone.
    pub async fn delete(&self, plural: &str, name: &str) -> Answer {
        let path = format!("{plural}/{name}");
        let until = Instant::now() + GONE_WITHIN;
        let mut method = Method::DELETE;
        loop {
            match sent(self.request(method.clone(), &path)).await {
                Ok((status @ 404, body)) if is_not_there(&body, name) => return Answer::Done { status, body },
                Ok((200..=299, _)) => {}
                // Only the deletion itself can be refused; a look at it says nothing of what was done.
                Ok((status @ 400..=499, body)) if method == Method::DELETE => return Answer::Refused { status, body },
                Ok((status, body)) => return Answer::Unknown { why: format!("{status} {}", body["message"]) },
                Err(why) => return Answer::Unknown { why },
            }
            if Instant::now() > until {
                return Answer::Unknown { why: "it is still there".to_owned() };
            }
            method = Method::GET;
            sleep(Duration::from_millis(250)).await;
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}/{path}", self.base)).bearer_auth(&self.token)
    }
}

/// An API server that has just started answers 404 for kinds that it does not know yet.
fn is_not_there(body: &Value, name: &str) -> bool {
    body["reason"] == "NotFound" && body["details"]["name"] == name
}
