-- The user has spoken: the event, and with it the end of all that the agent meant to do by itself. $1 session, $2 the event's number,
-- $3 id or NULL, $4 type, $5 payload. The caller holds the session's lock, and this statement is a later one: it sees whatever was
-- written by those who held it before.
WITH session AS (
    UPDATE sessions SET last_seq = $2, consecutive_autonomous_msgs = 0, last_autonomous_at = NULL WHERE session_key = $1
), pending AS (
    SELECT id FROM alarms WHERE session_key = $1 AND status = 'active' ORDER BY id FOR UPDATE
), cancelled AS (
    UPDATE alarms
    SET status = 'cancelled', cancelled_by = 'owner', updated_at = now(),
        claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, first_claimed_at = NULL
    FROM pending WHERE alarms.id = pending.id
), open AS (
    SELECT id, status = 'executing' AS was_executing
    FROM effects WHERE session_key = $1 AND status IN ('pending', 'executing') AND autonomous FOR UPDATE
), unsent AS (
    UPDATE effects
    SET status = 'cancelled', reason = 'user_message', updated_at = now(),
        claimed_at = NULL, claimed_until = NULL, claim_token = NULL, claimed_by = NULL
    FROM open WHERE effects.id = open.id
    RETURNING open.was_executing
)
INSERT INTO events (session_key, seq, id, type, payload, created_at)
VALUES ($1, $2, coalesce($3, gen_random_uuid()), $4, $5::json, clock_timestamp())
RETURNING
