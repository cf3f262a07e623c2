-- An alarm over HTTP. $1 to $15 are its definition; $16 id, $17 owner, $18 user, $19 correlation, $20 first slot, $21 its offset,
-- $22 key, $23 birth, $24 whether one that is not enrolled may. Nothing is inserted for an agent that was suspended or removed meanwhile;
-- its row is held, so that neither happens before this is done. The conflict is the owner's idempotency key; the caller reads the winner in a new statement.
WITH agent AS (SELECT FROM agents WHERE did = $17 AND NOT suspended FOR SHARE)
INSERT INTO alarms (
    label, labels, kind, fire_at, cron_expr, timezone, starts_at, ends_at, spread, misfire, max_lateness,
    conversation_id, wake_message, payload, max_failures,
    id, owner_did, user_id, correlation_id, scheduled_for, next_fire_at, spread_offset, source, idempotency_key, created_at)
SELECT
    $1, $2::jsonb, $3, $4, $5, $6, $7, $8, $9, $10, $11,
    $12, $13, $14::json, $15,
    $16, $17, $18, $19, $20, $20 + $21, $21, 'api', $22, $23
WHERE EXISTS (SELECT FROM agent) OR ($24 AND NOT EXISTS (SELECT FROM agents WHERE did = $17))
ON CONFLICT (owner_did, idempotency_key) WHERE idempotency_key <> '' DO NOTHING
RETURNING
