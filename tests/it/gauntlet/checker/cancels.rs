//! What is cancelled stays so.

use uuid::Uuid;

use super::book::{Book, Cancel};

pub fn nothing_cancelled_is_revived(book: &Book<'_>) -> Vec<String> {
    book.cancelled.iter().flat_map(|(id, cancel)| revived(book, *id, *cancel)).collect()
}

fn revived(book: &Book<'_>, id: Uuid, cancel: Cancel) -> Vec<String> {
    let Cancel { answered_at, in_flight } = cancel;
    let mut found = Vec::new();
    if let Some(alarm) = book.alarms.get(&id).filter(|alarm| alarm.status != "cancelled") {
        found.push(format!("alarm {id} was cancelled at {answered_at} and is {}", alarm.status));
    }
    // A claim that stood when it was cancelled may still send its one wake, if the answer said so.
    let after = book.wakes_of(id).filter(|wake| wake.arrived_at > answered_at).count();
    if after > usize::from(in_flight) {
        let said = if in_flight { "one wake" } else { "nothing" };
        found.push(format!(
            "alarm {id} was cancelled at {answered_at} with {said} in flight, and {after} wakes came after"
        ));
    }
    let counted =
        book.attempts_of(id).filter(|one| ["delivered", "retrying", "exhausted"].contains(&one.outcome.as_str()));
    for one in counted {
        // Answered only after the cancel, however early it was sent.
        let mut answers = book.wakes_at(one.delivery_id, one.attempt).filter_map(|wake| wake.reaction).peekable();
        let too_late = answers.peek().is_some() && answers.all(|(_, at)| at > answered_at);
        if one.started_at > answered_at || too_late {
            found.push(format!(
                "alarm {id} was cancelled at {answered_at}, and attempt {} counted as {} all the same",
                one.attempt, one.outcome
            ));
        }
    }
    found
}
