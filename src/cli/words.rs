//! What the operator's commands have in common: arguments that are read once, answers in words and columns, the way to the database.

use std::{process::ExitCode, time::Duration};

use chrono::{DateTime, Datelike, Utc};

use super::print;
use crate::{
    config::Given,
    domain::{
        access::{Did, parse_public_key},
        alarm::Status,
        ids::{AlarmId, ClusterId},
        invalid::{parse_instant, quoted},
        schedule::seconds_in,
    },
    store::{Store, alarms::Resource},
    telemetry,
};

/// A store for one command, on a schema that it knows.
pub async fn open(given: Given) -> anyhow::Result<Store> {
    telemetry::init(given.log_filter())?;
    let store = Store::connect(&given.database()?, "cli", 1).await?;
    store.check_schema().await?;
    Ok(store)
}

/// Says why a command was not carried out.
pub fn refuse(command: &str, why: &str) -> ExitCode {
    eprintln!("chronosd {command}: {why}");
    ExitCode::FAILURE
}

/// Says what was done.
pub fn say(sentence: &str) -> anyhow::Result<ExitCode> {
    print(&format!("{sentence}\n")).map(|()| ExitCode::SUCCESS)
}

pub fn did(text: &str) -> Result<Did, String> {
    text.parse().map_err(|error| {
        format!("{error}; give one such as did:matrix:11111111-2222-3333-4444-555555555555:d75a980182b10ab7")
    })
}

pub fn public_key(text: &str) -> Result<[u8; 32], String> {
    parse_public_key(text).map_err(|error| error.to_string())
}

pub fn alarm_id(text: &str) -> Result<AlarmId, String> {
    let remedy = "give the id that `chronosd alarm list` or the facade shows";
    text.parse().map_err(|_| format!("is no alarm's id, which is a UUID; {remedy}"))
}

pub fn cluster_id(text: &str) -> Result<ClusterId, String> {
    text.parse().map_err(|_| "is not a cluster id: `chronosd cluster list` shows them".to_owned())
}

pub fn instant(text: &str) -> Result<DateTime<Utc>, String> {
    parse_instant("", text).map_err(|invalid| invalid.sentence())
}

/// An instant at which an alarm may fire.
pub fn fire_at(text: &str) -> Result<DateTime<Utc>, String> {
    // As everywhere: schedules know no later year.
    const LAST_YEAR: i32 = 2100;
    let instant = instant(text)?;
    if instant.year() > LAST_YEAR {
        return Err(format!(
            "lies after the year {LAST_YEAR}, where the calendar of this service ends; give an earlier one"
        ));
    }
    Ok(instant)
}

/// A length of time as `@every` takes it, `90s`, `2m`, `1h30m`, or `0`.
pub fn span(text: &str) -> Result<Duration, String> {
    /// A day: whoever waits longer has forgotten about it.
    const LONGEST: u64 = 86_400;
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let seconds = seconds_in(text).ok().and_then(|seconds| u64::try_from(seconds).ok());
    match seconds.ok_or("is no length of time; give one such as 90s, 2m or 1h30m")? {
        seconds @ ..=LONGEST => Ok(Duration::from_secs(seconds)),
        _ => Err("is longer than a day; give at most 24h".to_owned()),
    }
}

pub fn status(text: &str) -> Result<Status, String> {
    let known: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
    Status::try_from(text.to_owned()).map_err(|unknown| format!("{unknown}; give one of {}", known.join(", ")))
}

/// `1 alarm`, `12 alarms`.
pub fn count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

pub const fn are(number: u64) -> &'static str {
    if number == 1 { "is" } else { "are" }
}

pub fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// Of so many resources these, the first few: `Alarm home/tea, Alarm home/cake and 3 more`.
pub fn named(first: &[Resource], all: i64) -> String {
    let names: Vec<String> = first.iter().map(|one| format!("Alarm {}/{}", one.namespace, one.name)).collect();
    let more = all - i64::try_from(names.len()).unwrap_or(i64::MAX);
    if more > 0 { format!("{} and {more} more", names.join(", ")) } else { names.join(", ") }
}

/// On one line, and no longer than a column can bear. What others wrote must not move the reader's cursor.
pub fn cut(text: &str, longest: usize) -> String {
    let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.chars().count() > longest {
        line = line.chars().take(longest.saturating_sub(1)).chain(['…']).collect();
    }
    line
}

/// What somebody wrote, as a line of its own may show it.
pub fn shown(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { quoted(text) }
}

/// Columns, each as wide as its widest entry, under their names.
pub fn table(names: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let entries = rows.iter().filter_map(|row| row.get(column)).map(|entry| entry.chars().count());
        entries.chain(names.get(column).map(|name| name.len())).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let line = |entries: &mut dyn Iterator<Item = &str>| {
        let padded = entries.zip(&widths).map(|(entry, &width)| format!("{entry:width$}"));
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let head = line(&mut names.iter().copied());
    rows.iter().fold(head, |told, row| told + &line(&mut row.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_entry() {
        let rows = [vec!["a".to_owned(), "é".to_owned()], vec!["abc".to_owned(), String::new()]];
        assert_eq!(table(&["X", "NAME"], &rows), "X    NAME\na    é\nabc\n");
        assert_eq!(table(&["X"], &[]), "X\n");
    }

    #[test]
    fn what_others_wrote_stays_on_its_line() {
        assert_eq!(cut("a\u{1b}[2Jb\nc", 20), "a [2Jb c");
        assert_eq!(cut("ééééé", 4), "ééé…");
        assert_eq!(cut("éééé", 4), "éééé");
    }

    #[test]
    fn of_many_resources_the_first_are_named() {
        let tea = Resource { cluster: Uuid::from_u128(1), namespace: "home".to_owned(), name: "tea".to_owned() };
        assert_eq!(named(std::slice::from_ref(&tea), 1), "Alarm home/tea");
        assert_eq!(named(&[tea.clone(), tea], 5), "Alarm home/tea, Alarm home/tea and 3 more");
    }

    #[test]
    fn nothing_fires_after_the_end_of_the_calendar() {
        assert!(fire_at("2100-12-31T23:59:59Z").is_ok());
        assert!(fire_at("2101-01-01T00:00:00Z").is_err_and(|why| why.starts_with("lies after the year 2100")));
    }

    #[test]
    fn a_length_of_time_has_a_unit_and_is_no_longer_than_a_day() {
        let seconds = |text| span(text).map(|span| span.as_secs());
        let read = ["0", "0s", "90s", "2m", "1h30m", "24h"].map(seconds);
        assert_eq!(read, [0, 0, 90, 120, 5400, 86_400].map(Ok));
        for wrong in ["", "90", "s", "-1s", "1.5s", "1d", "90 s", "99999999999999999999s", "9999999999999999999h"] {
            assert!(seconds(wrong).is_err_and(|why| why.starts_with("is no length of time")), "{wrong}");
        }
        assert!(seconds("24h1s").is_err_and(|why| why.starts_with("is longer than a day")));
    }

    #[test]
    fn numbers_agree_with_their_nouns() {
        assert_eq!([count(0, "alarm"), count(1, "alarm"), count(2, "alarm")], ["0 alarms", "1 alarm", "2 alarms"]);
    }
}
