-- An alarm that is over ($1, locked by the caller) begins anew at slot $2, $3 behind it. $4: its instant, if it is of kind once.
UPDATE alarms
SET status = CASE WHEN held THEN 'paused' ELSE 'active' END, paused_by = CASE WHEN held THEN ARRAY['agent'] ELSE '{}' END,
    cancelled_by = NULL, fire_at = $4,
    scheduled_for = $2, series_at = NULL, next_fire_at = $2 + $3, spread_offset = $3,
    schedule_epoch = schedule_epoch + 1, revision = revision + 1, updated_at = now(),
    failure_count = 0, last_error = '', occurrence_missed = 0,
    claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, first_claimed_at = NULL
-- An agent that is suspended is not woken, whoever arms its alarm.
FROM (SELECT EXISTS (SELECT FROM agents JOIN alarms ON did = owner_did WHERE alarms.id = $1 AND suspended) AS held) AS agent
WHERE alarms.id = $1
RETURNING
