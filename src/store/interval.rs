//! Durations as Postgres keeps them.

use chrono::TimeDelta;
use sqlx::postgres::types::PgInterval;

/// In microseconds alone: months and days have no fixed length.
pub(super) fn interval(duration: TimeDelta) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: duration.num_microseconds().unwrap_or(i64::MAX) }
}

/// What somebody wrote into the column by hand may have days; months mean nothing here.
pub(super) fn duration(interval: &PgInterval) -> Result<TimeDelta, String> {
    if interval.months != 0 {
        return Err(format!("holds {} months, which have no fixed length", interval.months));
    }
    TimeDelta::days(i64::from(interval.days))
        .checked_add(&TimeDelta::microseconds(interval.microseconds))
        .ok_or_else(|| "is longer than a duration can be".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_finds_its_way_back_and_months_are_refused() {
        let span = TimeDelta::microseconds(86_400_000_001);
        assert_eq!(duration(&interval(span)), Ok(span));
        assert_eq!(duration(&PgInterval { months: 0, days: 1, microseconds: 1 }), Ok(span));
        assert!(duration(&PgInterval { months: 1, days: 0, microseconds: 0 }).is_err());
    }
}
