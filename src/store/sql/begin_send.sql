-- A send goes out. $1 session, $2 effect; $3: it counts now, and then $4 and $5 are the session's tally. $6 stream, $7 lease in
-- seconds. The caller holds the session's lock. The number is given once: sent again it is the same send.
WITH begun AS (
    UPDATE effects
    SET status = 'executing', updated_at = now(),
        counted_at = CASE WHEN $3 THEN $5 ELSE counted_at END,
        send_seq = coalesce(effects.send_seq, session.next_seq),
        attempt_count = attempt_count + 1, last_attempt_at = clock_timestamp(),
        claimed_at = clock_timestamp(), claimed_until = clock_timestamp() + make_interval(secs => $7),
        claim_token = gen_random_uuid(), claimed_by = $6
    FROM (SELECT last_send_seq + 1 AS next_seq FROM sessions WHERE session_key = $1) AS session
    WHERE effects.id = $2
    RETURNING effects.claim_token, effects.send_seq, dedupe_key, payload::text AS payload, created_at
), session AS (
    UPDATE sessions
    SET last_send_seq = greatest(last_send_seq, begun.send_seq),
        consecutive_autonomous_msgs = CASE WHEN $3 THEN $4 ELSE consecutive_autonomous_msgs END,
        last_autonomous_at = CASE WHEN $3 THEN $5 ELSE last_autonomous_at END
    FROM begun
    WHERE session_key = $1
)
SELECT * FROM begun
