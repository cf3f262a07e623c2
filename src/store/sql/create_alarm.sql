-- An alarm over HTTP. $1 to $9 are its definition; $10 owner, $11 user, $12 correlation, $13 first instant, $14 key, $15 birth.
-- The conflict is the owner's idempotency key; the caller reads the winner in a new statement.
INSERT INTO alarms (
    label, kind, fire_at, cron_expr, timezone, conversation_id, wake_message, payload, max_failures,
    owner_did, user_id, correlation_id, scheduled_for, next_fire_at, source, idempotency_key, created_at)
VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8::json, $9,
    $10, $11, $12, $13, $13, 'api', $14, $15)
ON CONFLICT (owner_did, idempotency_key) WHERE idempotency_key <> '' DO NOTHING
RETURNING
