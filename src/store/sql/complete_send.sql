-- The client has a send. $1 session, $2 effect; $3: it counts now, and then $4 and $5 are the session's tally. The caller holds the
-- session's lock.
WITH completed AS (
    UPDATE effects
    SET status = 'completed', reason = NULL, updated_at = now(),
        counted_at = CASE WHEN $3 THEN $5 ELSE counted_at END,
        -- Who has it without a socket has it at the first attempt.
        send_seq = coalesce(effects.send_seq, session.next_seq),
        attempt_count = greatest(attempt_count, 1), last_attempt_at = coalesce(last_attempt_at, clock_timestamp()),
        claimed_at = NULL, claimed_until = NULL, claim_token = NULL, claimed_by = NULL
    FROM (SELECT last_send_seq + 1 AS next_seq FROM sessions WHERE session_key = $1) AS session
    WHERE effects.id = $2
    RETURNING effects.send_seq
)
UPDATE sessions
SET last_send_seq = greatest(last_send_seq, completed.send_seq),
    consecutive_autonomous_msgs = CASE WHEN $3 THEN $4 ELSE consecutive_autonomous_msgs END,
    last_autonomous_at = CASE WHEN $3 THEN $5 ELSE last_autonomous_at END
FROM completed
WHERE session_key = $1
