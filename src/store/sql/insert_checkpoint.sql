-- A checkpoint with its effects. $1 session, $2 checkpoint, $3 its event, $4 hash of the request, $5 answer, $6 whether its sends are
-- the agent's own idea. $7 id, $8 type, $9 payload, $10 dedupe key, $11 status, $12 reason: the effects, in their order. The caller
-- holds the session's lock, has seen that the event is the next one, and has set the timers.
WITH session AS (
    UPDATE sessions SET event_seq = $3 WHERE session_key = $1
), checkpoint AS (
    INSERT INTO checkpoints (session_key, checkpoint_id, event_seq, request_hash, answer) VALUES ($1, $2, $3, $4, $5::json)
)
INSERT INTO effects (
    id, session_key, checkpoint_id, event_seq, position, type, payload, dedupe_key, autonomous, status, reason)
SELECT id, $1, $2, $3, place - 1, type, payload::json, dedupe_key, $6 AND type = 'send_message', status, reason
FROM unnest($7::uuid[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[]) WITH ORDINALITY
     AS effect (id, type, payload, dedupe_key, status, reason, place)
