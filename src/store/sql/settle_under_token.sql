-- What became of one attempt.
-- $1 alarm, $2 token, $3 epoch: the fence. $4 final status or NULL, $5 scheduled_for, $6 next_fire_at, $7 failure_count,
-- $8 last_error, $9 fired. $10 owner, $11 delivery, $12 nominal instant, $13 number, $14 started, $15 milliseconds,
-- $16 outcome, $17 HTTP status, $18 error, $19 worker: the attempt. $20 the channel of hints.
WITH found AS (
    -- Locked first: this reads the row as it is now, not as it was when the statement began, so that an alarm cancelled
    -- a moment ago is recorded as cancelled.
    SELECT id, status, claim_token, schedule_epoch FROM alarms WHERE id = $1 FOR UPDATE
), settled AS (
    UPDATE alarms
    SET status = coalesce($4, alarms.status),
        paused_by = CASE WHEN $4 IS NULL THEN paused_by ELSE '{}' END,
        scheduled_for = $5,
        -- Another slot than before is one of the series; the same one keeps what is told of the series.
        series_at = CASE WHEN scheduled_for = $5 THEN series_at END,
        next_fire_at = $6,
        failure_count = $7,
        last_error = $8,
        fired_count = fired_count + CASE WHEN $9 THEN 1 ELSE 0 END,
        last_fired_at = CASE WHEN $9 THEN now() ELSE last_fired_at END,
        claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, first_claimed_at = NULL,
        updated_at = now()
    FROM found
    WHERE alarms.id = found.id
      AND found.claim_token = $2 AND found.schedule_epoch = $3 AND found.status IN ('active', 'paused')
    RETURNING source, cluster_id, resource_namespace, resource_name
), outcome AS (
    SELECT CASE
        WHEN EXISTS (SELECT FROM settled) THEN $16
        WHEN coalesce((SELECT status FROM found), 'cancelled') = 'cancelled' THEN 'cancelled'
        ELSE 'fenced'
    END AS word
), recorded AS (
    INSERT INTO attempts (
        alarm_id, claim_token, owner_did, delivery_id, scheduled_for, attempt, started_at, duration_ms,
        outcome, http_status, error, worker)
    SELECT $1, $2, $10, $11, $12, $13, $14, $15, word, $17, left($18, 300), $19 FROM outcome
    -- A settle whose answer was lost is sent again: the first one stands, and is the answer.
    ON CONFLICT DO NOTHING
)
SELECT
    coalesce((SELECT outcome FROM attempts
              WHERE alarm_id = $1 AND claim_token = $2 AND started_at = $14 AND attempt = $13), word),
    hint.sent
FROM outcome
LEFT JOIN LATERAL (
    SELECT pg_notify($20, concat_ws('/', cluster_id, resource_namespace, resource_name))::text AS sent
    FROM settled WHERE source = 'kubernetes'
) AS hint ON true
