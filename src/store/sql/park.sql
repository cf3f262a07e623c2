-- Rows with which nothing can be done: $1 alarm, $2 token, $3 why. $4 how long a timer waits, in seconds. $5 the channel of hints.
-- $6 worker. An alarm that is given up here leaves its slot in the history, too; a timer is not given up.
WITH parked AS (
    UPDATE alarms
    SET status = CASE WHEN subject = 'agent' THEN 'failed' ELSE status END,
        paused_by = CASE WHEN subject = 'agent' THEN '{}' ELSE paused_by END,
        next_fire_at = CASE WHEN subject = 'agent' THEN next_fire_at ELSE now() + make_interval(secs => $4) END,
        last_error = poison.why, updated_at = now(),
        claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, first_claimed_at = NULL
    FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS poison (id, token, why)
    WHERE alarms.id = poison.id AND alarms.claim_token = poison.token AND alarms.status IN ('active', 'paused')
    RETURNING alarms.id, poison.token, subject, owner_did, scheduled_for, poison.why, source, cluster_id, resource_namespace, resource_name
), told AS (
    INSERT INTO attempts (
        alarm_id, claim_token, owner_did, scheduled_for, attempt, started_at, outcome, error, first_at, last_at, slots, reason, worker)
    SELECT id, token, owner_did, scheduled_for, 0, now(), 'missed', left(why, 300), scheduled_for, scheduled_for, 1, 'parked', $6
    FROM parked WHERE subject = 'agent' AND isfinite(scheduled_for)
    ON CONFLICT DO NOTHING
)
SELECT pg_notify($5, concat_ws('/', cluster_id, resource_namespace, resource_name)) FROM parked WHERE source = 'kubernetes'
