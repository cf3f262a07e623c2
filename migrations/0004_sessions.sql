-- Migration 4: sessions that follow up by themselves: the log of events, the agent's checkpoints, and the effects they
-- ask for. Timers of sessions are alarms with subject session.
--
-- Everything is keyed by the session. Locks are taken in this order: session, alarm, effect.

CREATE TABLE sessions (
    session_key                 text        NOT NULL,
    owner_did                   text        NOT NULL,
    user_id                     text        NOT NULL,
    last_seq                    bigint      NOT NULL DEFAULT 0,
    event_seq                   bigint      NOT NULL DEFAULT 0,
    last_send_seq               bigint      NOT NULL DEFAULT 0,
    consecutive_autonomous_msgs int         NOT NULL DEFAULT 0,
    last_autonomous_at          timestamptz,
    stream_id                   uuid,
    created_at                  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT sessions_pkey PRIMARY KEY (session_key),
    -- For timers, whose owner must be the session's.
    CONSTRAINT sessions_owner_key UNIQUE (session_key, owner_did),
    CONSTRAINT sessions_key_is_well_formed CHECK (
        session_key ~ '^[A-Za-z0-9_-]+:[A-Za-z0-9_-]+:[A-Za-z0-9_-]+$' AND octet_length(session_key) <= 256),
    -- The user in the key, in the column and in the owner's DID are one.
    CONSTRAINT sessions_are_of_their_user CHECK (
        user_id = split_part(session_key, ':', 1) AND user_id = split_part(owner_did, ':', 3)),
    CONSTRAINT sessions_only_processed_what_happened CHECK (event_seq BETWEEN 0 AND last_seq),
    CONSTRAINT sessions_counts_are_not_negative CHECK (last_send_seq >= 0 AND consecutive_autonomous_msgs >= 0)
)
-- Rewritten with every event and send; nothing that is rewritten is in an index, so there is room to do it in place.
WITH (fillfactor = 70);
-- For who moves or deletes all that an agent has.
CREATE INDEX sessions_owner_idx ON sessions (owner_did);

COMMENT ON TABLE sessions IS 'One conversation of one user with one agent. Its row lock serialises everything that happens in it.';
COMMENT ON COLUMN sessions.session_key IS 'userId:agentId:threadId.';
COMMENT ON COLUMN sessions.owner_did IS 'The DID that made it. For all others it does not exist.';
COMMENT ON COLUMN sessions.last_seq IS 'The newest event''s number. A column, not a sequence: sequences have gaps.';
COMMENT ON COLUMN sessions.event_seq IS 'The newest event that a checkpoint has processed.';
COMMENT ON COLUMN sessions.last_send_seq IS 'The newest send''s number, as clients see it.';
COMMENT ON COLUMN sessions.consecutive_autonomous_msgs IS 'Autonomous sends since the user last spoke.';
COMMENT ON COLUMN sessions.stream_id IS 'The connection over which sends go out, on whichever replica; a newer one replaces it. NULL: none; the id of one that died stays until the next.';

CREATE TABLE events (
    id          uuid        NOT NULL DEFAULT gen_random_uuid(),
    session_key text        NOT NULL,
    seq         bigint      NOT NULL,
    type        text        NOT NULL,
    payload     json        NOT NULL,
    created_at  timestamptz NOT NULL,
    -- By session: the id may be the client's own, and nobody's choice of ids may get in the way of another session.
    CONSTRAINT events_pkey PRIMARY KEY (session_key, id),
    -- Its index also is the one by which a log is read in order.
    CONSTRAINT events_session_key_seq_key UNIQUE (session_key, seq),
    CONSTRAINT events_session_fkey FOREIGN KEY (session_key) REFERENCES sessions (session_key) ON DELETE CASCADE,
    CONSTRAINT events_seq_is_counted_from_one CHECK (seq >= 1),
    CONSTRAINT events_type_known CHECK (type IN ('user_message', 'timer', 'tool_result')),
    CONSTRAINT events_payload_is_capped CHECK (octet_length(payload::text) <= 262144)
);

COMMENT ON TABLE events IS 'What happened in a session, in order and without gaps. Append-only.';
COMMENT ON COLUMN events.payload IS 'json, not jsonb: kept to the byte.';
COMMENT ON COLUMN events.created_at IS 'Taken under the session''s lock, so that it grows with seq.';

-- Nobody rewrites what happened. What may go is a whole session, by the cascade (which runs inside a trigger, and so deeper than a
-- statement of somebody's own), and the old part of a log, by whoever says that it is retention.
CREATE FUNCTION events_are_append_only() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP = 'DELETE' AND (pg_trigger_depth() > 1 OR current_setting('chronos.retention', true) = 'on') THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% of events: the log of a session is append-only', TG_OP
        USING ERRCODE = 'restrict_violation', HINT = 'Delete the whole session, or set CHRONOS_AUTONOMY_RETENTION_DAYS.';
END
$$;
COMMENT ON FUNCTION events_are_append_only IS 'Refuses UPDATE, TRUNCATE, and every DELETE but retention''s and a whole session''s.';

CREATE TRIGGER events_append_only BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION events_are_append_only();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION events_are_append_only();

CREATE TABLE checkpoints (
    session_key     text        NOT NULL,
    checkpoint_id   text        NOT NULL,
    event_seq       bigint      NOT NULL,
    request_hash    bytea       NOT NULL,
    answer          json        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT checkpoints_pkey PRIMARY KEY (session_key, checkpoint_id),
    CONSTRAINT checkpoints_one_per_event UNIQUE (session_key, event_seq),
    CONSTRAINT checkpoints_event_fkey FOREIGN KEY (session_key, event_seq)
        REFERENCES events (session_key, seq) ON DELETE CASCADE,
    CONSTRAINT checkpoints_session_fkey FOREIGN KEY (session_key) REFERENCES sessions (session_key) ON DELETE CASCADE,
    CONSTRAINT checkpoints_id_is_capped CHECK (octet_length(checkpoint_id) BETWEEN 1 AND 256),
    CONSTRAINT checkpoints_hash_is_sha256 CHECK (octet_length(request_hash) = 32)
);

COMMENT ON TABLE checkpoints IS 'What the agent made of each event, one after another. Stored together with its effects.';
COMMENT ON COLUMN checkpoints.request_hash IS 'Of what was asked for: a known id with an equal body is answered again, with another one refused.';
COMMENT ON COLUMN checkpoints.answer IS 'What the agent was told, and is told again: effects as they were stored, not what became of them since.';

CREATE TABLE effects (
    id              uuid        NOT NULL DEFAULT gen_random_uuid(),
    session_key     text        NOT NULL,
    checkpoint_id   text        NOT NULL,
    event_seq       bigint      NOT NULL,
    position        int         NOT NULL,
    type            text        NOT NULL,
    payload         json        NOT NULL,
    dedupe_key      text        NOT NULL,
    autonomous      boolean     NOT NULL DEFAULT false,
    wakes_did       text,

    status          text        NOT NULL DEFAULT 'pending',
    reason          text,
    send_seq        bigint,
    not_before      timestamptz,
    counted_at      timestamptz,
    attempt_count   int         NOT NULL DEFAULT 0,
    failure_count   int         NOT NULL DEFAULT 0,
    last_attempt_at timestamptz,
    claimed_at      timestamptz,
    claimed_until   timestamptz,
    claim_token     uuid,
    claimed_by      uuid,

    created_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT effects_pkey PRIMARY KEY (id),
    CONSTRAINT effects_dedupe_key_key UNIQUE (dedupe_key),
    CONSTRAINT effects_send_seq_key UNIQUE (session_key, send_seq),
    CONSTRAINT effects_session_fkey FOREIGN KEY (session_key) REFERENCES sessions (session_key) ON DELETE CASCADE,
    CONSTRAINT effects_type_known CHECK (type IN ('send_message', 'schedule_timer', 'wake')),
    CONSTRAINT effects_status_known CHECK (
        status IN ('pending', 'executing', 'completed', 'failed', 'cancelled', 'suppressed')),
    CONSTRAINT effects_dedupe_key_is_sha256 CHECK (dedupe_key ~ '^[0-9a-f]{64}$'),
    CONSTRAINT effects_checkpoint_id_is_capped CHECK (octet_length(checkpoint_id) BETWEEN 1 AND 256),
    CONSTRAINT effects_payload_is_capped CHECK (octet_length(payload::text) <= 262144),
    CONSTRAINT effects_numbers_in_range CHECK (
        event_seq >= 1 AND position >= 0 AND send_seq >= 1 AND attempt_count >= 0 AND failure_count >= 0),
    -- A claim is what makes it executing: one without could never run out, and the effect would be stuck.
    CONSTRAINT effects_claim_is_whole CHECK (num_nulls(claimed_at, claimed_until, claim_token, claimed_by) IN (0, 4)),
    CONSTRAINT effects_executing_is_claimed CHECK ((status = 'executing') = (claim_token IS NOT NULL)),
    CONSTRAINT effects_attempts_have_an_instant CHECK ((attempt_count = 0) = (last_attempt_at IS NULL)),
    CONSTRAINT effects_timers_are_born_done CHECK (type <> 'schedule_timer' OR status IN ('completed', 'cancelled')),
    CONSTRAINT effects_wakes_have_an_instant CHECK (type <> 'wake' OR not_before IS NOT NULL),
    CONSTRAINT effects_wakes_alone_are_for_somebody CHECK ((type = 'wake') = (wakes_did IS NOT NULL)),
    -- NULL in all others, which are therefore not bound by it.
    CONSTRAINT effects_wakes_fkey FOREIGN KEY (session_key, wakes_did)
        REFERENCES sessions (session_key, owner_did) ON DELETE CASCADE ON UPDATE CASCADE,
    CONSTRAINT effects_sends_alone_are_numbered CHECK (type = 'send_message' OR send_seq IS NULL),
    CONSTRAINT effects_sends_alone_are_autonomous CHECK (type = 'send_message' OR NOT autonomous),
    CONSTRAINT effects_autonomous_alone_are_restrained CHECK (
        autonomous OR (counted_at IS NULL AND status <> 'suppressed')),
    CONSTRAINT effects_suppressed_or_failed_says_why CHECK (status NOT IN ('suppressed', 'failed') OR reason IS NOT NULL),
    CONSTRAINT effects_reason_is_capped CHECK (char_length(reason) <= 300)
)
WITH (fillfactor = 70);

COMMENT ON TABLE effects IS 'What agents want done, and what became of it: recorded once per dedupe key, completed at most once.';
COMMENT ON COLUMN effects.checkpoint_id IS 'The checkpoint that asked for it; of a wake `timer:<event id>`, which is why this is no foreign key.';
COMMENT ON COLUMN effects.event_seq IS 'The event it answers. With position it gives the order within the session.';
COMMENT ON COLUMN effects.autonomous IS 'Whether it is the agent''s own idea: such a send is capped, and cancelled when the user speaks.';
COMMENT ON COLUMN effects.wakes_did IS 'Of a wake, whose: the session''s owner, by which a claim lets nobody crowd out the others.';
COMMENT ON COLUMN effects.reason IS 'Why it was suppressed, cancelled or failed; of a wake on its ladder, why the last try was not taken.';
COMMENT ON COLUMN effects.send_seq IS 'The number the client sees, given when it first goes out; NULL before.';
COMMENT ON COLUMN effects.not_before IS 'A deferred send waits for the end of the cooldown, a wake for its next rung; NULL: at once.';
COMMENT ON COLUMN effects.failure_count IS 'Tries of a wake that were answered with a failure. attempt_count also counts those whose worker died.';
COMMENT ON COLUMN effects.claimed_by IS 'Of a send the stream it went out on, of a wake the worker that delivers it.';
COMMENT ON COLUMN effects.counted_at IS 'When the cap and the cooldown counted it. Once: sending it again neither counts nor waits.';
COMMENT ON COLUMN effects.claim_token IS 'As of alarms: new with every claim, and whoever does not hold it changes nothing.';

CREATE INDEX idx_effects_status_created ON effects (status, created_at) WHERE status = 'pending';
-- A session's effects in their order; and those of which something may still become.
CREATE INDEX effects_session_key_idx ON effects (session_key, event_seq, position);
CREATE INDEX effects_open_idx ON effects (session_key, event_seq, position) WHERE status IN ('pending', 'executing');
-- Wakes that are to be delivered.
CREATE INDEX effects_wakes_due_idx ON effects (not_before) WHERE type = 'wake' AND status = 'pending';
CREATE INDEX effects_wakes_owner_idx ON effects (wakes_did, not_before) WHERE type = 'wake' AND status = 'pending';
-- What a crash left behind is found by the end of its lease.
CREATE INDEX effects_executing_idx ON effects (claimed_until) WHERE status = 'executing';

ALTER TABLE alarms ADD CONSTRAINT alarms_session_fkey
    FOREIGN KEY (session_key, owner_did) REFERENCES sessions (session_key, owner_did) ON DELETE CASCADE ON UPDATE CASCADE;

-- By the column and not by the subject, as for service calls: the cascade finds a session's timers by it.
CREATE UNIQUE INDEX alarms_session_timer_idx ON alarms (session_key, timer_id) WHERE session_key IS NOT NULL;
-- What a user's message cancels.
CREATE INDEX alarms_session_pending_idx ON alarms (session_key) WHERE session_key IS NOT NULL AND status = 'active';
CREATE INDEX idx_timers_fire_at ON alarms (next_fire_at) WHERE subject = 'session' AND status = 'active';

-- As the data model of server-side autonomy has it: its columns and its three words.
CREATE VIEW autonomy_timers AS
SELECT
    id,
    session_key,
    timer_id,
    -- The nominal instant, never a retry's.
    scheduled_for AS fire_at,
    -- A timer that carries nothing has the JSON null.
    CASE WHEN payload::text <> 'null' THEN payload END AS payload,
    CASE status WHEN 'active' THEN 'pending' WHEN 'fired' THEN 'promoted' WHEN 'cancelled' THEN 'cancelled' END AS status,
    created_at,
    updated_at
FROM alarms
WHERE subject = 'session';

COMMENT ON VIEW autonomy_timers IS 'The timers of sessions, for people and for queries written against the document. Chronos itself reads alarms.';
