-- The alarm of a resource, seen for the first time. $1 to $9 are its definition; $12 status, $13 instant, $14 error and $15
-- missed slots are the plan's.
INSERT INTO alarms (
    label, kind, fire_at, cron_expr, timezone, conversation_id, wake_message, payload, max_failures,
    owner_did, user_id, correlation_id,
    status, scheduled_for, next_fire_at, last_error, missed_count,
    source, cluster_id, resource_uid, resource_namespace, resource_name, resource_generation, definition_hash,
    created_at)
VALUES (
    $1, $2, $3, $4, $5, $6, $7, $8::json, $9,
    $10, $11, gen_random_uuid()::text,
    $12, $13, $13, $14, $15,
    'kubernetes', $16, $17, $18, $19, $20, $21,
    $22)
ON CONFLICT (cluster_id, resource_uid) WHERE source = 'kubernetes' DO NOTHING
RETURNING
