//! What stands behind the question mark. An unknown parameter is refused: a filter that is misspelt would show everything.

use axum::{extract::Request, http::Method, middleware::Next, response::Response};

use crate::domain::{cursor::Cursor, invalid::quoted};

use super::problem::Problem;

pub const DEFAULT_PAGE: i64 = 100;
pub const LARGEST_PAGE: i64 = 500;

/// Whoever writes says so in the body: a `?dry_run=true` that nobody reads would be done for good.
pub async fn refuse_on_writes(request: Request, next: Next) -> Result<Response, Problem> {
    let query = request.uri().query().unwrap_or_default();
    if !query.is_empty() && request.method() != Method::GET && request.method() != Method::HEAD {
        let name = url::form_urlencoded::parse(query.as_bytes()).next().map(|(name, _)| name.into_owned());
        let told = "this operation takes no parameters in its address; put them into the body";
        return Err(Problem::invalid_field(&name.unwrap_or_default(), told));
    }
    Ok(next.run(request).await)
}

/// The parameters of a request, each at most once.
pub struct Query(Vec<(String, String)>);

/// Which part of a list is meant.
#[derive(Debug)]
pub struct Page {
    pub limit: i64,
    /// Where the page before ended.
    pub after: Option<Cursor>,
}

impl Page {
    pub const PARAMETERS: &[&str] = &["limit", "cursor"];
}

impl Query {
    pub fn parse(query: &str, known: &[&str]) -> Result<Self, Problem> {
        let mut found: Vec<(String, String)> = Vec::new();
        for (name, text) in url::form_urlencoded::parse(query.as_bytes()) {
            if !known.contains(&name.as_ref()) {
                let told = format!("there is no parameter {}; there are {}", quoted(&name), known.join(", "));
                return Err(Problem::invalid_field(&name, told));
            }
            if found.iter().any(|(other, _)| *other == name) {
                return Err(Problem::invalid_field(&name, format!("{name} is given twice; give it once")));
            }
            found.push((name.into_owned(), text.into_owned()));
        }
        Ok(Self(found))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }

    /// `limit` and `cursor`.
    pub fn page(&self) -> Result<Page, Problem> {
        let limit = self.limit()?;
        let after = self.get("cursor").map(str::parse).transpose();
        let after = after.map_err(|error| Problem::invalid_field("cursor", format!("cursor {error}")))?;
        Ok(Page { limit, after })
    }

    /// `limit` by itself, of a list that goes on by other means.
    pub fn limit(&self) -> Result<i64, Problem> {
        let limit = self.whole("limit", 1, &format!("give a whole number from 1 to {LARGEST_PAGE}"))?;
        Ok(limit.map_or(DEFAULT_PAGE, |limit| limit.min(LARGEST_PAGE)))
    }

    /// A whole number, `least` or more.
    pub fn whole(&self, name: &str, least: i64, remedy: &str) -> Result<Option<i64>, Problem> {
        match self.get(name).map(|text| (text, text.parse::<i64>())) {
            None => Ok(None),
            Some((_, Ok(number))) if number >= least => Ok(Some(number)),
            // More digits than a number has here is still a number, and above the most.
            Some((text, Err(_))) if text.len() > 18 && text.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ok(Some(i64::MAX))
            }
            Some((text, _)) => Err(Problem::invalid_field(name, format!("{name} is {}; {remedy}", quoted(text)))),
        }
    }
}
