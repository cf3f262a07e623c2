//! The table: a line as soon as it is known, and at the end what was promised beside what was seen. With `BENCH_RESULTS` in the environment
//! everything is also appended to that file, a line of JSON each, and `bench/report.py` makes `docs/benchmarks.md` of it.

use std::{fs::File, io::Write, process::Command};

use anyhow::{Context, ensure};
use chronos::clock;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::world::World;

/// What the environment may make smaller, for a quick look. Such a run is no result.
const SIZES: [(&str, &str); 2] = [("PENDING", "1000000"), ("ALARMS", "10000")];

/// One promise, and what was seen of it.
struct Check {
    what: String,
    seen: String,
    asked: String,
    reached: bool,
}

pub struct Report {
    checks: Vec<Check>,
    /// When this run began: its name in the results.
    run: String,
    begun: Instant,
    results: Option<File>,
    described: bool,
    /// How often something failed.
    failures: usize,
    scenario: String,
    title: String,
}

impl Report {
    pub fn begin() -> anyhow::Result<Self> {
        let smaller = SIZES.iter().any(|(name, size)| std::env::var(name).is_ok_and(|other| other != *size));
        if smaller {
            println!("PENDING or ALARMS is not what it is by default: nothing is added to the results");
        }
        let results = std::env::var("BENCH_RESULTS").ok().filter(|_| !smaller).map(|path| {
            let file = File::options().append(true).create(true).open(&path);
            file.with_context(|| format!("opening {path}"))
        });
        Ok(Self {
            checks: Vec::new(),
            run: clock::system().now().format("%Y-%m-%dT%H:%M:%SZ").to_string(),
            begun: Instant::now(),
            results: results.transpose()?,
            described: false,
            failures: 0,
            scenario: String::new(),
            title: String::new(),
        })
    }

    /// What all of it runs on: once a run.
    pub async fn describe(&mut self, world: &World, words: &[String]) -> anyhow::Result<()> {
        if self.described {
            return Ok(());
        }
        let output = |program: &str, args: &[&str]| -> String {
            let output = Command::new(program).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output();
            output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
        };
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
            line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
        };
        let kilobytes: f64 = field(&read("/proc/meminfo"), "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0.0);
        let load: f64 = read("/proc/loadavg").split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
        let mut settings = Map::new();
        for name in [
            "fsync",
            "synchronous_commit",
            "full_page_writes",
            "shared_buffers",
            "max_wal_size",
            "autovacuum",
            "max_connections",
            "jit",
        ] {
            settings.insert(name.to_owned(), Value::from(world.show(name).await?));
        }
        let about = json!({
            "commit": output("git", &["rev-parse", "--short", "HEAD"]),
            "dirty": !output("git", &["status", "--porcelain", "--untracked-files=no", "src", "migrations", "bench/dispatch", "bench/peers", "Cargo.lock"]).is_empty(),
            "cpu": field(&read("/proc/cpuinfo"), "model name"),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "memory_gib": (kilobytes / 1024.0 / 1024.0 * 10.0).round() / 10.0,
            "kernel": output("uname", &["-r"]),
            "postgres": world.show("server_version").await?,
            "settings": settings,
            "rust": output("rustc", &["--version"]),
            "words": words.join(" "),
            "load": load,
            "sizes": Map::from_iter(SIZES.map(|(name, size)| (name.to_owned(), Value::from(std::env::var(name).unwrap_or_else(|_| size.to_owned()))))),
        });
        self.described = true;
        self.write(json!({ "about": about }));
        Ok(())
    }

    /// What follows belongs to this scenario.
    pub fn scenario(&mut self, name: &str) {
        name.clone_into(&mut self.scenario);
    }

    pub fn title(&mut self, title: &str) {
        println!("\n{title}");
        title.clone_into(&mut self.title);
    }

    pub fn line(&mut self, what: &str, figures: &str) {
        println!("  {what:<58} {figures}");
        self.write(json!({ "section": self.scenario, "title": self.title, "what": what, "text": figures.trim() }));
    }

    /// One round of what was measured, for the tables and plots. `late`: microseconds, sorted.
    pub fn record(&mut self, round: &Round<'_>, figures: &[(&str, f64)], late: Option<&[i64]>) {
        let mut all = Map::new();
        for (name, figure) in figures.iter().filter(|(_, figure)| figure.is_finite()) {
            all.insert((*name).to_owned(), json!((figure * 1000.0).round() / 1000.0));
        }
        if let Some(late) = late.filter(|late| !late.is_empty()) {
            for (name, percent) in [("p50_ms", 50.0), ("p99_ms", 99.0), ("max_ms", 100.0)] {
                all.insert(name.to_owned(), json!(percentile(late, percent) / 1e3));
            }
        }
        let mut line = json!({
            "scenario": round.scenario, "who": round.who, "config": round.config, "round": round.number,
            "at": (self.begun.elapsed().as_secs_f64() * 10.0).round() / 10.0, "figures": all,
        });
        if let Some(late) = late.filter(|late| !late.is_empty()) {
            line["quantiles"] = (0..=100).map(|percent| json!(percentile(late, f64::from(percent)) / 1e3)).collect();
        }
        self.write(line);
    }

    /// A peer that takes part in this run.
    pub fn peer(&mut self, name: &str, version: &str, fast: &str, default: &str) {
        self.write(json!({ "peer": name, "version": version, "fast": fast, "default": default }));
    }

    pub fn note(&mut self, note: &str) {
        println!("  {note}");
        self.write(json!({ "note": note }));
    }

    /// What was not measured, and why; the rest goes on.
    pub fn failed(&mut self, what: &str, error: &anyhow::Error) {
        self.failures += 1;
        self.note(&format!("{what} failed: {error:#}"));
    }

    /// A ratio, or another figure, that must not be under `least`.
    pub fn at_least(&mut self, what: &str, seen: f64, least: f64) {
        self.check(what, seen, format!(">= {least}"), seen >= least);
    }

    pub fn at_most(&mut self, what: &str, seen: f64, most: f64) {
        self.check(what, seen, format!("<= {most}"), seen <= most);
    }

    fn check(&mut self, what: &str, seen: f64, asked: String, reached: bool) {
        if seen.is_finite() {
            let rounded = (seen * 1000.0).round() / 1000.0;
            self.write(json!({ "promise": what, "seen": rounded, "asked": asked, "reached": reached }));
        }
        self.checks.push(Check { what: what.to_owned(), seen: format!("{seen:.2}"), asked, reached });
    }

    fn write(&mut self, mut line: Value) {
        // Of what it is about nothing is known before there is a server: then nothing else is written either.
        let Some(file) = self.results.as_mut().filter(|_| self.described) else { return };
        let fields = line.as_object_mut().expect("an object");
        let mut all = Map::from_iter([("run".to_owned(), Value::from(self.run.clone()))]);
        all.append(fields);
        // A line at once, and in one piece: what a run had measured when it was ended is kept.
        if let Err(error) = file.write_all(format!("{}\n", Value::Object(all)).as_bytes()) {
            eprintln!("the results cannot be written: {error}");
        }
    }

    /// What was promised; an error if anything failed.
    pub fn end(self) -> anyhow::Result<()> {
        if !self.checks.is_empty() {
            println!("\nwhat is promised{:<54}{:>12}{:>12}", "", "seen", "asked");
        }
        for check in self.checks {
            let reached = if check.reached { "reached" } else { "NOT REACHED" };
            println!("  {:<68}{:>12}{:>12}  {reached}", check.what, check.seen, check.asked);
        }
        ensure!(self.failures == 0, "{} of it failed, as is told above", self.failures);
        Ok(())
    }
}

/// Which round of what.
pub struct Round<'a> {
    pub scenario: &'a str,
    pub who: &'a str,
    pub config: &'a str,
    pub number: usize,
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
