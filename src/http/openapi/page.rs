//! The document as a page to read and to try: Swagger UI, which is part of the binary. Nothing is fetched from elsewhere.

use std::sync::{Arc, LazyLock};

use axum::{
    extract::Path,
    http::{
        StatusCode,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
        },
    },
    response::{IntoResponse, Response},
};
use utoipa_swagger_ui::Config;

use crate::http::problem::Problem;

/// The page styles itself and carries its icons along; whatever else it would fetch, it fetches from here or not at all.
const ONLY_FROM_HERE: &str =
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";

static CONFIG: LazyLock<Arc<Config<'static>>> = LazyLock::new(|| {
    // Relative, so that it also works behind a proxy that puts a path in front. Without "none" the page would ask a
    // validator on the internet about the document.
    let config =
        Config::from("../openapi.json").validator_url("none").deep_linking(true).display_request_duration(true);
    Arc::new(config.default_models_expand_depth(0).with_syntax_highlight(false))
});

/// `GET /docs`: to where the page's own relative links work.
pub async fn entrance() -> impl IntoResponse {
    (StatusCode::PERMANENT_REDIRECT, [(LOCATION, "docs/")])
}

/// `GET /docs/`
pub async fn index() -> Response {
    file("index.html")
}

/// `GET /docs/{file}`
pub async fn asset(Path(name): Path<String>) -> Response {
    file(&name)
}

fn file(name: &str) -> Response {
    match utoipa_swagger_ui::serve(name, CONFIG.clone()) {
        Ok(Some(file)) => {
            let headers = [
                (CONTENT_TYPE, file.content_type.as_str()),
                (CONTENT_SECURITY_POLICY, ONLY_FROM_HERE),
                (X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (REFERRER_POLICY, "no-referrer"),
                // It changes with the binary only.
                (CACHE_CONTROL, "max-age=3600"),
            ];
            (headers, file.bytes.into_owned()).into_response()
        }
        Ok(None) => Problem::no_such_path().into_response(),
        Err(error) => {
            tracing::error!(%error, "a file of /docs cannot be served");
            Problem::internal().into_response()
        }
    }
}
