-- The last cause of a pause is lifted from alarm $1, locked by the caller. $2 the status then. $3 slot, $4 when to try and $5 error are
-- NULL where the occurrence stays. $6: how many slots passed. $7: up to where the series is told, if it goes on behind the
-- occurrence. $8: a wake is in flight, and its claim stays; otherwise nobody has it any more. When the occurrence was first claimed, and
-- how often, stays with it: whoever claims it again comes to the same verdict.
UPDATE alarms
SET status = $2, paused_by = '{}',
    scheduled_for = coalesce($3, scheduled_for),
    series_at = CASE WHEN $3 IS NULL THEN coalesce($7, series_at) END,
    next_fire_at = coalesce($4, next_fire_at),
    last_error = coalesce($5, last_error),
    missed_count = missed_count + $6,
    occurrence_missed = CASE WHEN $3 IS NULL THEN occurrence_missed ELSE 0 END,
    claims = CASE WHEN $3 IS NULL AND $2 = 'active' THEN claims ELSE 0 END,
    first_claimed_at = CASE WHEN $3 IS NULL AND $2 = 'active' THEN first_claimed_at END,
    claimed_at = CASE WHEN $8 THEN claimed_at END,
    claim_token = CASE WHEN $8 THEN claim_token END,
    claimed_by = CASE WHEN $8 THEN claimed_by END,
    claimed_until = CASE WHEN $8 THEN claimed_until END,
    revision = revision + 1, updated_at = now()
WHERE id = $1
RETURNING
