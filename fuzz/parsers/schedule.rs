//! Cron expressions, `@every`, zones.

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use chronos::domain::schedule::{
    Error, Field, LAST_YEAR, MAX_EXPRESSION_BYTES, MAX_ZONE_BYTES, Recurrence, Schedule, Window, Zone,
};

use super::{assert_readable, text};

/// No rule, half an hour of summer time, a clock that skips midnight, the most changes of all, and a day left out.
const ZONES: [&str; 6] = ["UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Nuuk", "Asia/Gaza", "Pacific/Apia"];

/// Before all slots, around clock changes of the zones above, at the end of all slots, beyond it.
const INSTANTS: [i64; 8] = [
    -1,
    1_325_242_800,     // 2011-12-30T11:00:00Z: Apia skips the day
    1_774_746_000,     // 2026-03-29T01:00:00Z: Berlin's gap, Nuuk's midnight
    1_775_314_800,     // 2026-04-04T15:00:00Z: Lord Howe's overlap of half an hour
    1_792_890_000,     // 2026-10-25T01:00:00Z: Berlin's overlap
    4_133_980_740,     // 2100-12-31T23:59:00Z
    4_134_067_200,     // 2101-01-02T00:00:00Z
    8_210_266_876_799, // chrono's last second but a few
];

const BORN_AT: i64 = 1_767_225_600; // 2026-01-01T00:00:00Z
const LONGEST_INTERVAL_SECONDS: u64 = 8760 * 3600;
const SLOTS_LOOKED_AT: usize = 4;

fn at(seconds: i64) -> DateTime<Utc> {
    DateTime::from_timestamp(seconds, 0).expect("the constants above are instants")
}

/// Slots end when no local clock reads the last year any more.
pub(super) fn assert_before_the_end(instant: DateTime<Utc>) {
    assert!(instant < at(4_134_067_200), "{instant} lies after {LAST_YEAR}");
}

/// The bytes are an expression; they also choose the zone and the window it is tried in.
pub fn cron(data: &[u8]) -> bool {
    let expression = text(data);
    let sum = data.iter().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    let zone = Zone::parse(ZONES[sum % ZONES.len()]).expect("the zones above are in the database");
    let window = match sum / ZONES.len() % 3 {
        0 => Window::new(at(BORN_AT), None, None),
        1 => Window::new(at(BORN_AT), Some(at(1_774_700_000)), Some(at(1_793_000_000))),
        _ => Window::new(DateTime::<Utc>::MIN_UTC, None, Some(DateTime::<Utc>::MAX_UTC)),
    };
    match Recurrence::parse(&expression, zone.clone(), window) {
        Err(error) => {
            assert_eq!(error.field(), Field::CronExpr, "{error}");
            assert_readable(&error.to_string());
            false
        }
        Ok(recurrence) => {
            assert!(expression.len() <= MAX_EXPRESSION_BYTES && !expression.contains('\0'));
            assert_eq!(recurrence.expression(), expression.trim_ascii());
            let again = Recurrence::parse(recurrence.expression(), zone, window);
            assert_eq!(again.as_ref(), Ok(&recurrence), "what was read is written and read again");
            assert_slots(&recurrence);
            assert_described(&recurrence);
            true
        }
    }
}

/// What words cannot hold is told by its expression, which may be written over several lines.
pub(super) fn assert_described(recurrence: &Recurrence) {
    let told = recurrence.describe();
    assert_readable(&told.replace(recurrence.expression(), "…"));
}

fn assert_slots(recurrence: &Recurrence) {
    let window = recurrence.window();
    for after in INSTANTS.map(at) {
        let mut before = after;
        let slots = Schedule::Cron(recurrence.clone()).upcoming(after, SLOTS_LOOKED_AT);
        for slot in &slots {
            assert!(*slot > before, "{slot} does not come after {before}");
            assert!(window.starts_at().is_none_or(|start| *slot >= start), "{slot} lies before the window");
            assert!(window.ends_at().is_none_or(|end| *slot < end), "{slot} lies behind the window");
            assert_before_the_end(*slot);
            // Memoryless: whoever asks a moment before a slot is told of it.
            assert_eq!(recurrence.next_after(*slot - TimeDelta::nanoseconds(1)), Some(*slot));
            before = *slot;
        }
    }
}

/// The bytes are what stands behind `@every `. Compared with a second reading of the same grammar.
pub fn every(data: &[u8]) -> bool {
    let duration = text(data);
    let born_at = at(BORN_AT);
    let window = Window::new(born_at, None, None);
    let expression = format!("@every {duration}");
    let parsed = Recurrence::parse(&expression, Zone::utc(), window);
    let expected = interval(duration.trim_ascii())
        .filter(|seconds| (1..=LONGEST_INTERVAL_SECONDS).contains(seconds) && expression.len() <= MAX_EXPRESSION_BYTES);
    match (parsed, expected) {
        (Ok(recurrence), Some(seconds)) => {
            let slots = Schedule::Cron(recurrence.clone()).upcoming(born_at, 2);
            let step = TimeDelta::seconds(i64::try_from(seconds).expect("a year's seconds are few"));
            assert_eq!(slots, [born_at + step, born_at + step + step], "{expression:?}");
            assert_described(&recurrence);
            true
        }
        (Err(error), None) => {
            assert_eq!(error.field(), Field::CronExpr);
            assert_readable(&error.to_string());
            false
        }
        (parsed, expected) => panic!("{expression:?} should be {expected:?} seconds, is {parsed:?}"),
    }
}

/// `1h30m` in seconds: digits and a unit, each unit once. Too large for 64 bits is too large.
fn interval(duration: &str) -> Option<u64> {
    let (mut total, mut number, mut units) = (0_u64, None::<u64>, String::new());
    for character in duration.chars() {
        if let Some(digit) = character.to_digit(10) {
            number = Some(number.unwrap_or(0).saturating_mul(10).saturating_add(u64::from(digit)));
            continue;
        }
        let seconds = match character {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        if units.contains(character) {
            return None;
        }
        units.push(character);
        total = total.saturating_add(number.take()?.saturating_mul(seconds));
    }
    (number.is_none() && !units.is_empty()).then_some(total)
}

/// The bytes are a zone's name.
pub fn zone(data: &[u8]) -> bool {
    let name = text(data);
    match Zone::parse(&name) {
        Ok(zone) => {
            assert!(!name.is_empty() && name.len() <= MAX_ZONE_BYTES);
            assert_eq!(zone.name(), name, "one spelling per zone");
            assert_eq!(Zone::parse(zone.name()).as_ref(), Ok(&zone));
            for instant in INSTANTS.map(at) {
                assert_eq!(zone.local(instant), instant, "another reading of the same instant");
                assert!((zone.local(instant).year() - instant.year()).abs() <= 1);
            }
            true
        }
        Err(error) => {
            assert_eq!(error.field(), Field::Timezone);
            let told = error.to_string();
            assert_readable(&told);
            if let Error::ZoneUnknown { got, meant } = error {
                assert!(told.contains(&format!("{got:?}")) && got == name, "{told} does not quote {name:?}");
                let meant = meant.map(Zone::parse);
                assert!(meant.is_none_or(|zone| zone.is_ok()), "{told} proposes what is no zone");
            }
            false
        }
    }
}
