-- Of alarms $1 those that somebody holds on to, or whose session somebody does. Nothing is waited for, and nothing stays locked.
WITH wanted AS MATERIALIZED (
    SELECT id, session_key FROM alarms WHERE id = ANY ($1)
), free AS MATERIALIZED (
    SELECT id FROM alarms WHERE id = ANY ($1) FOR UPDATE SKIP LOCKED
), open AS MATERIALIZED (
    SELECT session_key FROM sessions WHERE session_key IN (SELECT session_key FROM wanted) FOR UPDATE SKIP LOCKED
)
SELECT id FROM wanted
WHERE id NOT IN (SELECT id FROM free)
   OR (session_key IS NOT NULL AND session_key NOT IN (SELECT session_key FROM open))
