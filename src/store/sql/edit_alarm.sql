-- Another definition ($1 to $15) for alarm $16, whose lock the caller holds. $17 status, $18 slot, $19 offset and $20 error are NULL
-- when the schedule stays: then the occurrence, its failures and its claim stay too. Otherwise it is re-planned: a new epoch, no
-- claim, no failures; $21 slots passed. $22 generation and $23 hash are a resource's, else NULL.
UPDATE alarms
SET label = $1, labels = $2::jsonb, kind = $3, fire_at = $4, cron_expr = $5, timezone = $6, starts_at = $7, ends_at = $8,
    spread = $9, misfire = $10, max_lateness = $11, conversation_id = $12, wake_message = $13, payload = $14::json, max_failures = $15,
    resource_generation = coalesce($22, resource_generation), definition_hash = coalesce($23, definition_hash),
    revision = revision + 1, updated_at = now(),
    -- Re-planned but paused stays paused; a pause ends with the alarm.
    status = CASE WHEN $17 = 'active' AND paused_by <> '{}' THEN 'paused' ELSE coalesce($17, status) END,
    paused_by = CASE WHEN $17 = 'failed' THEN '{}' ELSE paused_by END,
    scheduled_for = coalesce($18, scheduled_for),
    series_at = CASE WHEN $17 IS NULL THEN series_at END,
    next_fire_at = coalesce($18 + $19, next_fire_at),
    -- What is over and stays so may get another spread, which its place need not lie in.
    spread_offset = coalesce($19, CASE WHEN spread_offset < $9 THEN spread_offset ELSE '0' END),
    last_error = coalesce($20, last_error),
    missed_count = missed_count + $21,
    schedule_epoch = schedule_epoch + CASE WHEN $17 IS NULL THEN 0 ELSE 1 END,
    failure_count = CASE WHEN $17 IS NULL THEN failure_count ELSE 0 END,
    occurrence_missed = CASE WHEN $17 IS NULL THEN occurrence_missed ELSE 0 END,
    claims = CASE WHEN $17 IS NULL THEN claims ELSE 0 END,
    -- What was begun is not judged by another policy than its first claim was: at its own instant nothing is late, and nothing passed.
    first_claimed_at = CASE WHEN $17 IS NOT NULL OR first_claimed_at IS NULL THEN NULL
                            WHEN misfire = $10 AND max_lateness IS NOT DISTINCT FROM $11 THEN first_claimed_at
                            ELSE least(first_claimed_at, next_fire_at) END,
    claimed_at = CASE WHEN $17 IS NULL THEN claimed_at END,
    claim_token = CASE WHEN $17 IS NULL THEN claim_token END,
    claimed_by = CASE WHEN $17 IS NULL THEN claimed_by END,
    claimed_until = CASE WHEN $17 IS NULL THEN claimed_until END
WHERE id = $16
RETURNING
