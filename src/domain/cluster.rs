//! Clusters come and go: whether one is still at work, which one takes the place of one that is gone, and what becomes of each alarm
//! that is handed over. A cluster that was built anew has another id, and to it the alarms of the one before are a stranger's.

use chrono::{DateTime, TimeDelta, Utc};

use super::ids::{AlarmId, ClusterId};

/// A controller says once a minute that it is at work. Who has not been heard three times in a row has stopped, or cannot reach the
/// database, and so changes nothing in it.
pub const SILENCE: TimeDelta = TimeDelta::minutes(3);

/// Whether a controller was seen so lately that it may still be there. One that was seen in the future was seen just now.
pub fn is_at_work(last_seen: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    now - last_seen < SILENCE
}

/// Why nobody takes a cluster's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoHeir {
    /// The one that is named is the cluster itself.
    Itself,
    /// No controller of the one that is named was ever seen.
    NeverSeen(ClusterId),
    /// None is named, and no other is at work.
    NoneAtWork,
    /// None is named, and these are at work.
    Several(Vec<ClusterId>),
}

/// The cluster that takes the place of `old`: the one that is named, or else the only other one at work. `seen` are all clusters with
/// when their controllers were last seen.
pub fn heir(
    old: ClusterId,
    named: Option<ClusterId>,
    seen: &[(ClusterId, DateTime<Utc>)],
    now: DateTime<Utc>,
) -> Result<ClusterId, NoHeir> {
    if let Some(named) = named {
        return match seen.iter().any(|(cluster, _)| *cluster == named) {
            _ if named == old => Err(NoHeir::Itself),
            true => Ok(named),
            false => Err(NoHeir::NeverSeen(named)),
        };
    }
    let others = seen.iter().filter(|(cluster, last_seen)| *cluster != old && is_at_work(*last_seen, now));
    let others: Vec<ClusterId> = others.map(|(cluster, _)| *cluster).collect();
    match others.as_slice() {
        [] => Err(NoHeir::NoneAtWork),
        [only] => Ok(*only),
        [_, _, ..] => Err(NoHeir::Several(others)),
    }
}

/// An alarm of a resource, as far as handing it over is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub id: AlarmId,
    pub owner: String,
    pub living: bool,
    pub created_at: DateTime<Utc>,
    /// It was handed over, and no resource has taken it yet.
    pub waits: bool,
}

/// What becomes of the alarm that stands for the resource of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handing {
    /// It goes over and waits for the resource of its name.
    Waits(AlarmId),
    /// The resource was stored anew already, before anybody adopted: it takes the place of that one.
    Replaces { old: AlarmId, new: AlarmId },
    /// It stays where it is.
    Stays(Stays),
}

/// Why an alarm is not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// The alarm of that name in the new cluster is somebody else's.
    AnotherOwner,
    /// One of that name was handed over before, from elsewhere, and still waits for its resource.
    AnotherWaits,
}

/// Decides about one namespace and name: `of_old` and `of_new` are its alarms in either cluster, without those that were cancelled
/// with their resource or their cluster. `None`: there is nothing to hand over.
pub fn hand_over(of_old: &[Stored], of_new: &[Stored]) -> Option<Handing> {
    let old = foremost(of_old)?;
    Some(match foremost(of_new) {
        None => Handing::Waits(old.id),
        Some(new) if new.owner != old.owner => Handing::Stays(Stays::AnotherOwner),
        Some(new) if new.waits => Handing::Stays(Stays::AnotherWaits),
        Some(new) => Handing::Replaces { old: old.id, new: new.id },
    })
}

/// The one that stands for the resource. The others of its name are over, of resources that were deleted after they were: a name has
/// one living alarm, and the newest resource the newest.
fn foremost(stored: &[Stored]) -> Option<&Stored> {
    stored.iter().max_by_key(|stored| (stored.living, stored.created_at, stored.id))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const BLUE: ClusterId = ClusterId::from_uuid(Uuid::from_u128(1));
    const GREEN: ClusterId = ClusterId::from_uuid(Uuid::from_u128(2));
    const RED: ClusterId = ClusterId::from_uuid(Uuid::from_u128(3));

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
    }

    fn stored(id: u128, living: bool, created: i64) -> Stored {
        let id = AlarmId::from_uuid(Uuid::from_u128(id));
        Stored { id, owner: "ann".to_owned(), living, created_at: at(created), waits: false }
    }

    #[test]
    fn who_was_not_heard_for_three_minutes_is_not_at_work() {
        assert!(is_at_work(at(0), at(0)));
        assert!(is_at_work(at(0), at(179)));
        assert!(!is_at_work(at(0), at(180)));
        assert!(is_at_work(at(5), at(0)), "seen just now");
    }

    #[test]
    fn a_cluster_that_is_named_takes_the_place_if_it_was_ever_seen() {
        let seen = [(BLUE, at(0)), (GREEN, at(0))];
        assert_eq!(heir(BLUE, Some(GREEN), &seen, at(9000)), Ok(GREEN));
        assert_eq!(heir(BLUE, Some(BLUE), &seen, at(9000)), Err(NoHeir::Itself));
        assert_eq!(heir(BLUE, Some(RED), &seen, at(9000)), Err(NoHeir::NeverSeen(RED)));
    }

    #[test]
    fn the_only_other_cluster_at_work_takes_the_place() {
        let seen = [(BLUE, at(8999)), (GREEN, at(8990)), (RED, at(0))];
        assert_eq!(heir(BLUE, None, &seen, at(9000)), Ok(GREEN));
        assert_eq!(heir(RED, None, &seen, at(9000)), Err(NoHeir::Several(vec![BLUE, GREEN])));
        assert_eq!(heir(BLUE, None, &seen, at(99_000)), Err(NoHeir::NoneAtWork));
    }

    #[test]
    fn an_alarm_waits_for_its_resource_or_replaces_what_that_was_stored_as() {
        let (old, new) = (stored(1, true, 0), stored(2, true, 9));
        assert_eq!(hand_over(&[], std::slice::from_ref(&new)), None);
        assert_eq!(hand_over(std::slice::from_ref(&old), &[]), Some(Handing::Waits(old.id)));
        let replaces = Handing::Replaces { old: old.id, new: new.id };
        assert_eq!(hand_over(std::slice::from_ref(&old), std::slice::from_ref(&new)), Some(replaces));
        let others = Stored { owner: "bob".to_owned(), ..new.clone() };
        assert_eq!(hand_over(std::slice::from_ref(&old), &[others]), Some(Handing::Stays(Stays::AnotherOwner)));
        let waiting = Stored { waits: true, ..new };
        assert_eq!(hand_over(&[old], &[waiting]), Some(Handing::Stays(Stays::AnotherWaits)));
    }

    #[test]
    fn of_several_alarms_of_one_name_the_living_one_stands_for_the_resource_else_the_newest() {
        let (fired, newer, living) = (stored(9, false, 0), stored(3, false, 5), stored(1, true, 2));
        let rows = [fired.clone(), living.clone(), newer.clone()];
        assert_eq!(hand_over(&rows, &[]), Some(Handing::Waits(living.id)));
        assert_eq!(hand_over(&[fired, newer.clone()], &[]), Some(Handing::Waits(newer.id)));
    }
}
