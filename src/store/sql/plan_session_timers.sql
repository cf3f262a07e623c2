-- A session's timers, made or planned anew by their keys. $1 owner, $2 user, $3 session, $4 conversation. $5 timer, $6 due, $7 payload:
-- each timer once. The caller holds the session's lock, and has locked the timers that exist.
-- Planned anew means: a new epoch, no claim, no failures, not over. Counters of what it did before stay.
WITH planned AS (
    INSERT INTO alarms (
        owner_did, user_id, subject, source, session_key, timer_id, correlation_id, conversation_id,
        kind, fire_at, scheduled_for, next_fire_at, payload)
    -- What is past is due now, like what becomes due this moment: not before everybody else's.
    SELECT $1, $2, 'session', 'session', $3, timer_id, $3, $4, 'once', fire_at, fire_at, greatest(fire_at, now()), payload::json
    FROM unnest($5::text[], $6::timestamptz[], $7::text[]) AS timer (timer_id, fire_at, payload)
    ON CONFLICT (session_key, timer_id) WHERE session_key IS NOT NULL DO UPDATE
    SET fire_at = excluded.fire_at, scheduled_for = excluded.fire_at, next_fire_at = excluded.next_fire_at,
        payload = excluded.payload,
        status = 'active', cancelled_by = NULL, last_fired_at = NULL,
        schedule_epoch = alarms.schedule_epoch + 1,
        revision = alarms.revision + 1,
        failure_count = 0, last_error = '', claims = 0, first_claimed_at = NULL,
        claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL,
        updated_at = now()
)
SELECT now()
