//! Everything the log has about one thing, in order of time, one line each.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::{
    book::{About, Book},
    stories::session_in,
};
use crate::log::{Answer, Call, Fault};

const AROUND: TimeDelta = TimeDelta::seconds(5);
/// More than this nobody reads: the middle is left out.
const MOST: usize = 300;

type Line = (DateTime<Utc>, String);

pub fn of(book: &Book<'_>, about: &About) -> Vec<String> {
    let mut lines: Vec<Line> = Vec::new();
    match about {
        About::Story(story) => {
            let story = &book.stories[*story];
            story.calls.iter().for_each(|call| called(call, &mut lines));
            story.wakes.iter().for_each(|wake| woken(book, *wake, &mut lines));
            story.ids.iter().for_each(|id| tried(book, *id, &mut lines));
            story.rows.iter().for_each(|row| lines.push((book.log.end.read_at, format!("row {:?}", book.rows[*row]))));
            for resource in book.log.end.resources.iter().filter(|_| story.resource.is_some()) {
                if resource.pointer("/metadata/name").and_then(serde_json::Value::as_str) == story.resource {
                    lines.push((book.log.end.read_at, format!("resource {resource}")));
                }
            }
        }
        About::Timers(timers) => {
            let timers = &book.timers[*timers];
            timers.calls.iter().for_each(|call| called(call, &mut lines));
            timers.wakes.iter().for_each(|wake| woken(book, *wake, &mut lines));
            timers.ids.iter().for_each(|id| tried(book, *id, &mut lines));
            timers.row.iter().for_each(|row| lines.push((book.log.end.read_at, format!("row {:?}", book.rows[*row]))));
        }
        About::Session(key) => session(book, key, &mut lines),
        About::Else(text) => return text.lines().map(str::to_owned).collect(),
    }
    lines.sort();
    let mut faults: Vec<&Fault> = Vec::new();
    for fault in book.faults.struck() {
        let (from, until) = (fault.planned_at - AROUND, fault.over_at.unwrap_or(book.log.end.read_at) + AROUND);
        let first = lines.partition_point(|(at, _)| *at < from);
        if lines.get(first).is_some_and(|(at, _)| *at <= until && *at < book.log.end.read_at) {
            faults.push(fault);
        }
    }
    for fault in faults {
        let name =
            format!("fault {} {} on {}", fault.number, fault.kind.name(), fault.target.as_deref().unwrap_or("all"));
        lines.push((fault.planned_at, format!("{name}: planned")));
        lines.extend(fault.struck_at.map(|at| (at, format!("{name}: struck {}", fault.detail))));
        lines.extend(fault.over_at.map(|at| (at, format!("{name}: over"))));
    }
    lines.sort();
    let mut lines: Vec<String> =
        lines.into_iter().map(|(at, line)| format!("{} {line}", at.format("%H:%M:%S%.6f"))).collect();
    if lines.len() > MOST {
        let left_out = lines.len() - MOST;
        lines.splice(MOST / 3..MOST / 3 + left_out, [format!("… {left_out} lines left out …")]);
    }
    lines
}

fn called(call: &Call, lines: &mut Vec<Line>) {
    let asked = serde_json::to_string(&call.asked).unwrap_or_default();
    lines.push((call.asked_at, format!("call {} by {} via {}: {asked}", call.number, call.owner, call.via)));
    let answered_at = call.answered_at.unwrap_or(call.asked_at);
    let answer = match &call.answer {
        Answer::Done { status, body } => format!("{status} {body}"),
        Answer::Refused { status, body } => format!("refused, {status} {body}"),
        Answer::Unknown { why } => format!("unknown: {why}"),
    };
    lines.push((answered_at, format!("call {} answered: {answer}", call.number)));
}

fn woken(book: &Book<'_>, place: usize, lines: &mut Vec<Line>) {
    let sent = &book.wakes[place];
    let wake = sent.wake;
    let number = sent.number.map_or(String::new(), |number| format!(" attempt {number}"));
    lines.push((
        wake.arrived_at,
        format!(
            "wake {} from {}: delivery {} for {}{number}",
            wake.number, wake.replica, sent.delivery, sent.scheduled_for
        ),
    ));
    if let Some((reaction, at)) = wake.reaction {
        lines.push((at, format!("wake {}: {reaction:?}", wake.number)));
    }
}

fn tried(book: &Book<'_>, id: Uuid, lines: &mut Vec<Line>) {
    for one in book.attempts_of(id) {
        let worker = one.worker.and_then(|worker| book.workers.get(&worker)).map_or("?", String::as_str);
        let what = if one.is_try() {
            format!("attempt {} for {} by {worker}", one.attempt, one.scheduled_for)
        } else {
            let (first, last) = (one.first_at.unwrap_or(one.scheduled_for), one.last_at.unwrap_or(one.scheduled_for));
            format!(
                "run of {} slots, {first} to {last} ({})",
                one.slots.unwrap_or(0),
                one.reason.as_deref().unwrap_or_default()
            )
        };
        let status = one.http_status.map_or(String::new(), |status| format!(" HTTP {status}"));
        lines.push((one.started_at, format!("{what}: {}{status}, {} ms {}", one.outcome, one.duration_ms, one.error)));
    }
}

fn session(book: &Book<'_>, key: &str, lines: &mut Vec<Line>) {
    book.log.calls.iter().filter(|call| session_in(&call.asked) == Some(key)).for_each(|call| called(call, lines));
    for frame in book.log.frames.iter().filter(|frame| frame.session == key) {
        lines.push((frame.at, format!("frame over connection {}: {}", frame.connection, frame.frame)));
    }
    for event in book.events.iter().filter(|event| event.session_key == key) {
        lines.push((event.created_at, format!("event {} {} {} {}", event.seq, event.r#type, event.id, event.payload)));
    }
    for effect in book.effects.iter().filter(|effect| effect.session_key == key) {
        let counted = effect.counted_at.map_or(String::new(), |at| format!(", counted at {at}"));
        lines.push((
            effect.created_at,
            format!(
                "effect {} {} of {} for event {}: {} {:?}, send {:?}{counted}",
                effect.id,
                effect.r#type,
                effect.checkpoint_id,
                effect.event_seq,
                effect.status,
                effect.reason,
                effect.send_seq
            ),
        ));
    }
    for (place, sent) in book.wakes.iter().enumerate() {
        if sent.session.as_ref().is_some_and(|(session, _, _)| session == key) {
            woken(book, place, lines);
        }
    }
    for row in book.rows.iter().filter(|row| row.session_key.as_deref() == Some(key)) {
        tried(book, row.id, lines);
        lines.push((book.log.end.read_at, format!("row {row:?}")));
    }
}
