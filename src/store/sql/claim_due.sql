-- Due, oldest first, stamped with a fresh token. $1 worker, $2 most, $3 lease in seconds.
-- Postgres' now() alone decides what is due.
WITH due AS (
    SELECT id
    FROM alarms
    WHERE status = 'active'
      -- Timers have no delivery of their own yet: they wait.
      AND subject = 'agent'
      AND next_fire_at <= now()
      AND (claimed_until IS NULL OR claimed_until <= now())
    ORDER BY next_fire_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE alarms
SET claimed_at = now(), claimed_until = now() + make_interval(secs => $3), claim_token = gen_random_uuid(), claimed_by = $1,
    claims = claims + 1, first_claimed_at = coalesce(first_claimed_at, now())
FROM due
WHERE alarms.id = due.id
RETURNING
    alarms.id, subject, claim_token, schedule_epoch, claimed_at, owner_did, user_id, label, kind, fire_at, cron_expr, timezone,
    starts_at, ends_at, spread, spread_offset, misfire, max_lateness, created_at, conversation_id, wake_message, payload::text AS payload, correlation_id,
    scheduled_for, series_at, failure_count, max_failures, occurrence_missed
