//! A caller of the facade.

use reqwest::{Client, Method, RequestBuilder, header::HeaderMap};
use serde_json::Value;

use super::{TOKEN, with_tls};

#[derive(Clone)]
pub struct Api {
    client: Client,
    base: String,
    bearer: Option<String>,
    agent: Option<String>,
}

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    pub body: Value,
}

impl Answer {
    /// The data of a success.
    pub fn data(self) -> Value {
        assert_eq!((self.status, &self.body["ok"]), (200, &Value::Bool(true)), "{}", self.text);
        self.body["data"].clone()
    }

    /// Status, code and field of a failure.
    pub fn refusal(&self) -> (u16, &str, &str) {
        let text = |name: &str| self.body["error"][name].as_str().unwrap_or_default();
        (self.status, text("code"), text("field"))
    }
}

impl Api {
    pub fn new(base: &str) -> Self {
        with_tls();
        Self { client: Client::new(), base: base.to_owned(), bearer: Some(TOKEN.to_owned()), agent: None }
    }

    pub fn with_agent(&self, token: &str) -> Self {
        Self { agent: Some(token.to_owned()), ..self.clone() }
    }

    pub fn with_bearer(&self, bearer: Option<&str>) -> Self {
        Self { bearer: bearer.map(str::to_owned), ..self.clone() }
    }

    /// The headers that prove who it is.
    pub fn credentials(&self) -> Vec<(&'static str, String)> {
        let bearer = self.bearer.iter().map(|bearer| ("Authorization", format!("Bearer {bearer}")));
        bearer.chain(self.agent.iter().map(|agent| ("X-Chronos-Agent", agent.clone()))).collect()
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let mut request = self.client.request(method, format!("{}{path}", self.base));
        for (name, value) in self.credentials() {
            request = request.header(name, value);
        }
        request
    }

    pub async fn send(&self, request: RequestBuilder) -> Answer {
        let response = request.send().await.expect("the facade answers");
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let text = response.text().await.expect("the answer is text");
        let body = serde_json::from_str(&text).unwrap_or(Value::Null);
        Answer { status, headers, text, body }
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string()).await
    }

    /// A body to the byte.
    pub async fn post_text(&self, path: &str, body: &str) -> Answer {
        let request = self.request(Method::POST, path).header("content-type", "application/json");
        self.send(request.body(body.to_owned())).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send_json(Method::PUT, path, body).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.send_json(Method::PATCH, path, body).await
    }

    pub async fn send_json(&self, method: Method, path: &str, body: &Value) -> Answer {
        let request = self.request(method, path).header("content-type", "application/json");
        self.send(request.body(body.to_string())).await
    }

    /// A verb without a body.
    pub async fn act(&self, path: &str) -> Answer {
        self.send(self.request(Method::POST, path)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }
}
