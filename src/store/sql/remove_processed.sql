-- The old part of sessions' logs, with its checkpoints and effects. $1 sessions, which the caller has locked; $2 days; $3 the most
-- events of one session: the rest goes the next time.
WITH kept AS (
    SELECT session_key, least(
        -- Only what was processed; and of that the event which decides whether the next send is the agent's own idea is kept.
        coalesce(
            (SELECT max(seq) FROM events
             WHERE events.session_key = sessions.session_key AND seq <= event_seq AND type <> 'tool_result'),
            1),
        (SELECT min(seq) + $3 FROM events WHERE events.session_key = sessions.session_key),
        (SELECT min(seq) FROM events
         WHERE events.session_key = sessions.session_key AND created_at > now() - make_interval(days => $2)),
        (SELECT min(effects.event_seq) FROM effects
         WHERE effects.session_key = sessions.session_key AND status IN ('pending', 'executing'))
    ) AS first_seq
    FROM sessions WHERE session_key = ANY ($1)
), effects_removed AS (
    DELETE FROM effects USING kept WHERE effects.session_key = kept.session_key AND event_seq < first_seq
), removed AS (
    DELETE FROM events USING kept WHERE events.session_key = kept.session_key AND seq < first_seq RETURNING seq
)
SELECT count(*) FROM removed
