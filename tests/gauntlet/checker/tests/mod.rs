//! That the checker names what is wrong, by its rule and no other, and nothing that is right.

mod alarms;
mod deliveries;
mod runs;
mod sessions;
mod tale;

use tale::{Tale, honest};

/// The rules that are broken.
fn rules(tale: &Tale) -> Vec<&'static str> {
    let verdict = crate::checker::check(&tale.log);
    let rules: std::collections::BTreeSet<_> = verdict.violations.iter().map(|violation| violation.rule).collect();
    if !rules.is_empty() {
        // Shown when a test fails, and that it can be.
        println!("{}", verdict.print());
    }
    rules.into_iter().collect()
}

/// The rules that an otherwise honest run breaks after this.
fn after(spoil: impl FnOnce(&mut Tale)) -> Vec<&'static str> {
    let mut tale = honest();
    spoil(&mut tale);
    rules(&tale)
}

#[test]
fn an_honest_run_breaks_nothing() {
    let tale = honest();
    assert_eq!(rules(&tale), [""; 0]);
    let verdict = crate::checker::check(&tale.log);
    assert_eq!(verdict.invalid, [""; 0]);
    assert!(verdict.holds());
    let counts = &verdict.counts;
    let became = counts.fires + counts.exhausted + counts.missed + counts.cancelled + counts.ahead + counts.undone;
    assert_eq!(counts.occurrences, became, "{}", counts.print());
}
