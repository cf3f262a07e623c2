//! What a resource asks of its alarm, held against what the row was made from. The controller's view of a resource may be old: a cache
//! lags, a cluster comes back from a snapshot. What would undo or repeat something is therefore looked at once more, past every cache,
//! before it is done.

/// A version of a resource: as a row remembers it, or as the controller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version<'a> {
    pub generation: i64,
    /// Over everything that defines the alarm.
    pub hash: &'a [u8],
    pub suspended: bool,
    /// The newest request to fire it now.
    pub fire_requested: Option<&'a str>,
    /// Those before it, of a row.
    pub spent: &'a [String],
}

/// How a resource stands to its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// The row says all of it.
    Same,
    /// The resource looks older than the row, or asks for a wake: the API server itself must confirm that this is how it stands.
    Doubtful,
    /// The row is to follow.
    Differs,
}

impl Version<'_> {
    /// The row's version against the resource's. `over`: a row that nothing can pause any more.
    pub fn compare(&self, resource: &Version<'_>, over: bool) -> Comparison {
        let as_suspended = over || self.suspended == resource.suspended;
        let as_defined = self.hash == resource.hash && as_suspended;
        let asks_to_fire = self.is_new_request(resource);
        if asks_to_fire || (self.generation > resource.generation && !as_defined) {
            Comparison::Doubtful
        } else if as_defined && self.generation >= resource.generation {
            Comparison::Same
        } else {
            // Also where only the generation is newer: an older one that says otherwise must not come after it unnoticed.
            Comparison::Differs
        }
    }

    /// Whether the resource asks for a wake that the row knows nothing of. A request that was taken back is none, and neither is one from
    /// before, which a restored cluster shows again.
    pub fn is_new_request(&self, resource: &Version<'_>) -> bool {
        let is_new =
            |request: &str| self.fire_requested != Some(request) && !self.spent.iter().any(|spent| spent == request);
        resource.fire_requested.is_some_and(is_new)
    }

    /// Whether an edit may bring back what is over: not one that an old snapshot of the cluster makes.
    pub fn may_rearm(&self, resource: &Version<'_>) -> bool {
        self.generation <= resource.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: Version<'_> =
        Version { generation: 3, hash: b"a", suspended: false, fire_requested: Some("x"), spent: &[] };

    fn seen(resource: Version<'_>) -> Comparison {
        ROW.compare(&resource, false)
    }

    #[test]
    fn a_resource_that_says_nothing_new_is_the_same() {
        assert_eq!(seen(ROW), Comparison::Same);
        assert_eq!(seen(Version { fire_requested: None, ..ROW }), Comparison::Same, "taken back");
        assert_eq!(seen(Version { generation: 2, ..ROW }), Comparison::Same, "older, and says the same");
    }

    #[test]
    fn what_is_newer_is_followed_even_if_it_says_the_same() {
        assert_eq!(seen(Version { generation: 4, ..ROW }), Comparison::Differs);
        assert_eq!(seen(Version { generation: 4, hash: b"b", ..ROW }), Comparison::Differs);
        assert_eq!(seen(Version { suspended: true, ..ROW }), Comparison::Differs);
        // Labels have no generation of their own.
        assert_eq!(seen(Version { hash: b"b", ..ROW }), Comparison::Differs);
        assert_eq!(
            ROW.compare(&Version { suspended: true, ..ROW }, true),
            Comparison::Same,
            "nothing is left to pause"
        );
    }

    #[test]
    fn what_is_older_and_says_otherwise_and_what_asks_for_a_wake_is_in_doubt() {
        assert_eq!(seen(Version { generation: 2, hash: b"b", ..ROW }), Comparison::Doubtful);
        assert_eq!(seen(Version { generation: 2, suspended: true, ..ROW }), Comparison::Doubtful);
        assert_eq!(seen(Version { fire_requested: Some("y"), ..ROW }), Comparison::Doubtful);
        let spent = ["w".to_owned()];
        let row = Version { spent: &spent, ..ROW };
        assert_eq!(row.compare(&Version { fire_requested: Some("w"), ..ROW }, false), Comparison::Same, "spent before");
        assert!(!ROW.may_rearm(&Version { generation: 2, ..ROW }) && ROW.may_rearm(&ROW));
    }
}
