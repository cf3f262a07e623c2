//! A cluster that is gone for good.

use chronos::{
    domain::alarm::{Cause, Status},
    store::clusters::{Forgot, Forgotten},
};

use super::{
    BLUE, GREEN, RED, ann, comes_back_with_the_next_write, count, create, enrolled, every_minute, everything_of,
    execute, in_an_hour, lines, seen, stored, stored_for, stored_many,
};
use crate::{store::read, support::Database};

#[tokio::test]
async fn forgetting_a_cluster_cancels_its_alarms_removes_its_agents_and_touches_nobody_elses() {
    let database = Database::fresh().await;
    let store = database.store().await;
    seen(&database, &store, BLUE, 180).await;
    seen(&database, &store, RED, 600).await;
    let cora = enrolled(&database, BLUE, "cora").await;
    enrolled(&database, RED, "dora").await;
    let tea = stored(&database, &store, BLUE, "tea", every_minute()).await;
    let cake = stored_for(&database, &store, &cora, BLUE, "cake", in_an_hour()).await;
    let claim = format!(
        "UPDATE alarms SET claimed_at = now(), claimed_until = now() + interval '1 min', claim_token = gen_random_uuid(),
                claimed_by = gen_random_uuid(), claims = 1, first_claimed_at = now() WHERE id = '{}';
         UPDATE alarms SET status = 'paused', paused_by = '{{spec}}' WHERE id = '{}'",
        tea.id, cake.id
    );
    execute(&mut database.connect().await, &claim).await;
    let by_http = create(&store, &cora, in_an_hour()).await;
    let others = create(&store, &ann(), in_an_hour()).await;
    stored(&database, &store, RED, "tea", every_minute()).await;
    let of_red = everything_of(&database, RED).await;

    let forgotten = store.forget_unless_at_work(BLUE).await.unwrap();
    assert_eq!(forgotten, Forgotten::Done(Forgot { alarms: 2, agents: 1, held: 1 }));
    for alarm in [&tea, &cake] {
        let alarm = read(&store, alarm).await;
        assert_eq!((alarm.status, alarm.cancelled_by.as_deref()), (Status::Cancelled, Some("cluster")));
        assert!(!alarm.in_flight, "its wake is fenced");
    }
    assert_eq!(store.find_agent(&cora).await.unwrap(), None);
    assert_eq!(read(&store, &by_http).await.paused_by(), [Cause::Agent], "as of any removed agent");
    assert_eq!(read(&store, &others).await.status, Status::Active);
    assert_eq!(everything_of(&database, RED).await, of_red);
    assert_eq!(lines(&store).await, [RED]);

    let again = store.forget_unless_at_work(BLUE).await.unwrap();
    assert_eq!(again, Forgotten::Done(Forgot::default()), "rows still name it");
    assert_eq!(store.forget_unless_at_work(GREEN).await.unwrap(), Forgotten::Unknown);
}

#[tokio::test]
async fn a_cluster_whose_controller_was_just_seen_is_not_forgotten() {
    let database = Database::fresh().await;
    let store = database.store().await;
    seen(&database, &store, BLUE, 160).await;
    stored(&database, &store, BLUE, "tea", every_minute()).await;
    enrolled(&database, BLUE, "bob").await;
    let before = everything_of(&database, BLUE).await;
    let Forgotten::AtWork { seen_ago, so_far } = store.forget_unless_at_work(BLUE).await.unwrap() else { panic!() };
    assert_eq!((seen_ago.num_seconds() / 10, so_far), (16, Forgot::default()));
    assert_eq!(everything_of(&database, BLUE).await, before);
}

#[tokio::test]
async fn a_cluster_that_comes_back_while_it_is_forgotten_keeps_what_it_still_has() {
    let database = Database::fresh().await;
    let store = database.store().await;
    seen(&database, &store, BLUE, 600).await;
    stored_many(&database, BLUE, 450).await;
    enrolled(&database, BLUE, "bob").await;
    comes_back_with_the_next_write(&database, BLUE).await;
    let Forgotten::AtWork { so_far, .. } = store.forget_unless_at_work(BLUE).await.unwrap() else { panic!() };
    assert_eq!(so_far, Forgot { alarms: 200, agents: 0, held: 0 }, "one batch");
    assert_eq!(count(&database, "status = 'active'").await, 250);
    assert_eq!(lines(&store).await, [BLUE]);
}

#[tokio::test]
async fn what_a_forgetting_that_was_cut_off_left_is_finished_by_the_next() {
    let database = Database::fresh().await;
    let store = database.store().await;
    seen(&database, &store, BLUE, 600).await;
    stored_many(&database, BLUE, 450).await;
    let bobs = enrolled(&database, BLUE, "bob").await;
    let by_http = create(&store, &bobs, in_an_hour()).await;
    // Half of the alarms are cancelled, and the agent is suspended, its alarm not yet paused.
    execute(
        &mut database.connect().await,
        "UPDATE alarms SET status = 'cancelled', cancelled_by = 'cluster' WHERE resource_name LIKE 'tea-1%';
         UPDATE agents SET suspended = true",
    )
    .await;
    let half = count(&database, "status = 'cancelled'").await.unsigned_abs();
    let forgotten = store.forget_unless_at_work(BLUE).await.unwrap();
    assert_eq!(forgotten, Forgotten::Done(Forgot { alarms: 450 - half, agents: 1, held: 1 }));
    assert_eq!(count(&database, "cancelled_by = 'cluster'").await, 450);
    assert_eq!(read(&store, &by_http).await.paused_by(), [Cause::Agent]);
    assert_eq!(lines(&store).await, []);
    assert_eq!(store.find_agent(&bobs).await.unwrap(), None);
}
