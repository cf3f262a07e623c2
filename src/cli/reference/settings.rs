//! `settings.md`: every setting, its default, and who cannot do without.

use std::collections::BTreeMap;

use super::{code, head, table};
use crate::config::{Given, SETTINGS, Setting, flag};

const ROLES: [&str; 3] = ["controller", "dispatch", "api"];

pub fn page() -> String {
    let about = "\
Environment variables of `chronosd run`, in the order of its `--help`. All of them are checked together at the start: a wrong one stops the
process, with its name, what is wrong and what would be right.

- A setting that is no secret is a flag, too, which wins: `CHRONOS_TICK_MS=250` is `--tick-ms 250`.
- Any of them may come from a file: `CHRONOS_TOKEN_FILE=/run/secrets/token` in place of `CHRONOS_TOKEN`. What a secret's file holds is read
  again while the process runs.
- Secrets have no flag, because command lines are visible to others, and are never printed.
";
    let rows: Vec<Vec<String>> = SETTINGS.iter().map(row).collect();
    format!("{}\n{}", head("Settings", about), table(&["setting", "default", "meaning"], &rows))
}

fn row(setting: &Setting) -> Vec<String> {
    let flag = if setting.secret { "secret".to_owned() } else { code(&format!("--{}", flag(setting.name))) };
    let default = match (setting.default, needed_by(setting.name).as_slice()) {
        (Some(default), _) => code(default),
        (None, []) => String::new(),
        (None, roles) if roles.len() == ROLES.len() => "required".to_owned(),
        (None, roles) => format!("required for {}", roles.join(", ")),
    };
    vec![format!("{}, {flag}", code(setting.name)), default, setting.help.to_owned()]
}

/// The roles that do not start without it, as they themselves say.
fn needed_by(name: &str) -> Vec<&'static str> {
    let needs = |role: &&str| {
        let only = BTreeMap::from([("CHRONOS_ROLES".to_owned(), (*role).to_owned())]);
        let problems = Given::collect(&BTreeMap::new(), &only).check().err();
        problems.is_some_and(|problems| problems.0.iter().any(|told| told.starts_with(&format!("{name} is not set"))))
    };
    ROLES.into_iter().filter(needs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_needs_a_setting_says_so() {
        assert_eq!(needed_by("CHRONOS_POSTGRES_URI"), ROLES);
        assert_eq!(needed_by("CHRONOS_TOKEN"), ["api"]);
        assert_eq!(needed_by("CHRONOS_WAKE_TOKEN"), ["dispatch"]);
        assert_eq!(needed_by("CHRONOS_TIMER_SINK_URL"), [""; 0]);
    }

    #[test]
    fn every_setting_is_on_the_page() {
        let page = page();
        let missing: Vec<_> = SETTINGS.iter().filter(|one| !page.contains(&format!("| `{}`, ", one.name))).collect();
        assert!(missing.is_empty(), "{:?}", missing.iter().map(|one| one.name).collect::<Vec<_>>());
    }
}
