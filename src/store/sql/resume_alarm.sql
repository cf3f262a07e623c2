-- The last cause of a pause is lifted from alarm $1, locked by the caller. $2 the status then. $3 slot and $4 when to try are NULL where
-- the occurrence stays. $5 error, or NULL. $6: how many slots passed.
UPDATE alarms
SET status = $2, paused_by = '{}',
    scheduled_for = coalesce($3, scheduled_for),
    next_fire_at = coalesce($4, next_fire_at),
    last_error = coalesce($5, last_error),
    missed_count = missed_count + $6,
    occurrence_missed = CASE WHEN $3 IS NULL THEN occurrence_missed ELSE 0 END,
    claims = CASE WHEN $3 IS NULL THEN claims ELSE 0 END,
    revision = revision + 1, updated_at = now()
WHERE id = $1
RETURNING
