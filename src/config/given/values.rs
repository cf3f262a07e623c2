//! One value of one kind. What is wrong is noted, and something harmless returned: all problems are told at once.

use std::{str::FromStr, time::Duration};

use secrecy::SecretString;
use url::Url;

use super::Given;
use crate::{config::SETTINGS, domain::signature::SigningKey};

impl Given {
    pub(super) fn text(&self, name: &'static str) -> Option<String> {
        let default = SETTINGS.iter().find(|setting| setting.name == name).and_then(|setting| setting.default);
        self.values.get(name).cloned().or(default.map(str::to_owned))
    }

    pub(super) fn problem(&mut self, name: &str, problem: &str) {
        self.problems.push(format!("{name} {problem}"));
    }

    pub(super) fn required(&mut self, name: &'static str, remedy: &str) -> String {
        let value = self.text(name).unwrap_or_default();
        // One that was given twice, or in a file that cannot be read, is told as that.
        if value.is_empty() && !self.problems.iter().any(|problem| problem.starts_with(name)) {
            self.problem(name, &format!("is not set; {remedy}"));
        }
        value
    }

    pub(super) fn parse<T: FromStr>(&mut self, name: &'static str, expected: &str, harmless: T) -> T {
        let text = self.text(name).unwrap_or_default();
        text.parse().unwrap_or_else(|_| {
            self.problem(name, &format!("is {text:?}; expected {expected}"));
            harmless
        })
    }

    pub(super) fn number(&mut self, name: &'static str, range: std::ops::RangeInclusive<u64>) -> u64 {
        let expected = format!("a whole number between {} and {}", range.start(), range.end());
        let text = self.text(name).unwrap_or_default();
        match text.parse() {
            Ok(number) if range.contains(&number) => number,
            Ok(_) | Err(_) => {
                self.problem(name, &format!("is {text:?}; expected {expected}"));
                *range.start()
            }
        }
    }

    pub(super) fn count(&mut self, name: &'static str, most: u32) -> u32 {
        u32::try_from(self.number(name, 1..=u64::from(most))).expect("the range ends inside u32")
    }

    pub(super) fn seconds(&mut self, name: &'static str) -> Duration {
        Duration::from_secs(self.number(name, 1..=86_400))
    }

    pub(super) fn milliseconds(&mut self, name: &'static str) -> Duration {
        Duration::from_millis(self.number(name, 1..=86_400_000))
    }

    pub(super) fn flag(&mut self, name: &'static str) -> bool {
        self.parse(name, "true or false", false)
    }

    pub(super) fn list(&self, name: &'static str) -> Vec<String> {
        let text = self.text(name).unwrap_or_default();
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
    }

    /// A comma-separated list of secrets. An empty entry would accept an empty bearer: it stops the process.
    pub(super) fn secrets(&mut self, name: &'static str) -> Vec<SecretString> {
        let text = self.required(name, "set it to a long random text; several, comma separated, during a rotation");
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        if !text.is_empty() && parts.iter().any(|part| part.is_empty()) {
            self.problem(name, "has an empty entry in its list; remove the stray comma");
        }
        for part in &parts {
            self.warn_if_short(name, part);
        }
        parts.into_iter().filter(|part| !part.is_empty()).map(SecretString::from).collect()
    }

    /// A comma-separated list of Standard Webhooks secrets; none when it is not set. A receiver that checks signatures would
    /// refuse every wake signed with something else: what cannot be read stops the process.
    pub(super) fn signing_keys(&mut self, name: &'static str) -> Vec<SigningKey> {
        let Some(text) = self.text(name) else { return Vec::new() };
        let parse = |(number, entry): (usize, &str)| {
            SigningKey::parse(entry.trim()).map_err(|unfit| {
                format!(
                    "{unfit} (entry {} of the list); write whsec_ and 24 to 64 random bytes in base64, such as \
                     whsec_$(openssl rand -base64 32), several comma separated; unset it to send no signature",
                    number + 1
                )
            })
        };
        let (keys, problems): (Vec<_>, Vec<_>) = text.split(',').enumerate().map(parse).partition(Result::is_ok);
        for problem in problems.into_iter().filter_map(Result::err) {
            self.problem(name, &problem);
        }
        keys.into_iter().filter_map(Result::ok).collect()
    }

    pub(super) fn warn_if_short(&mut self, name: &str, secret: &str) {
        if (1..SHORTEST_GOOD_SECRET).contains(&secret.len()) {
            self.warnings
                .push(format!("{name} has under {SHORTEST_GOOD_SECRET} bytes and can be guessed; use a longer one"));
        }
    }

    pub(super) fn url(&mut self, name: &'static str, example: &str) -> Url {
        let text = self.text(name).unwrap_or_default();
        match Url::parse(&text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => url,
            Ok(_) | Err(_) => {
                self.problem(name, &format!("is {text:?}; expected an address such as {example}"));
                Url::parse("http://127.0.0.1/").expect("a fixed address parses")
            }
        }
    }
}

/// 16 bytes are 128 bits when random: beyond guessing.
const SHORTEST_GOOD_SECRET: usize = 16;
