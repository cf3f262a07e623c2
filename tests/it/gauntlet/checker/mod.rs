//! Reads a history and names every promise that was not kept, each in a sentence.
//!
//! The rules know nothing of the code they judge: they work from the operations the test did, the wakes the router saw, the
//! faults the nemesis made and the two tables, and compute delivery ids and slots by themselves.

mod book;
mod cancels;
mod deliveries;
mod fates;
#[cfg(test)]
mod tests;

use super::history::History;
use book::Book;

/// Every broken promise; none is good.
pub fn violations(history: &History) -> Vec<String> {
    let book = Book::of(history);
    let rules: &[fn(&Book<'_>) -> Vec<String>] = &[
        fates::every_alarm_fired_or_says_why_not,
        fates::every_slot_of_a_series_is_told_once,
        fates::what_was_counted_was_delivered,
        fates::nothing_is_claimed_at_rest,
        fates::nobody_else_is_woken,
        deliveries::no_wake_is_early,
        deliveries::an_occurrence_has_one_delivery_id,
        deliveries::a_repeat_has_a_fault_to_explain_it,
        deliveries::a_second_acceptance_has_a_fault_to_explain_it,
        deliveries::attempts_are_numbered_without_gaps,
        deliveries::what_is_recorded_was_answered,
        deliveries::a_failure_without_an_answer_has_a_fault_to_explain_it,
        deliveries::what_was_sent_is_recorded,
        cancels::nothing_cancelled_is_revived,
    ];
    rules.iter().flat_map(|rule| rule(&book)).collect()
}
