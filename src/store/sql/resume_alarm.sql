-- The last cause of a pause is lifted from alarm $1, locked by the caller. $2 the status then. $3 slot, $4 when to try and $5 error are
-- NULL where the occurrence stays. $6: how many slots passed. $7: up to where the series is told, if it goes on behind the
-- occurrence. $8: a wake is in flight, and its claim stays; one whose lease has ended does not. Nor does one whose dispatcher has
-- been found dead while the alarm was paused: nobody would take it over any more. That it was claimed, and when first, stays as it
-- is: an occurrence that was begun is never given up here, and whoever claims it again comes to the same verdict.
UPDATE alarms
SET status = $2, paused_by = '{}',
    scheduled_for = coalesce($3, scheduled_for),
    series_at = CASE WHEN $3 IS NULL THEN coalesce($7, series_at) END,
    next_fire_at = coalesce($4, next_fire_at),
    last_error = coalesce($5, last_error),
    missed_count = missed_count + $6,
    occurrence_missed = CASE WHEN $3 IS NULL THEN occurrence_missed ELSE 0 END,
    claimed_at = CASE WHEN $8 AND claimed_by IN (SELECT worker FROM dispatchers) THEN claimed_at END,
    claim_token = CASE WHEN $8 AND claimed_by IN (SELECT worker FROM dispatchers) THEN claim_token END,
    claimed_by = CASE WHEN $8 AND claimed_by IN (SELECT worker FROM dispatchers) THEN claimed_by END,
    claimed_until = CASE WHEN $8 AND claimed_by IN (SELECT worker FROM dispatchers) THEN claimed_until END,
    revision = revision + 1, updated_at = now()
WHERE id = $1
RETURNING
