-- Rows with which nothing can be done: $1 alarm, $2 token, $3 why. $4 how long a timer waits, in seconds. $5 the channel of hints.
WITH parked AS (
    UPDATE alarms
    SET status = CASE WHEN subject = 'agent' THEN 'failed' ELSE status END,
        paused_by = CASE WHEN subject = 'agent' THEN '{}' ELSE paused_by END,
        next_fire_at = CASE WHEN subject = 'agent' THEN next_fire_at ELSE now() + make_interval(secs => $4) END,
        last_error = poison.why, updated_at = now(),
        claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, first_claimed_at = NULL
    FROM unnest($1::uuid[], $2::uuid[], $3::text[]) AS poison (id, token, why)
    WHERE alarms.id = poison.id AND alarms.claim_token = poison.token AND alarms.status IN ('active', 'paused')
    RETURNING source, cluster_id, resource_namespace, resource_name
)
SELECT pg_notify($5, concat_ws('/', cluster_id, resource_namespace, resource_name)) FROM parked WHERE source = 'kubernetes'
