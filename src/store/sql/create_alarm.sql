-- An alarm over HTTP. The conflict is the owner's idempotency key; the caller reads the winner in a new statement.
INSERT INTO alarms (
    owner_did, user_id, label, correlation_id,
    kind, fire_at, cron_expr, timezone,
    conversation_id, wake_message, payload, max_failures,
    scheduled_for, next_fire_at, source, idempotency_key, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::json, $12, $13, $13, 'api', $14, $15)
ON CONFLICT (owner_did, idempotency_key) WHERE idempotency_key <> '' DO NOTHING
RETURNING
