//! What a claim pays for a cron alarm: parse its expression, find the next slot. Ours, beside the crate `cron` with only
//! what it needs to be asked at all (six fields, weekdays renumbered); the layer for clock changes, either-day rules and
//! errors would come on top of its figures. ADR 4 says what follows from them.
//!
//! `make bench` runs it. Only the ratios of one run mean anything.

use std::{hint::black_box, str::FromStr, time::Instant};

use chrono::{DateTime, TimeDelta, Utc};
use chronos::domain::schedule::{Recurrence, Window, Zone};

/// Ours, and the same for the crate.
const EXPRESSIONS: [(&str, &str); 5] = [
    ("* * * * *", "0 * * * * *"),
    ("*/5 9-17 * * MON-FRI", "0 */5 9-17 * * MON-FRI"),
    ("0 9 * * MON-FRI", "0 0 9 * * MON-FRI"),
    ("30 2 1 * *", "0 30 2 1 * *"),
    ("0 0 29 2 *", "0 0 0 29 2 *"),
];
const ROUNDS: u32 = 20_000;

fn main() {
    let start: DateTime<Utc> = "2026-11-16T12:00:00Z".parse().expect("an instant");
    let window = Window::new(start, None, None);
    let instants = |round: u32| start + TimeDelta::minutes(i64::from(round) * 997);
    println!("nanoseconds, mean of {ROUNDS} rounds; ratio = cron crate / ours");
    println!(
        "{:<24}{:>12}{:>12}{:>8}{:>14}{:>12}{:>8}",
        "", "parse+next", "cron", "ratio", "next alone", "cron", "ratio"
    );
    for (ours, theirs) in EXPRESSIONS {
        let parse = || Recurrence::parse(ours, Zone::utc(), window).expect("parses");
        let parse_theirs = || cron::Schedule::from_str(theirs).expect("parses");
        let (known, known_theirs) = (parse(), parse_theirs());
        let both = time(|round| parse().next_after(instants(round)));
        let both_theirs = time(|round| parse_theirs().after(&instants(round)).next());
        let next = time(|round| known.next_after(instants(round)));
        let next_theirs = time(|round| known_theirs.after(&instants(round)).next());
        println!(
            "{ours:<24}{both:>12.0}{both_theirs:>12.0}{:>8.1}{next:>14.0}{next_theirs:>12.0}{:>8.1}",
            both_theirs / both,
            next_theirs / next
        );
    }
}

/// Nanoseconds a round, after a tenth of the rounds to warm up.
fn time<T>(mut question: impl FnMut(u32) -> T) -> f64 {
    for round in 0..ROUNDS / 10 {
        black_box(question(round));
    }
    let started = Instant::now();
    for round in 0..ROUNDS {
        black_box(question(round));
    }
    started.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS)
}
