-- A service call's timer, made or planned anew. $1 tenant, $2 user, $3 call, $4 correlation id or NULL, $5 the one to take when
-- there is none, $6 due, $7 payload. The caller has seen the call and holds its lock.
-- Planned anew means: a new epoch, no claim, no failures, not reached. Counters of what it did before stay.
-- What is due already is due now: dispatchers look for what has become due, and nobody is ahead of others by an older instant.
INSERT INTO alarms (
    owner_did, user_id, subject, service_call_id, registered_at, correlation_id,
    kind, fire_at, scheduled_for, next_fire_at, payload)
VALUES ($1, $2, 'service_call', $3, now(), coalesce($4, $5), 'once', $6, $6, greatest($6, now()), $7::json)
ON CONFLICT (owner_did, service_call_id) WHERE service_call_id IS NOT NULL DO UPDATE
SET registered_at = now(),
    correlation_id = coalesce($4, alarms.correlation_id),
    fire_at = $6, scheduled_for = $6, next_fire_at = greatest($6, now()),
    payload = $7::json,
    status = 'active', last_fired_at = NULL,
    schedule_epoch = alarms.schedule_epoch + 1,
    revision = alarms.revision + 1,
    failure_count = 0, last_error = '', claims = 0, first_claimed_at = NULL,
    claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL,
    updated_at = now()
RETURNING
