-- Wakes that are due, and the end of claims that a crash left behind, of sends as of wakes. $1 worker, $2 lease in seconds, $3 most.
-- $4, $5: owners with wakes in flight, and the room each has left; $6 the room of any other owner.
-- Only effects are locked here, and nobody is waited for. What a row holds is read by us and not in here: no row can fail the statement.
WITH RECURSIVE may AS (
    -- As for alarms: not while dispatch is held, nor by a worker that its peers do not see.
    SELECT held_by IS NULL AND EXISTS (SELECT FROM dispatchers WHERE worker = $1) AS claim FROM settings
), lapsed AS (
    SELECT id FROM effects WHERE status = 'executing' AND claimed_until <= now() LIMIT 500 FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE effects
    SET status = 'pending', updated_at = now(), claimed_at = NULL, claimed_until = NULL, claim_token = NULL, claimed_by = NULL
    FROM lapsed WHERE effects.id = lapsed.id
    RETURNING effects.type
), owners AS (
    -- Each owner of a wake that is pending, one probe of effects_wakes_owner_idx each: nobody's crowd is read through.
    (SELECT wakes_did FROM effects WHERE type = 'wake' AND status = 'pending' ORDER BY wakes_did LIMIT 1)
    UNION ALL
    SELECT later.wakes_did
    FROM owners
    CROSS JOIN LATERAL (
        SELECT wakes_did FROM effects
        WHERE type = 'wake' AND status = 'pending' AND wakes_did > owners.wakes_did ORDER BY wakes_did LIMIT 1
    ) AS later
), waiting AS (
    SELECT owners.wakes_did, coalesce(busy.room, $6) AS room
    FROM owners
    LEFT JOIN unnest($4::text[], $5::int[]) AS busy (wakes_did, room) ON busy.wakes_did = owners.wakes_did
    WHERE coalesce(busy.room, $6) > 0 AND NOT EXISTS (SELECT FROM shut_out WHERE did = owners.wakes_did)
), chosen AS (
    SELECT oldest.id
    FROM waiting
    CROSS JOIN LATERAL (
        SELECT id, not_before FROM effects
        WHERE type = 'wake' AND status = 'pending' AND effects.wakes_did = waiting.wakes_did AND not_before <= now()
        ORDER BY not_before LIMIT waiting.room
    ) AS oldest
    WHERE (SELECT claim FROM may)
    ORDER BY oldest.not_before
    LIMIT $3
), due AS MATERIALIZED (
    SELECT locked.id
    FROM chosen
    CROSS JOIN LATERAL (
        SELECT id FROM effects WHERE effects.id = chosen.id AND status = 'pending' FOR UPDATE SKIP LOCKED
    ) AS locked
), claimed AS (
    UPDATE effects
    SET status = 'executing', updated_at = now(), attempt_count = attempt_count + 1, last_attempt_at = now(),
        claimed_at = now(), claimed_until = now() + make_interval(secs => $2), claim_token = gen_random_uuid(), claimed_by = $1
    FROM due WHERE effects.id = due.id
    RETURNING effects.id, claim_token, claimed_at, not_before, failure_count, attempt_count, session_key, event_seq,
              wakes_did AS owner_did, effects.payload::text AS told
)
SELECT look.next_in, claimed.*, events.payload::text AS event
FROM (
    SELECT CASE
        -- What was freed just now is not seen yet by the rest of this statement.
        WHEN EXISTS (SELECT FROM freed WHERE type = 'wake') THEN 0
        ELSE (SELECT extract(epoch FROM min(not_before) - now())::float8 FROM effects
              WHERE type = 'wake' AND status = 'pending' AND not_before > now())
    END AS next_in
) AS look
LEFT JOIN claimed ON true
LEFT JOIN events ON events.session_key = claimed.session_key AND events.seq = claimed.event_seq
