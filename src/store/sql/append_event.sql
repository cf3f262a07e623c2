-- One more event. $1 session, $2 its number, $3 id or NULL, $4 type, $5 payload. The caller holds the session's lock.
WITH session AS (
    UPDATE sessions SET last_seq = $2 WHERE session_key = $1
)
-- Not now(), which is when the transaction began: it may have waited for the lock, and later events would look older.
INSERT INTO events (session_key, seq, id, type, payload, created_at)
VALUES ($1, $2, coalesce($3, gen_random_uuid()), $4, $5::json, clock_timestamp())
RETURNING
