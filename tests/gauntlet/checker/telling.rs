//! Which calls, rows and wakes belong together.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{
    book::{About, Book},
    faults::Undoes,
    sent::To,
    stories::{Story, Timers, body, definition_in, id_in, session_in},
};
use crate::log::{Asked, Call};

/// Where stories are found.
#[derive(Default)]
struct Index<'a> {
    labels: HashMap<&'a str, usize>,
    resources: HashMap<&'a str, usize>,
    /// Owner and name.
    calls: HashMap<(&'a str, &'a str), usize>,
}

pub fn tell(book: &mut Book<'_>) {
    let mut index = Index::default();
    for call in &book.log.calls {
        begin_story(book, &mut index, call);
        begin_timers(book, &mut index, call);
    }
    add_rows(book, &index);
    add_wakes(book, &index);
    add_deleted_timers(book);
    for call in &book.log.calls {
        if let Some(story) = story_of(book, &index, call) {
            book.stories[story].calls.push(call);
        }
    }
    for (id, about) in &book.by_id {
        match about {
            About::Story(story) => drop(book.stories[*story].ids.insert(*id)),
            About::Timers(timers) => drop(book.timers[*timers].ids.insert(*id)),
            About::Session(_) | About::Else(_) => {}
        }
    }
    for story in &mut book.stories {
        story.calls.sort_by_key(|call| (call.asked_at, call.number));
    }
    for place in 0..book.stories.len() {
        let story = &book.stories[place];
        let objects = story.resource.is_some() && book.calls_undone(Undoes::Objects, &story.calls);
        book.stories[place].undone = objects || book.calls_undone(Undoes::Rows, &book.stories[place].calls);
    }
    book.sessions_undone = sessions_undone(book);
    for place in 0..book.timers.len() {
        book.timers[place].undone = book.calls_undone(Undoes::Rows, &book.timers[place].calls);
    }
}

fn sessions_undone(book: &Book<'_>) -> BTreeSet<String> {
    let said = book.log.calls.iter().filter(|call| book.call_undone(Undoes::Rows, call));
    let said = said.filter_map(|call| session_in(&call.asked)).map(str::to_owned);
    let told = book.wakes.iter().filter(|sent| book.is_undone(Undoes::Rows, sent.scheduled_for, sent.at()));
    let told = told.filter_map(|sent| sent.session.as_ref()).map(|(session, _, _)| session.clone());
    said.chain(told).collect()
}

/// A call that makes or edits an alarm has its label.
fn begin_story<'a>(book: &mut Book<'a>, index: &mut Index<'a>, call: &'a Call) {
    let Some(definition) = definition_in(call) else { return };
    let resource = if let Asked::Apply { name, .. } = &call.asked { Some(name.as_str()) } else { None };
    let place = *index.labels.entry(&definition.label).or_insert_with(|| {
        book.stories.push(Story::new(&definition.label, &call.owner, resource));
        book.stories.len() - 1
    });
    book.stories[place].calls.push(call);
    if let Some(resource) = resource {
        index.resources.insert(resource, place);
    }
    let makes = matches!(call.asked, Asked::Create { .. } | Asked::Put { .. });
    if let Some(id) = body(call).and_then(id_in).filter(|_| makes) {
        book.by_id.insert(id, About::Story(place));
    }
}

fn begin_timers<'a>(book: &mut Book<'a>, index: &mut Index<'a>, call: &'a Call) {
    let (Asked::Register { call: name } | Asked::Timer { call: name, .. } | Asked::Deregister { call: name }) =
        &call.asked
    else {
        return;
    };
    let place = *index.calls.entry((&call.owner, name)).or_insert_with(|| {
        book.timers.push(Timers::new(&call.owner, name));
        book.timers.len() - 1
    });
    book.timers[place].calls.push(call);
}

fn add_rows(book: &mut Book<'_>, index: &Index<'_>) {
    for (place, row) in book.rows.iter().enumerate() {
        let about = match row.subject.as_str() {
            "agent" => index.labels.get(row.label.as_str()).copied().map(About::Story),
            "service_call" => {
                let call = row.service_call_id.as_deref().unwrap_or_default();
                index.calls.get(&(row.owner_did.as_str(), call)).copied().map(About::Timers)
            }
            _ => row.session_key.clone().map(About::Session),
        };
        match &about {
            Some(About::Story(story)) => book.stories[*story].rows.push(place),
            Some(About::Timers(timers)) => book.timers[*timers].row = Some(place),
            Some(About::Session(_) | About::Else(_)) | None => {}
        }
        if let Some(about) = about {
            book.by_id.insert(row.id, about);
        }
    }
}

fn known_story(book: &Book<'_>, id: Uuid) -> Option<usize> {
    if let Some(About::Story(story)) = book.by_id.get(&id) { Some(*story) } else { None }
}

fn add_wakes(book: &mut Book<'_>, index: &Index<'_>) {
    for (place, sent) in book.wakes.iter().enumerate() {
        match sent.to {
            To::Agent => {
                let known = sent.alarm.and_then(|id| known_story(book, id));
                // By its label: of an alarm whose creation nobody answered, and that is not there any more.
                let Some(story) = known.or_else(|| index.labels.get(sent.label.as_str()).copied()) else { continue };
                book.stories[story].wakes.push(place);
                if let Some(id) = sent.alarm {
                    book.by_id.entry(id).or_insert(About::Story(story));
                }
            }
            To::ServiceCall => {
                let call = sent.call.as_deref().unwrap_or_default();
                let Some(timers) = index.calls.get(&(sent.owner.as_str(), call)).copied() else { continue };
                book.timers[timers].wakes.push(place);
                // A call that was deregistered has no row any more: its attempts are found by what they sent.
                for one in book.tries.get(&sent.delivery).into_iter().flatten() {
                    book.by_id.entry(book.attempts[*one].alarm_id).or_insert(About::Timers(timers));
                }
            }
            To::Session => {}
        }
    }
}

/// A timer that was deleted before anything was sent: its trace says whose it was and when it was due.
fn add_deleted_timers(book: &mut Book<'_>) {
    let mut due: HashMap<(&str, DateTime<Utc>), usize> = HashMap::new();
    for (place, timers) in book.timers.iter().enumerate() {
        due.extend(timers.commands().map(|(_, due_at, _)| ((timers.owner, due_at), place)));
    }
    for one in book.attempts.iter().filter(|one| one.reason.as_deref() == Some("deleted")) {
        if let Some(timers) = due.get(&(one.owner_did.as_str(), one.scheduled_for)) {
            book.by_id.entry(one.alarm_id).or_insert(About::Timers(*timers));
        }
    }
}

/// What was asked of an alarm by its id, or of a resource by its name.
fn story_of(book: &Book<'_>, index: &Index<'_>, call: &Call) -> Option<usize> {
    if let Asked::Delete { name } = &call.asked {
        return index.resources.get(name.as_str()).copied();
    }
    let (Asked::Cancel { id } | Asked::Pause { id } | Asked::Resume { id } | Asked::Rearm { id, .. }) = &call.asked
    else {
        return None;
    };
    known_story(book, *id)
}
