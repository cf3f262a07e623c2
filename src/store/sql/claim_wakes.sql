-- Wakes that are due, and the end of claims that a crash left behind, of sends as of wakes. $1 worker, $2 lease in seconds, $3 most,
-- $4 owners that have enough in flight.
-- Only effects are locked here, and nobody is waited for.
WITH may AS (
    -- As for alarms: not while dispatch is held, nor by a worker that its peers do not see.
    SELECT held_by IS NULL AND EXISTS (SELECT FROM dispatchers WHERE worker = $1) AS claim FROM settings
), lapsed AS (
    SELECT id FROM effects WHERE status = 'executing' AND claimed_until <= now() LIMIT 500 FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE effects
    SET status = 'pending', updated_at = now(), claimed_at = NULL, claimed_until = NULL, claim_token = NULL, claimed_by = NULL
    FROM lapsed WHERE effects.id = lapsed.id
    RETURNING effects.type
), due AS MATERIALIZED (
    SELECT effects.id, sessions.owner_did
    FROM effects JOIN sessions USING (session_key)
    WHERE effects.type = 'wake' AND effects.status = 'pending' AND effects.not_before <= now()
      AND NOT EXISTS (SELECT FROM agents WHERE did = sessions.owner_did AND suspended)
      AND sessions.owner_did <> ALL ($4)
      AND (SELECT claim FROM may)
    ORDER BY effects.not_before
    LIMIT $3
    FOR UPDATE OF effects SKIP LOCKED
), claimed AS (
    UPDATE effects
    SET status = 'executing', updated_at = now(), attempt_count = attempt_count + 1, last_attempt_at = now(),
        claimed_at = now(), claimed_until = now() + make_interval(secs => $2), claim_token = gen_random_uuid(), claimed_by = $1
    FROM due WHERE effects.id = due.id
    RETURNING effects.id, claim_token, claimed_at, not_before, failure_count, attempt_count, session_key, event_seq, due.owner_did,
              effects.payload::text AS told
)
SELECT look.next_in, claimed.*, (events.payload -> 'payload')::text AS payload
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
