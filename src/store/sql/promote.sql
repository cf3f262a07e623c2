-- Timers of sessions become events. $1 alarm, $2 token, $3 epoch: the fence. $4 event, $5 its payload. $6 checkpoint, $7 payload,
-- $8 dedupe key: the wake that follows. $9 delivery, $10 number, $11 started, $12 milliseconds: the attempt. $13 worker.
-- The sessions are locked, and this statement is a later one than that: last_seq is as it is now.
WITH result AS (
    SELECT * FROM unnest(
        $1::uuid[], $2::uuid[], $3::bigint[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::uuid[], $10::int[],
        $11::timestamptz[], $12::bigint[]
    ) AS result (
        id, token, epoch, event_id, event_payload, checkpoint_id, told, dedupe_key, delivery_id, attempt, started_at, duration_ms)
), promoted AS (
    UPDATE alarms
    SET status = 'fired', next_fire_at = scheduled_for, failure_count = 0, last_error = '',
        fired_count = fired_count + 1, last_fired_at = now(), updated_at = now(),
        claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, first_claimed_at = NULL
    FROM result
    WHERE alarms.id = result.id
      AND alarms.claim_token = result.token AND alarms.schedule_epoch = result.epoch AND alarms.status = 'active'
    RETURNING alarms.session_key, alarms.owner_did, alarms.scheduled_for, result.*
), numbered AS (
    SELECT promoted.*,
           sessions.last_seq + row_number() OVER (PARTITION BY promoted.session_key ORDER BY promoted.scheduled_for, promoted.id) AS seq
    FROM promoted JOIN sessions USING (session_key)
), counted AS (
    UPDATE sessions SET last_seq = newest.seq
    FROM (SELECT session_key, max(seq) AS seq FROM numbered GROUP BY session_key) AS newest
    WHERE sessions.session_key = newest.session_key
), logged AS (
    INSERT INTO events (session_key, seq, id, type, payload, created_at)
    SELECT session_key, seq, event_id, 'timer', event_payload::json, clock_timestamp() FROM numbered ORDER BY session_key, seq
), outbox AS (
    INSERT INTO effects (session_key, checkpoint_id, event_seq, position, type, payload, dedupe_key, wakes_did, not_before)
    SELECT session_key, checkpoint_id, seq, 0, 'wake', told::json, dedupe_key, owner_did, now() FROM numbered
), attempted AS (
    INSERT INTO attempts (
        alarm_id, claim_token, owner_did, delivery_id, scheduled_for, attempt, started_at, duration_ms, outcome, worker)
    SELECT id, token, owner_did, delivery_id, scheduled_for, attempt, started_at, duration_ms, 'delivered', $13 FROM promoted
)
SELECT token FROM promoted
