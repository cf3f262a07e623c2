//! How many connections there may be at once, and how many files the process may open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Several for each of some thousand agents' daemons. At their worst, with every buffer full, some hundred megabytes; a whole body for
/// each is only read of those who have shown the transport bearer.
const MOST: u64 = 4096;
/// With fewer there is no use in serving at all: rather those, and a line in the log when a file cannot be opened.
const LEAST: u64 = 64;
/// Listeners, logs, timers, the API server's watches, files that are read: a few dozen.
const OTHERS: u64 = 128;

/// Takes as many open files as the process may have, and says how many that is; `None`: no limit.
pub fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current == limit.maximum {
        return limit.current;
    }
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            warn!(%error, "the limit of open files stays at {:?}: it cannot be raised", limit.current);
            limit.current
        }
    }
}

/// How many of `files` are left for clients when `spoken_for` are kept for connections of our own.
pub fn most_connections(files: Option<u64>, spoken_for: u64) -> usize {
    let left = files.map_or(MOST, |files| files.saturating_sub(spoken_for.saturating_add(OTHERS)));
    let most = left.clamp(LEAST, MOST);
    if left < MOST {
        warn!(
            "of {} files that this process may open, {most} are left for clients, not {MOST}; raise the limit (ulimit -n)",
            files.unwrap_or_default()
        );
    }
    usize::try_from(most).expect("at most MOST")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_what_the_limit_leaves_and_never_more_than_the_cap() {
        assert_eq!(most_connections(None, 600), 4096);
        assert_eq!(most_connections(Some(1_000_000), 600), 4096);
        assert_eq!(most_connections(Some(1024), 600), 1024 - 600 - 128);
        assert_eq!(most_connections(Some(256), 600), 64);
    }
}
