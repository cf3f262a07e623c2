-- The alarm of a resource, seen for the first time. $1 to $15 are its definition; $16 id, $17 owner, $18 user; $19 status, $20 slot,
-- $21 its offset, $22 error and $23 missed slots are the plan's; $24 to $30 are the resource's; $31 what pauses it, $32 a request to
-- fire it that was there from the beginning and counts as seen.
INSERT INTO alarms (
    label, labels, kind, fire_at, cron_expr, timezone, starts_at, ends_at, spread, misfire, max_lateness,
    conversation_id, wake_message, payload, max_failures,
    id, owner_did, user_id, correlation_id,
    status, scheduled_for, next_fire_at, spread_offset, last_error, missed_count,
    source, cluster_id, resource_uid, resource_namespace, resource_name, resource_generation, definition_hash,
    created_at, paused_by, fire_requested)
VALUES (
    $1, $2::jsonb, $3, $4, $5, $6, $7, $8, $9, $10, $11,
    $12, $13, $14::json, $15,
    $16, $17, $18, gen_random_uuid()::text,
    $19, $20, $20 + $21, $21, $22, $23,
    'kubernetes', $24, $25, $26, $27, $28, $29,
    $30, $31, $32)
ON CONFLICT (cluster_id, resource_uid) WHERE source = 'kubernetes' DO NOTHING
RETURNING
