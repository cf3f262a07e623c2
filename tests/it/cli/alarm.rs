//! `chronosd alarm`.

use chronos::{
    domain::alarm::{Draft, Status},
    store::{Store, alarms::Alarm},
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{chronosd, chronosd_on, json_of, refused, told};
use crate::support::{
    Database,
    alarms::{ann, bob, create, draft, execute, in_an_hour, read},
};

fn daily() -> Draft {
    Draft {
        cron_expr: Some("0 9 * * *".to_owned()),
        timezone: Some("Europe/Berlin".to_owned()),
        label: "tea\nnow".to_owned(),
        spread_seconds: Some(60),
        ..draft()
    }
}

/// As if it had failed so many hours ago; a once alarm's instant has passed.
async fn fail(database: &Database, alarm: &Alarm, hours: u8) {
    let failed = format!(
        "UPDATE alarms SET status = 'failed', failure_count = 6, last_error = 'HTTP 503', updated_at = now() - interval '{hours} h',
                fire_at = fire_at - interval '1 day'
         WHERE id = '{}'",
        alarm.id
    );
    execute(&mut database.connect().await, &failed).await;
}

async fn manage(database: &Database, alarm: &Alarm) {
    let manage = format!(
        "UPDATE alarms SET source = 'kubernetes', cluster_id = '{}', resource_uid = gen_random_uuid(), resource_namespace = 'home',
                resource_name = 'tea', resource_generation = 1, definition_hash = '\\x00'
         WHERE id = '{}'",
        Uuid::from_u128(1),
        alarm.id
    );
    execute(&mut database.connect().await, &manage).await;
}

/// The ids of a list, in its order.
async fn listed(database: &Database, arguments: &[&str]) -> Vec<String> {
    let list = told(database, &[&["alarm", "list"], arguments].concat()).await;
    list.lines().skip(1).map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

fn ids(alarms: &[&Alarm]) -> Vec<String> {
    alarms.iter().map(|alarm| alarm.id.to_string()).collect()
}

async fn an_hour_ago(store: &Store) -> String {
    (store.now().await.unwrap() - chrono::TimeDelta::hours(1)).to_rfc3339()
}

#[tokio::test]
async fn the_list_shows_alarms_of_all_owners_newest_first_and_of_whom_one_asks() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let hers = create(&store, &ann(), daily()).await;
    let his = create(&store, &bob(), in_an_hour()).await;
    let old = create(&store, &ann(), in_an_hour()).await;
    let recent = create(&store, &bob(), in_an_hour()).await;
    manage(&database, &hers).await;
    fail(&database, &old, 5).await;
    fail(&database, &recent, 0).await;
    store.pause_if_owned(&bob(), his.id).await.unwrap();

    assert_eq!(listed(&database, &[]).await, ids(&[&recent, &old, &his, &hers]));
    assert_eq!(listed(&database, &["--owner", ann().as_str()]).await, ids(&[&old, &hers]));
    assert_eq!(listed(&database, &["--status", "active,paused"]).await, ids(&[&his, &hers]));
    assert_eq!(listed(&database, &["--failed-since", &an_hour_ago(&store).await]).await, ids(&[&recent]));
    let cut = chronosd_on(&database, &["alarm", "list", "--limit", "2"]).await;
    assert_eq!((cut.code, cut.stdout.lines().count()), (Some(0), 3));
    assert_eq!(cut.stderr, "these are the newest 2; --limit shows more\n");

    let list = told(&database, &["alarm", "list"]).await;
    let rows: Vec<Vec<&str>> =
        list.lines().map(|line| line.split("  ").map(str::trim).filter(|entry| !entry.is_empty()).collect()).collect();
    assert_eq!(rows[0], ["ID", "OWNER", "LABEL", "SCHEDULE", "STATUS", "NEXT", "FAILURES", "LAST ERROR"]);
    assert_eq!(rows[1][3..], ["failed", "-", "6", "HTTP 503"]);
    assert_eq!(rows[3][3..], ["paused by owner", "-", "0"]);
    let next = chronos::domain::rfc3339(hers.next_fire_at);
    assert_eq!(rows[4][1..], [ann().as_str(), "tea now", "0 9 * * * Europe/Berlin", "active", &next, "0"]);
}

#[tokio::test]
async fn programs_get_the_facades_view_with_its_owner() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let payload = r#"{"b": 1.0, "a":[]}"#;
    let alarm = create(&store, &ann(), Draft { payload: Some(payload.to_owned()), ..daily() }).await;
    manage(&database, &alarm).await;
    let ended = chronosd_on(&database, &["alarm", "list", "--json"]).await;
    assert!(ended.stdout.contains(payload), "to the byte: {}", ended.stdout);
    let list = json_of(&ended);
    let shown = json_of(&chronosd_on(&database, &["alarm", "show", &alarm.id.to_string(), "--json"]).await);
    let [listed] = list.as_array().unwrap().as_slice() else { panic!("{list}") };
    let mut expected = listed.clone();
    expected["claim"] = Value::Null;
    assert_eq!(shown, expected);

    let field = |name: &str| listed[name].clone();
    assert_eq!(field("id"), json!(alarm.id));
    assert_eq!(field("owner_did"), json!(ann()));
    assert_eq!(field("label"), "tea\nnow");
    assert_eq!(field("spread_seconds"), 60);
    assert_eq!((field("status"), field("in_flight"), field("paused_by")), (json!("active"), json!(false), json!([])));
    assert_eq!(field("description"), "at 09:00 every day, Europe/Berlin");
    assert_eq!(field("upcoming").as_array().unwrap().len(), 5);
    assert_eq!(field("upcoming")[0], field("next_fire_at"), "the effective instant");
    assert_eq!(field("next_fire_at"), chronos::domain::rfc3339(alarm.next_fire_at));
    assert_eq!(field("resource"), json!({ "cluster": Uuid::from_u128(1), "namespace": "home", "name": "tea" }));
}

#[tokio::test]
async fn show_tells_people_everything_about_one() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarm = create(&store, &ann(), daily()).await;
    manage(&database, &alarm).await;
    let worker = Uuid::from_u128(9);
    let claim = format!(
        "UPDATE alarms SET claimed_at = now(), claimed_until = now() + interval '1 min', claim_token = gen_random_uuid(),
                claimed_by = '{worker}', claims = 2, first_claimed_at = now(), failure_count = 1, last_error = 'HTTP 503'"
    );
    execute(&mut database.connect().await, &claim).await;
    let told = told(&database, &["alarm", "show", &alarm.id.to_string()]).await;
    for line in [
        &format!("alarm {}", alarm.id),
        "  owner         did:matrix:ann:d75a980182b10ab7",
        r#"  label         "tea\nnow""#,
        "  schedule      at 09:00 every day, Europe/Berlin",
        "  status        active",
        r#"  failures      1, at most 5; last error "HTTP 503""#,
        "  fired         0 times, 0 slots missed",
        "  misfire       fire_once, however late",
        r#"  message       "wake up""#,
        "  payload       {}",
        "  key           -",
        &format!("  managed by    the resource Alarm home/tea of cluster {}", Uuid::from_u128(1)),
        "upcoming",
    ] {
        assert!(told.lines().any(|told| told == line), "{line}\n{told}");
    }
    assert!(told.contains(&format!("  in flight     claimed by {worker} at ")), "{told}");
    assert!(told.contains(", claim 2 of this occurrence\n"), "{told}");
    assert!(told.contains("  spread        60 s; it fires "), "{told}");
    assert!(told.contains(&format!(", for the slot {}\n", chronos::domain::rfc3339(alarm.scheduled_for))), "{told}");
    assert_eq!(told.lines().skip_while(|line| *line != "upcoming").count(), 6, "{told}");

    // One that cannot be read is shown all the same.
    execute(&mut database.connect().await, "UPDATE alarms SET timezone = 'Mars/Olympus'").await;
    let told = super::told(&database, &["alarm", "show", &alarm.id.to_string()]).await;
    assert!(told.contains("  unreadable    timezone unknown zone \"Mars/Olympus\""), "{told}");
}

#[tokio::test]
async fn attempts_are_told_with_the_runs_of_slots_that_had_none() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let alarm = create(&store, &ann(), daily()).await;
    let attempts = format!(
        "INSERT INTO attempts (alarm_id, owner_did, scheduled_for, attempt, started_at, duration_ms, outcome, http_status, error,
                               claim_token, delivery_id)
         VALUES ('{id}', 'did', '2026-11-16T09:00:00Z', 1, '2026-11-16T09:00:01Z', 12, 'retrying', 503, 'HTTP 503', '{token}', '{token}');
         INSERT INTO attempts (alarm_id, owner_did, scheduled_for, attempt, started_at, outcome, first_at, last_at, slots, reason)
         VALUES ('{id}', 'did', '2026-11-19T09:00:00Z', 0, '2026-11-19T12:00:00Z', 'skipped', '2026-11-17T09:00:00Z',
                 '2026-11-19T09:00:00Z', 3, 'paused')",
        id = alarm.id,
        token = Uuid::from_u128(7)
    );
    execute(&mut database.connect().await, &attempts).await;
    let id = alarm.id.to_string();
    assert_eq!(
        told(&database, &["alarm", "attempts", &id]).await,
        "STARTED               ATTEMPT  OUTCOME   HTTP  TOOK   FOR                   WHAT\n\
         2026-11-19T12:00:00Z  -        skipped   -     -      2026-11-19T09:00:00Z  3 slots, paused, since 2026-11-17T09:00:00Z\n\
         2026-11-16T09:00:01Z  1        retrying  503   12 ms  2026-11-16T09:00:00Z  HTTP 503\n"
    );
    let programs = json_of(&chronosd_on(&database, &["alarm", "attempts", &id, "--json", "--limit", "1"]).await);
    assert_eq!(
        programs,
        json!([{
            "delivery_id": null, "scheduled_for": "2026-11-19T09:00:00Z", "attempt": 0, "started_at": "2026-11-19T12:00:00Z",
            "duration_ms": 0, "outcome": "skipped", "http_status": null, "error": "", "worker": null,
            "first_at": "2026-11-17T09:00:00Z", "last_at": "2026-11-19T09:00:00Z", "slots": 3, "reason": "paused",
        }])
    );
}

#[tokio::test]
async fn what_nobody_has_is_refused_and_what_is_no_id_or_instant_is_wrong_usage() {
    let database = Database::fresh().await;
    let (id, owner) = (Uuid::from_u128(1).to_string(), ann());
    for verb in ["show", "attempts"] {
        let why = refused(&database, &["alarm", verb, &id]).await;
        assert!(why.starts_with(&format!("chronosd alarm {verb}: no agent's alarm has the id {id}; ")), "{why}");
    }
    let wrong: [(&[&str], &str); 6] = [
        (&["alarm", "show", "tea"], "'<ID>': is no alarm's id, which is a UUID; give the id that"),
        (
            &["alarm", "list", "--failed-since", "2026-11-16"],
            "'--failed-since <T>': is \"2026-11-16\", which is a date without a time",
        ),
        (&["alarm", "list", "--status", "dead"], "is no status; give one of active, paused, fired, cancelled, failed"),
        (&["alarm", "list", "--owner", "ann"], "'--owner <DID>': does not have the form"),
        (&["alarm", "rearm"], "<ID>"),
        (&["alarm", "rearm", &id, "--owner", owner.as_str()], "cannot be used with"),
    ];
    for (arguments, said) in wrong {
        let ended = chronosd(arguments).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
}

#[tokio::test]
async fn after_an_incident_all_that_failed_since_is_armed_again() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let series = create(&store, &ann(), daily()).await;
    let once = create(&store, &bob(), in_an_hour()).await;
    let managed = create(&store, &ann(), daily()).await;
    let before = create(&store, &ann(), daily()).await;
    for (alarm, hours) in [(&series, 0), (&once, 0), (&managed, 0), (&before, 5)] {
        fail(&database, alarm, hours).await;
    }
    manage(&database, &managed).await;
    let since = an_hour_ago(&store).await;
    let rearm = |more: &[&str]| -> Vec<String> {
        ["alarm", "rearm", "--failed-since", &since].iter().chain(more).map(ToString::to_string).collect()
    };
    let run = async |arguments: Vec<String>| {
        chronosd_on(&database, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
    };
    let next = chronos::domain::rfc3339(series.next_fire_at);
    let why = format!(
        "chronosd alarm rearm: {}: the resource Alarm home/tea of cluster {} manages it; edit its schedule there\n\
         chronosd alarm rearm: {}: its instant has passed; give --delay-seconds or --fire-at\n",
        managed.id,
        Uuid::from_u128(1),
        once.id
    );

    let dry = run(rearm(&["--dry-run"])).await;
    assert_eq!((dry.code, dry.stderr.as_str()), (Some(1), why.as_str()));
    assert_eq!(
        dry.stdout,
        format!("{} would be armed, to fire at {next}\n1 alarm would be armed, 2 refused\n", series.id)
    );
    for alarm in [&series, &once, &managed] {
        assert_eq!(read(&store, alarm).await.status, Status::Failed, "nothing was done");
    }

    let done = run(rearm(&[])).await;
    assert_eq!((done.code, done.stderr.as_str()), (Some(1), why.as_str()));
    assert_eq!(done.stdout, format!("{} is armed, and fires at {next}\n1 alarm armed, 2 refused\n", series.id));
    let armed = read(&store, &series).await;
    assert_eq!((armed.status, armed.failure_count, armed.last_error.as_str()), (Status::Active, 0, ""));

    // With an instant for those that need one; a series would go its own way.
    fail(&database, &series, 0).await;
    let done = json_of(&run(rearm(&["--delay-seconds", "600", "--json"])).await);
    let outcomes: Vec<_> = done.as_array().unwrap().iter().map(|one| (&one["id"], &one["armed"])).collect();
    let (series_id, once_id, managed_id) = (json!(series.id), json!(once.id), json!(managed.id));
    let (yes, no) = (json!(true), json!(false));
    assert_eq!(outcomes, [(&managed_id, &no), (&once_id, &yes), (&series_id, &yes)]);
    let armed = read(&store, &once).await;
    let wait = armed.next_fire_at - store.now().await.unwrap();
    assert!((540..=600).contains(&wait.num_seconds()), "{wait}");
    assert_eq!(read(&store, &series).await.next_fire_at, series.next_fire_at);
    assert_eq!(read(&store, &before).await.status, Status::Failed, "it failed before");
}

#[tokio::test]
async fn alarms_are_armed_again_by_their_ids() {
    let database = Database::fresh().await;
    let store = database.store().await;
    let (series, once, living) = (
        create(&store, &ann(), daily()).await,
        create(&store, &bob(), in_an_hour()).await,
        create(&store, &ann(), in_an_hour()).await,
    );
    fail(&database, &series, 0).await;
    store.cancel_if_owned(&bob(), once.id).await.unwrap();
    let [series_id, once_id, living_id] = [&series, &once, &living].map(|alarm| alarm.id.to_string());
    let soon = (store.now().await.unwrap() + chrono::TimeDelta::hours(2)).to_rfc3339();
    let ended = chronosd_on(&database, &["alarm", "rearm", &series_id, &once_id, &living_id, "--fire-at", &soon]).await;
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains(&format!("{series_id}: it follows a cron expression; leave")), "{}", ended.stderr);
    assert!(ended.stderr.contains(&format!("{living_id}: the alarm is active; only one")), "{}", ended.stderr);
    assert!(ended.stdout.ends_with("\n1 alarm armed, 2 refused\n"), "{}", ended.stdout);
    assert_eq!(read(&store, &once).await.next_fire_at.to_rfc3339(), soon);

    let past = refused_instant(&database, &once_id).await;
    assert!(past.contains("the alarm is active"), "{past}");
    told(&database, &["alarm", "rearm", &series_id]).await;
    assert_eq!(read(&store, &series).await.status, Status::Active);
}

async fn refused_instant(database: &Database, id: &str) -> String {
    let ended = chronosd_on(database, &["alarm", "rearm", id, "--fire-at", "2020-01-01T00:00:00Z"]).await;
    assert_eq!(ended.code, Some(1));
    ended.stderr
}
