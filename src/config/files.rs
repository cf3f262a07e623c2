//! Files that change while the process runs: secrets given by `…_FILE`, the facade's certificate and its key. Rotating one needs no
//! restart.
//!
//! The contents are compared, every [`LOOK`]: Kubernetes swaps a link above the file, and an editor the file itself, so that there
//! is nothing else to watch that would hold. What is new passes the checks that the start has; what does not pass is told, once, by its
//! name, and the value before it stays until the file is mended. Any other setting that came from a file is as it was at the start.

use std::{collections::BTreeMap, fmt, time::Duration};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Config, Problems, SETTINGS,
    given::{Given, TLS_CERT},
};

/// Kubernetes itself takes up to a minute to bring a new Secret to a pod.
const LOOK: Duration = Duration::from_secs(5);

/// What was read last and holds, and the files it came from.
#[derive(Clone)]
pub struct Files {
    accepted: Given,
    /// What was said about a setting that does not hold what its file does.
    told: BTreeMap<&'static str, Vec<String>>,
}

impl Files {
    pub(super) fn new(accepted: Given) -> Self {
        Self { accepted, told: BTreeMap::new() }
    }

    /// Looks again and again, and hands on every configuration that is new.
    pub async fn run(mut self, renew: impl Fn(&Config), stop: CancellationToken) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = looks.tick() => {}
            }
            let looked = tokio::task::spawn_blocking(move || {
                let renewed = self.look();
                (self, renewed)
            });
            let renewed;
            (self, renewed) = looked.await.expect("a look does not panic");
            if let Some(config) = renewed {
                renew(&config);
            }
        }
    }

    /// The configuration with what the files hold now; `None` when that is nothing new.
    pub fn look(&mut self) -> Option<Config> {
        let mut renewed = None;
        for (name, path) in self.accepted.files().clone() {
            match Given::read(name, &path) {
                Ok(text) if self.accepted.get(name) == Some(&text) => _ = self.told.remove(name),
                Ok(_) if !is_secret(name) => {
                    self.tell(
                        name,
                        vec![format!("{name} has changed in its file, which takes effect at the next start")],
                    );
                }
                Ok(text) => renewed = self.accept(name, self.accepted.with(name, text)).or(renewed),
                Err(problem) => self.tell(name, vec![format!("{problem}; the value before stays")]),
            }
        }
        if let Some(pem) = self.accepted.pem() {
            match self.accepted.read_pem() {
                Ok(Some(now)) if now != *pem => {
                    renewed = self.accept(TLS_CERT, self.accepted.with_pem(now)).or(renewed);
                }
                Ok(_) => _ = self.told.remove(TLS_CERT),
                Err(problems) => self.tell(TLS_CERT, stays(problems)),
            }
        }
        renewed
    }

    fn accept(&mut self, name: &'static str, candidate: Given) -> Option<Config> {
        match candidate.clone().check() {
            Ok(config) => {
                self.told.remove(name);
                self.accepted = candidate;
                info!("{name} was renewed from its file");
                for warning in config.warnings.iter().filter(|warning| warning.starts_with(name)) {
                    warn!("{warning}");
                }
                Some(config)
            }
            Err(Problems(problems)) => {
                self.tell(name, stays(problems));
                None
            }
        }
    }

    /// Once, not at every look.
    fn tell(&mut self, name: &'static str, problems: Vec<String>) {
        if self.told.get(name) == Some(&problems) {
            return;
        }
        for problem in &problems {
            warn!("{problem}");
        }
        self.told.insert(name, problems);
    }
}

fn stays(problems: Vec<String>) -> Vec<String> {
    problems.into_iter().map(|problem| format!("{problem}; what was read before stays")).collect()
}

fn is_secret(name: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.name == name && setting.secret)
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;
    use tempfile::TempDir;

    use super::*;

    /// A configuration whose wake token and tick come from files.
    fn started() -> (TempDir, Files) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("token"), "the-first-wake-token\n").unwrap();
        std::fs::write(path("tick"), "250").unwrap();
        let environment = BTreeMap::from([
            ("CHRONOS_ROLES".to_owned(), "dispatch".to_owned()),
            ("CHRONOS_POSTGRES_URI".to_owned(), "postgres://localhost/chronos".to_owned()),
            ("CHRONOS_WAKE_TOKEN_FILE".to_owned(), path("token")),
            ("CHRONOS_TICK_MS_FILE".to_owned(), path("tick")),
        ]);
        let config = Given::collect(&BTreeMap::new(), &environment).check().unwrap();
        (folder, config.files)
    }

    fn token(config: Option<Config>) -> Option<String> {
        config.map(|config| config.dispatch.unwrap().wake_token.expose_secret().to_owned())
    }

    #[test]
    fn a_secret_that_has_changed_in_its_file_is_handed_on_once() {
        let (folder, mut files) = started();
        assert_eq!(token(files.look()), None);
        std::fs::write(folder.path().join("token"), "the-second-wake-token").unwrap();
        assert_eq!(token(files.look()).as_deref(), Some("the-second-wake-token"));
        assert_eq!(token(files.look()), None);
    }

    #[test]
    fn a_secret_that_cannot_be_used_is_told_once_and_the_one_before_stays_until_it_is_mended() {
        let (folder, mut files) = started();
        for wrong in ["", "hunter2 hunter2 hunter2"] {
            std::fs::write(folder.path().join("token"), wrong).unwrap();
            assert_eq!(token(files.look()), None);
            let told = files.told["CHRONOS_WAKE_TOKEN"].clone();
            assert!(told.len() == 1 && told[0].starts_with("CHRONOS_WAKE_TOKEN "), "{told:?}");
            assert!(!told[0].contains("hunter2"), "{told:?}");
        }
        std::fs::remove_file(folder.path().join("token")).unwrap();
        assert_eq!(token(files.look()), None);
        assert!(files.told["CHRONOS_WAKE_TOKEN"][0].contains("cannot be read"), "{:?}", files.told);
        std::fs::write(folder.path().join("token"), "the-second-wake-token").unwrap();
        assert_eq!(token(files.look()).as_deref(), Some("the-second-wake-token"));
        assert!(files.told.is_empty());
    }

    #[test]
    fn what_is_no_secret_waits_for_the_next_start_and_keeps_no_secret_waiting() {
        let (folder, mut files) = started();
        std::fs::write(folder.path().join("tick"), "soon").unwrap();
        assert_eq!(token(files.look()), None);
        assert_eq!(
            files.told["CHRONOS_TICK_MS"],
            ["CHRONOS_TICK_MS has changed in its file, which takes effect at the next start"]
        );
        std::fs::write(folder.path().join("token"), "the-second-wake-token").unwrap();
        let config = files.look().unwrap();
        assert_eq!(config.dispatch.as_ref().unwrap().tick, Duration::from_millis(250));
        assert_eq!(token(Some(config)).as_deref(), Some("the-second-wake-token"));
    }

    #[test]
    fn nothing_of_a_secret_is_printed() {
        let (_folder, files) = started();
        assert!(!format!("{files:?}").contains("first"));
    }
}
