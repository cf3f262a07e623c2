//! `X-Request-Id`: the caller's, if it can be shown, or one of ours. It is in the answer, whatever that is, and in every line that is
//! logged about the request.

use axum::{
    extract::{MatchedPath, Request},
    http::{HeaderName, HeaderValue},
    middleware::Next,
    response::Response,
};
use tokio::time::Instant;
use tracing::{Instrument, debug, info_span};
use uuid::Uuid;

const NAME: HeaderName = HeaderName::from_static("x-request-id");
/// Room for two UUIDs and a word.
const LONGEST: usize = 128;

pub async fn carry(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(NAME).filter(|id| is_sane(id.as_bytes())).cloned();
    let id =
        given.unwrap_or_else(|| HeaderValue::from_str(&Uuid::new_v4().to_string()).expect("a UUID is visible ASCII"));
    request.headers_mut().insert(NAME, id.clone());
    let span = info_span!("request", request_id = id.to_str().unwrap_or_default());
    let method = request.method().clone();
    // The route and not the path, which may hold anything.
    let route = request.extensions().get::<MatchedPath>().cloned();
    let since = Instant::now();
    async move {
        let mut response = next.run(request).await;
        debug!(
            %method,
            route = route.as_ref().map_or("none", MatchedPath::as_str),
            status = response.status().as_u16(),
            duration_ms = since.elapsed().as_millis(),
            "a request was answered"
        );
        response.headers_mut().insert(NAME, id);
        response
    }
    .instrument(span)
    .await
}

fn is_sane(id: &[u8]) -> bool {
    (1..=LONGEST).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_can_be_shown_is_kept() {
        assert!(is_sane(b"mine") && is_sane("x".repeat(128).as_bytes()));
        for odd in ["", "a b", "a\tb", "\u{e9}", &"x".repeat(129)] {
            assert!(!is_sane(odd.as_bytes()), "{odd:?}");
        }
    }
}
