claimed AS (
    UPDATE alarms
    SET claimed_at = now(), claimed_until = now() + make_interval(secs => $6), claim_token = ($9::uuid[])[taken.place], claimed_by = $1,
        claims = alarms.claims + 1, first_claimed_at = coalesce(first_claimed_at, now())
    FROM taken
    WHERE alarms.id = taken.id
    RETURNING
        alarms.id, subject, service_call_id, session_key, timer_id, claim_token, schedule_epoch, claimed_at, first_claimed_at, alarms.claims, owner_did, user_id, label, kind,
        fire_at, cron_expr, timezone, starts_at, ends_at, spread, spread_offset, misfire, max_lateness, created_at,
        conversation_id, wake_message, payload::text AS payload, correlation_id,
        scheduled_for, series_at, next_fire_at, failure_count, max_failures, occurrence_missed
)
SELECT look.*, claimed.*
FROM (
    SELECT now() AS looked_at, may.held, surveyed.whole, peers.*,
        (SELECT array_agg(owner_did) FROM crowd) AS crowded,
        (SELECT array_agg(owner_did) FROM crowd WHERE suspended) AS suspended,
        -- Taken alone, or left for later because of it: either way there may be more.
        EXISTS (SELECT FROM ranked WHERE claims >= $11) AS suspects,
        -- Rows already due are not asked for: they are being claimed, or cannot be, and must not shorten the wait. Nor what is
        -- further away than anybody sleeps, which may be an instant that no clock of ours can hold.
        (SELECT min(next_fire_at) FROM alarms
         WHERE status = 'active' AND next_fire_at > now() AND next_fire_at < now() + interval '2 days') AS next_at
    FROM may, surveyed, (
        SELECT array_agg(worker) AS peers, array_agg(beats) AS peers_beats, array_agg(started_at) AS peers_started_at
        FROM dispatchers WHERE $4 AND worker <> $1
    ) AS peers
) AS look
LEFT JOIN claimed ON true
