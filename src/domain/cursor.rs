//! Where a page of a list ended. Opaque to callers, so that it may change; stable under inserts, because it names a
//! row's place in the order instead of counting rows.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, Datelike, Utc};
use thiserror::Error;
use uuid::Uuid;

/// The last row that was handed out, in an order of instant and id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub at: DateTime<Utc>,
    pub id: Uuid,
}

/// A page of at most `limit` rows out of one row more than that, which says whether another page follows, and where that one
/// begins. `place` is a row's place in the order.
pub fn page<T>(mut rows: Vec<T>, limit: i64, place: impl Fn(&T) -> Cursor) -> (Vec<T>, Option<Cursor>) {
    let most = usize::try_from(limit).unwrap_or(0);
    let more = rows.len() > most;
    rows.truncate(most);
    let next = rows.last().filter(|_| more).map(place);
    (rows, next)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("is no cursor; pass next_cursor of the page before, unchanged")]
pub struct NoCursor;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.at.timestamp_micros().to_be_bytes());
        bytes[8..].copy_from_slice(self.id.as_bytes());
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl FromStr for Cursor {
    type Err = NoCursor;

    fn from_str(text: &str) -> Result<Self, NoCursor> {
        let bytes: [u8; 24] = URL_SAFE_NO_PAD.decode(text).map_err(|_| NoCursor)?.try_into().map_err(|_| NoCursor)?;
        let (micros, id) = bytes.split_at(8);
        let micros = i64::from_be_bytes(micros.try_into().map_err(|_| NoCursor)?);
        // Rows are from this century; a forged instant that Postgres cannot hold must not become its error.
        let at =
            DateTime::from_timestamp_micros(micros).filter(|at| (1970..=2100).contains(&at.year())).ok_or(NoCursor)?;
        Ok(Self { at, id: Uuid::from_slice(id).map_err(|_| NoCursor)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_followed_by_another_only_if_there_is_a_row_for_it() {
        let place = |id: &u128| Cursor { at: DateTime::UNIX_EPOCH, id: Uuid::from_u128(*id) };
        assert_eq!(page(vec![1, 2, 3], 2, place), (vec![1, 2], Some(place(&2))));
        assert_eq!(page(vec![1, 2], 2, place), (vec![1, 2], None));
        assert_eq!(page(vec![], 2, place), (vec![], None));
    }

    #[test]
    fn a_cursor_survives_its_journey_and_anything_else_is_refused() {
        let cursor = Cursor { at: "2026-11-16T12:00:00.123456Z".parse().unwrap(), id: Uuid::from_u128(7) };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for text in ["", "x", "AAAA", &format!("{cursor}A"), &"_".repeat(32), "é"] {
            assert_eq!(text.parse::<Cursor>().map(|found| found.to_string()).unwrap_or_default(), "", "{text}");
        }
    }
}
