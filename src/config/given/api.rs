//! What the facade needs.

use secrecy::ExposeSecret;

use super::Given;
use crate::{
    config::{Api, Enrolment, Tls},
    domain::access::Keyring,
};

/// Far beyond what one replica answers.
const MOST_OWNER_RATE: u64 = 1_000_000;

pub const TLS_CERT: &str = "CHRONOS_TLS_CERT_PATH";
pub const TLS_KEY: &str = "CHRONOS_TLS_KEY_PATH";

/// The contents of the facade's certificate and of its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    pub certificate: String,
    pub key: String,
}

impl Given {
    pub(super) fn api(&mut self, dev: bool) -> Option<Api> {
        let tokens = self.secrets("CHRONOS_TOKEN");
        let secrets = self.secrets("CHRONOS_AGENT_AUTH_SECRET");
        let enrolment = match (self.text("CHRONOS_ENROLMENT").unwrap_or_default().as_str(), dev) {
            ("open", true) => Enrolment::Open,
            ("open", false) => {
                self.problem(
                    "CHRONOS_ENROLMENT",
                    "is open, which lets any key speak for any user; it needs CHRONOS_DEV=true and a machine of your own",
                );
                Enrolment::Registered
            }
            ("registered", _) => Enrolment::Registered,
            (other, _) => {
                self.problem("CHRONOS_ENROLMENT", &format!("is {other:?}; it is registered or open"));
                Enrolment::Registered
            }
        };
        let owner_rate = self.number("CHRONOS_OWNER_RATE", 0..=MOST_OWNER_RATE);
        let tls = self.pem.as_ref().map(|pem| Tls::new(&pem.certificate, &pem.key)).transpose();
        let tls = tls.unwrap_or_else(|problem| {
            self.problems.push(problem);
            None
        });
        let keyring = Keyring::new(secrets.iter().map(ExposeSecret::expose_secret))?;
        let owner_rate = u32::try_from(owner_rate).expect("at most MOST_OWNER_RATE");
        Some(Api { tokens, keyring, enrolment, owner_rate, tls })
    }

    /// Certificate and key as they stand in their files now.
    pub(in crate::config) fn read_pem(&self) -> Result<Option<Pem>, Vec<String>> {
        // Empty is as good as none, as a chart leaves it.
        let path = |name| self.get(name).filter(|path| !path.is_empty());
        let read = |name, path: &str| {
            std::fs::read_to_string(path).map_err(|error| format!("{name} names {path}, which cannot be read: {error}"))
        };
        match (path(TLS_CERT), path(TLS_KEY)) {
            (None, None) => Ok(None),
            (Some(_), None) => {
                Err(vec![format!("{TLS_KEY} is not set; name the key's file, or unset {TLS_CERT} to serve plain HTTP")])
            }
            (None, Some(_)) => Err(vec![format!(
                "{TLS_CERT} is not set; name the certificate's file, or unset {TLS_KEY} to serve plain HTTP"
            )]),
            (Some(certificate), Some(key)) => match (read(TLS_CERT, certificate), read(TLS_KEY, key)) {
                (Ok(certificate), Ok(key)) => Ok(Some(Pem { certificate, key })),
                (certificate, key) => Err(certificate.err().into_iter().chain(key.err()).collect()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Config, Problems,
        given::tests::{given, with, working},
    };

    #[test]
    fn open_enrolment_is_for_developers_machines() {
        let enrolment = |config: Result<Config, Problems>| config.unwrap().api.unwrap().enrolment;
        assert_eq!(enrolment(given(&working()).check()), Enrolment::Open);
        assert_eq!(enrolment(with("CHRONOS_ENROLMENT", "registered")), Enrolment::Registered);
        let mut pairs = working();
        pairs.retain(|(name, _)| !["CHRONOS_ENROLMENT", "CHRONOS_DEV"].contains(name));
        assert_eq!(enrolment(given(&pairs).check()), Enrolment::Registered, "where nothing else is said");
        assert!(with("CHRONOS_DEV", "false").unwrap_err().0[0].starts_with("CHRONOS_ENROLMENT is open"));
        assert!(with("CHRONOS_ENROLMENT", "sometimes").unwrap_err().0[0].contains("registered or open"));
    }

    #[test]
    fn an_owners_rate_may_be_switched_off() {
        let rate = |value| with("CHRONOS_OWNER_RATE", value).map(|config| config.api.unwrap().owner_rate);
        assert_eq!(given(&working()).check().unwrap().api.unwrap().owner_rate, 100);
        assert_eq!((rate("0").unwrap(), rate("7").unwrap()), (0, 7));
        let told = rate("-1").unwrap_err().0;
        assert_eq!(told, ["CHRONOS_OWNER_RATE is \"-1\"; expected a whole number between 0 and 1000000"]);
    }

    #[test]
    fn an_empty_entry_in_a_list_of_secrets_stops_the_process() {
        let Problems(problems) = with("CHRONOS_TOKEN", "transport-token-of-32-characters,").unwrap_err();
        assert_eq!(problems, ["CHRONOS_TOKEN has an empty entry in its list; remove the stray comma"]);
    }
}
