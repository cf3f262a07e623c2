-- A session, with what is still to happen in it. $1 key, $2 owner.
SELECT
    last_seq, event_seq, consecutive_autonomous_msgs, last_autonomous_at, created_at,
    (SELECT count(*) FROM alarms
     WHERE alarms.session_key = $1 AND subject = 'session' AND status = 'active') AS pending_timers,
    (SELECT count(*) FROM effects WHERE effects.session_key = $1 AND status = 'pending') AS pending_effects
FROM sessions
WHERE session_key = $1 AND owner_did = $2
