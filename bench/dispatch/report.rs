//! The table: a line as soon as it is known, and at the end what was promised beside what was seen.

/// One promise, and what was seen of it.
struct Check {
    what: String,
    seen: String,
    asked: String,
    reached: bool,
}

pub struct Report {
    checks: Vec<Check>,
}

impl Report {
    pub fn begin() -> Self {
        Self { checks: Vec::new() }
    }

    #[expect(clippy::unused_self, reason = "reads as what it is")]
    pub fn title(&self, title: &str) {
        println!("\n{title}");
    }

    #[expect(clippy::unused_self, reason = "reads as what it is")]
    pub fn line(&self, what: &str, figures: &str) {
        println!("  {what:<58} {figures}");
    }

    /// A ratio, or another figure, that must not be under `least`.
    pub fn at_least(&mut self, what: &str, seen: f64, least: f64) {
        self.check(what, format!("{seen:.2}"), format!(">= {least}"), seen >= least);
    }

    pub fn at_most(&mut self, what: &str, seen: f64, most: f64) {
        self.check(what, format!("{seen:.2}"), format!("<= {most:.2}"), seen <= most);
    }

    fn check(&mut self, what: &str, seen: String, asked: String, reached: bool) {
        self.checks.push(Check { what: what.to_owned(), seen, asked, reached });
    }

    pub fn end(self) {
        println!("\nwhat is promised{:<54}{:>12}{:>12}", "", "seen", "asked");
        for check in self.checks {
            let reached = if check.reached { "reached" } else { "NOT REACHED" };
            println!("  {:<68}{:>12}{:>12}  {reached}", check.what, check.seen, check.asked);
        }
    }
}

/// The median of what was seen.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The value that so many of a hundred do not exceed; `sorted` is.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a few million at most"
)]
pub fn percentile(sorted: &[i64], percent: f64) -> f64 {
    let place = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted[place.clamp(1, sorted.len()) - 1] as f64
}

/// `12 345`, for people.
#[expect(clippy::cast_possible_truncation, reason = "whole numbers are for people")]
pub fn grouped(number: f64) -> String {
    let digits = (number.round() as i64).to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

pub fn all(figures: &[f64]) -> String {
    figures.iter().map(|figure| grouped(*figure)).collect::<Vec<_>>().join(", ")
}
