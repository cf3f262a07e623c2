//! What sessions may do by themselves.

use chrono::TimeDelta;

use super::{Given, dispatch::MOST_DAYS};
use crate::{config::Autonomy, domain::session::autonomy::Restraint};

/// More than anybody bears: a typing error.
const MOST_CONSECUTIVE: u64 = 1_000;
/// A day.
const LONGEST_COOLDOWN_MS: u64 = 86_400_000;

impl Given {
    pub(super) fn autonomy(&mut self) -> Autonomy {
        let max_consecutive = self.number("CHRONOS_AUTONOMY_MAX_CONSECUTIVE", 0..=MOST_CONSECUTIVE);
        let cooldown = self.number("CHRONOS_AUTONOMY_COOLDOWN_MS", 0..=LONGEST_COOLDOWN_MS);
        Autonomy {
            enabled: self.flag("CHRONOS_AUTONOMY_ENABLED"),
            restraint: Restraint {
                max_consecutive: u32::try_from(max_consecutive).expect("at most MOST_CONSECUTIVE"),
                cooldown: TimeDelta::milliseconds(i64::try_from(cooldown).expect("at most LONGEST_COOLDOWN_MS")),
            },
            ack: self.milliseconds("CHRONOS_AUTONOMY_ACK_MS"),
            retention_days: self
                .text("CHRONOS_AUTONOMY_RETENTION_DAYS")
                .map(|_| self.count("CHRONOS_AUTONOMY_RETENTION_DAYS", MOST_DAYS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::given::tests::{given, with, working};

    #[test]
    fn a_session_speaks_unasked_three_times_fifteen_seconds_apart_unless_told_otherwise() {
        let autonomy = given(&working()).check().unwrap().autonomy;
        let restraint = Restraint { max_consecutive: 3, cooldown: TimeDelta::seconds(15) };
        assert_eq!((autonomy.enabled, autonomy.restraint), (true, restraint));
        assert_eq!((autonomy.ack, autonomy.retention_days), (Duration::from_secs(30), None));
    }

    #[test]
    fn whichever_roles_run_autonomy_may_be_switched_off_and_its_numbers_changed() {
        let mut pairs = working();
        pairs.extend([
            ("CHRONOS_ROLES", "controller"),
            ("CHRONOS_AUTONOMY_ENABLED", "false"),
            ("CHRONOS_AUTONOMY_MAX_CONSECUTIVE", "0"),
            ("CHRONOS_AUTONOMY_COOLDOWN_MS", "0"),
            ("CHRONOS_AUTONOMY_ACK_MS", "250"),
            ("CHRONOS_AUTONOMY_RETENTION_DAYS", "7"),
        ]);
        let autonomy = given(&pairs).check().unwrap().autonomy;
        let restraint = Restraint { max_consecutive: 0, cooldown: TimeDelta::zero() };
        assert_eq!((autonomy.enabled, autonomy.restraint), (false, restraint));
        assert_eq!((autonomy.ack, autonomy.retention_days), (Duration::from_millis(250), Some(7)));
    }

    #[test]
    fn a_number_out_of_range_is_told_with_the_range() {
        for (name, wrong, expected) in [
            ("CHRONOS_AUTONOMY_ENABLED", "yes", "true or false"),
            ("CHRONOS_AUTONOMY_MAX_CONSECUTIVE", "1001", "a whole number between 0 and 1000"),
            ("CHRONOS_AUTONOMY_COOLDOWN_MS", "15s", "a whole number between 0 and 86400000"),
            ("CHRONOS_AUTONOMY_ACK_MS", "0", "a whole number between 1 and 86400000"),
            ("CHRONOS_AUTONOMY_RETENTION_DAYS", "0", "a whole number between 1 and 36500"),
        ] {
            let told = with(name, wrong).unwrap_err().0;
            assert_eq!(told, [format!("{name} is {wrong:?}; expected {expected}")]);
        }
    }
}
