-- Another definition ($1 to $9) for the alarm of a resource ($10). $11 status, $12 instant and $13 error are NULL when the schedule stays:
-- then the occurrence, its failures and its claim stay too. Otherwise it is re-planned: a new epoch, no claim, no failures.
UPDATE alarms
SET label = $1, kind = $2, fire_at = $3, cron_expr = $4, timezone = $5,
    conversation_id = $6, wake_message = $7, payload = $8::json, max_failures = $9,
    resource_generation = $14, definition_hash = $15,
    revision = revision + 1, updated_at = now(),
    -- Re-planned but paused stays paused; a pause ends with the alarm.
    status = CASE WHEN $11 = 'active' AND paused_by <> '{}' THEN 'paused' ELSE coalesce($11, status) END,
    paused_by = CASE WHEN $11 = 'failed' THEN '{}' ELSE paused_by END,
    scheduled_for = coalesce($12, scheduled_for),
    next_fire_at = coalesce($12, next_fire_at),
    last_error = coalesce($13, last_error),
    missed_count = missed_count + CASE WHEN $11 = 'failed' THEN 1 ELSE 0 END,
    schedule_epoch = schedule_epoch + CASE WHEN $11 IS NULL THEN 0 ELSE 1 END,
    failure_count = CASE WHEN $11 IS NULL THEN failure_count ELSE 0 END,
    occurrence_missed = CASE WHEN $11 IS NULL THEN occurrence_missed ELSE 0 END,
    claims = CASE WHEN $11 IS NULL THEN claims ELSE 0 END,
    claimed_at = CASE WHEN $11 IS NULL THEN claimed_at END,
    claim_token = CASE WHEN $11 IS NULL THEN claim_token END,
    claimed_by = CASE WHEN $11 IS NULL THEN claimed_by END
WHERE id = $10
RETURNING
