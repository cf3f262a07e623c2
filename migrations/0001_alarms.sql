-- Migration 1: alarms and what became of them, and the open challenges of agents that sign in.
-- Until 0.1.0 is tagged this file may be rewritten; afterwards migrations only add.

CREATE TABLE alarms (
    id                  uuid        NOT NULL DEFAULT gen_random_uuid(),
    subject             text        NOT NULL DEFAULT 'agent',
    owner_did           text        NOT NULL,
    user_id             text        NOT NULL,
    label               text        NOT NULL DEFAULT '',
    labels              jsonb       NOT NULL DEFAULT '{}',
    correlation_id      text        NOT NULL,
    -- Of timers: which service call, or which timer of which session (their tables come with later migrations).
    service_call_id     text,
    registered_at       timestamptz,
    session_key         text,
    timer_id            text,

    kind                text        NOT NULL,
    fire_at             timestamptz,
    cron_expr           text        NOT NULL DEFAULT '',
    timezone            text        NOT NULL DEFAULT 'UTC',
    starts_at           timestamptz,
    ends_at             timestamptz,
    spread              interval    NOT NULL DEFAULT '0',
    spread_offset       interval    NOT NULL DEFAULT '0',
    misfire             text        NOT NULL DEFAULT 'fire_once',
    max_lateness        interval,

    conversation_id     text        NOT NULL DEFAULT '',
    wake_message        text        NOT NULL DEFAULT '',
    payload             json        NOT NULL DEFAULT '{}',
    max_failures        int         NOT NULL DEFAULT 5,

    status              text        NOT NULL DEFAULT 'active',
    paused_by           text[]      NOT NULL DEFAULT '{}',
    cancelled_by        text,
    scheduled_for       timestamptz NOT NULL,
    series_at           timestamptz,
    next_fire_at        timestamptz NOT NULL,
    schedule_epoch      bigint      NOT NULL DEFAULT 0,
    revision            bigint      NOT NULL DEFAULT 1,
    failure_count       int         NOT NULL DEFAULT 0,
    last_error          text        NOT NULL DEFAULT '',
    fired_count         bigint      NOT NULL DEFAULT 0,
    missed_count        bigint      NOT NULL DEFAULT 0,
    occurrence_missed   bigint      NOT NULL DEFAULT 0,

    claimed_at          timestamptz,
    claim_token         uuid,
    claimed_by          uuid,
    claimed_until       timestamptz,
    claims              int         NOT NULL DEFAULT 0,
    first_claimed_at    timestamptz,

    source              text        NOT NULL DEFAULT 'api',
    idempotency_key     text        NOT NULL DEFAULT '',
    cluster_id          uuid,
    resource_uid        uuid,
    resource_namespace  text,
    resource_name       text,
    resource_generation bigint,
    definition_hash     bytea,

    created_at          timestamptz NOT NULL DEFAULT now(),
    updated_at          timestamptz NOT NULL DEFAULT now(),
    last_fired_at       timestamptz,

    CONSTRAINT alarms_pkey PRIMARY KEY (id),
    CONSTRAINT alarms_subject_known CHECK (subject IN ('agent', 'service_call', 'session')),
    CONSTRAINT alarms_kind_known CHECK (kind IN ('once', 'cron')),
    CONSTRAINT alarms_once_has_an_instant CHECK ((kind = 'once') = (fire_at IS NOT NULL)),
    CONSTRAINT alarms_cron_has_an_expression CHECK ((kind = 'cron') = (cron_expr <> '')),
    CONSTRAINT alarms_timers_are_once CHECK (subject = 'agent' OR kind = 'once'),
    CONSTRAINT alarms_subject_has_its_names CHECK (
        CASE subject
            WHEN 'agent' THEN num_nonnulls(service_call_id, registered_at, session_key, timer_id) = 0
            WHEN 'service_call' THEN num_nulls(service_call_id, registered_at) = 0 AND num_nonnulls(session_key, timer_id) = 0
            WHEN 'session' THEN num_nulls(session_key, timer_id) = 0 AND num_nonnulls(service_call_id, registered_at) = 0
        END),
    CONSTRAINT alarms_window_is_of_cron CHECK (kind = 'cron' OR (starts_at IS NULL AND ends_at IS NULL AND spread = '0')),
    CONSTRAINT alarms_window_is_in_order CHECK (starts_at < ends_at),
    CONSTRAINT alarms_spread_offset_is_within CHECK (
        spread >= '0' AND spread_offset >= '0' AND (spread_offset < spread OR spread_offset = '0')),
    CONSTRAINT alarms_misfire_known CHECK (misfire IN ('fire_once', 'skip', 'fire_all')),
    CONSTRAINT alarms_max_lateness_is_not_negative CHECK (max_lateness >= '0'),
    CONSTRAINT alarms_policies_are_of_agents CHECK (
        subject = 'agent' OR (misfire = 'fire_once' AND max_lateness IS NULL AND spread = '0' AND paused_by = '{}')),
    CONSTRAINT alarms_status_known CHECK (
        CASE subject
            WHEN 'agent' THEN status IN ('active', 'paused', 'fired', 'cancelled', 'failed')
            -- Never given up: deleted with its call, or reached.
            WHEN 'service_call' THEN status IN ('active', 'fired')
            WHEN 'session' THEN status IN ('active', 'fired', 'cancelled')
        END),
    CONSTRAINT alarms_keys_are_of_agents CHECK (subject = 'agent' OR (idempotency_key = '' AND source <> 'kubernetes')),
    CONSTRAINT alarms_sessions_are_their_source CHECK ((subject = 'session') = (source = 'session')),
    CONSTRAINT alarms_paused_by_known CHECK (paused_by <@ ARRAY['owner', 'spec', 'agent']),
    CONSTRAINT alarms_paused_by_each_once CHECK (
        -- Said first what is so nearly always: every claim and settle asks.
        cardinality(paused_by) <= 1 OR cardinality(array_positions(paused_by, 'owner')) <= 1 AND cardinality(array_positions(paused_by, 'spec')) <= 1
        AND cardinality(array_positions(paused_by, 'agent')) <= 1),
    CONSTRAINT alarms_paused_has_a_cause CHECK (status <> 'paused' OR paused_by <> '{}'),
    CONSTRAINT alarms_active_has_no_pause CHECK (status <> 'active' OR paused_by = '{}'),
    CONSTRAINT alarms_cancelled_by_known CHECK (cancelled_by IN ('owner', 'resource', 'cluster', 'agent')),
    CONSTRAINT alarms_cancelled_says_by_whom CHECK ((status = 'cancelled') = (cancelled_by IS NOT NULL)),
    CONSTRAINT alarms_claim_is_whole CHECK (num_nulls(claimed_at, claim_token, claimed_by, claimed_until) IN (0, 4)),
    CONSTRAINT alarms_first_claim_is_of_a_claim CHECK ((claims = 0) = (first_claimed_at IS NULL)),
    CONSTRAINT alarms_claim_is_of_the_living CHECK (claim_token IS NULL OR status IN ('active', 'paused')),
    CONSTRAINT alarms_max_failures_in_range CHECK (max_failures BETWEEN 0 AND 100),
    CONSTRAINT alarms_counts_are_not_negative CHECK (
        failure_count >= 0 AND claims >= 0 AND fired_count >= 0 AND missed_count >= 0 AND occurrence_missed >= 0),
    CONSTRAINT alarms_source_known CHECK (source IN ('api', 'kubernetes', 'session')),
    CONSTRAINT alarms_resource_is_whole CHECK (
        CASE WHEN source = 'kubernetes'
             THEN num_nulls(cluster_id, resource_uid, resource_namespace, resource_name, resource_generation, definition_hash) = 0
             ELSE num_nonnulls(cluster_id, resource_uid, resource_namespace, resource_name, resource_generation, definition_hash) = 0
        END),
    CONSTRAINT alarms_labels_are_a_map CHECK (jsonb_typeof(labels) = 'object'),
    -- The caps of the front doors, once more where nothing gets past them.
    CONSTRAINT alarms_texts_are_capped CHECK (
        octet_length(owner_did) BETWEEN 1 AND 256 AND octet_length(user_id) BETWEEN 1 AND 256
        AND octet_length(timer_id) BETWEEN 1 AND 256
        AND octet_length(label) <= 256 AND octet_length(correlation_id) BETWEEN 1 AND 256
        AND octet_length(idempotency_key) <= 256 AND octet_length(conversation_id) <= 256
        AND octet_length(cron_expr) <= 256 AND octet_length(timezone) BETWEEN 1 AND 64
        AND octet_length(wake_message) <= 32768
        -- Of 256 KiB, and 4 bytes that say how long it is: its size as it lies there. Spelling it out as text with every claim and
        -- every settle took a third of their time.
        AND pg_column_size(payload) <= 262148)
)
-- Every claim and settle rewrites the row. Somewhat more than half of each page is left free, so that every row of it can be claimed in its
-- place, with the claim's own columns: a HOT update, no index entry, and no image of a second page in the log. At 60 a third of the claims
-- found no room (ADR 13).
WITH (fillfactor = 45);

-- Not compressed: a claim knows what a payload weighs without reading it, and nobody spends time on unpacking (ADR 7).
ALTER TABLE alarms ALTER payload SET STORAGE EXTERNAL, ALTER wake_message SET STORAGE EXTERNAL;

COMMENT ON TABLE alarms IS 'The durable timer: one row per standing intention. The row is the timer, nothing is held in memory.';
COMMENT ON COLUMN alarms.subject IS 'Whom the wake is for. Giving up, misfire, lateness, spread and pause belong to agents alone.';
COMMENT ON COLUMN alarms.registered_at IS 'When a service call''s timer was last asked for.';
COMMENT ON COLUMN alarms.spread IS 'The window within which the effective instant may lie behind the nominal one.';
COMMENT ON COLUMN alarms.spread_offset IS 'How far behind it lies: a hash of the id, fixed with the schedule. next_fire_at = scheduled_for + spread_offset.';
COMMENT ON COLUMN alarms.payload IS 'json, not jsonb: the agent gets back the very bytes it stored.';
COMMENT ON COLUMN alarms.scheduled_for IS 'Nominal instant of the occurrence now due. Stays while next_fire_at moves along the ladder.';
COMMENT ON COLUMN alarms.series_at IS 'Up to where the slots of the series are told, where that is not scheduled_for: while an occurrence fired by hand is due, or after a pause on the ladder.';
COMMENT ON COLUMN alarms.next_fire_at IS 'When to try next: the occurrence''s effective instant, or the next rung.';
COMMENT ON COLUMN alarms.schedule_epoch IS 'Grows when an occurrence is re-planned. Part of the delivery id and of the fence.';
COMMENT ON COLUMN alarms.revision IS 'Grows with every edit.';
COMMENT ON COLUMN alarms.claim_token IS 'New with every claim. A settle that does not hold it changes nothing.';
COMMENT ON COLUMN alarms.claimed_by IS 'One UUID per process start.';
COMMENT ON COLUMN alarms.claimed_until IS 'The end of the lease: from then on anybody may claim the row.';
COMMENT ON COLUMN alarms.first_claimed_at IS 'When this occurrence was first claimed without a result since. It is judged as of then, however often it is claimed: the same verdict each time.';
COMMENT ON COLUMN alarms.claims IS 'Claims of this occurrence that have had no result yet.';
COMMENT ON COLUMN alarms.occurrence_missed IS 'What the wake now due carries as `missed`.';
COMMENT ON COLUMN alarms.definition_hash IS 'SHA-256 over what the resource asked for: an equal one writes nothing.';

CREATE FUNCTION labels_match(labels jsonb, requirements jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN requirements IS NULL OR NOT EXISTS (
    SELECT FROM jsonb_to_recordset(requirements) AS required (key text, test text, "values" jsonb)
    WHERE NOT CASE required.test
        WHEN 'in' THEN coalesce(required."values" ? (labels ->> required.key), false)
        WHEN 'notin' THEN NOT coalesce(required."values" ? (labels ->> required.key), false)
        WHEN 'exists' THEN labels ? required.key
        WHEN 'absent' THEN NOT labels ? required.key
    END);
COMMENT ON FUNCTION labels_match(jsonb, jsonb) IS 'Whether labels meet every requirement of a selector: [{key, test: in|notin|exists|absent, values}]. As in Kubernetes, what is not there is also not one of the values.';

-- The claim path. The claim's own columns stay out of every index, or no claim could be a HOT update.
-- With the id, so that a claim can begin behind the last one, also where very many are due at one instant.
CREATE INDEX alarms_due_idx ON alarms (next_fire_at, id) WHERE status = 'active';
CREATE INDEX alarms_owner_due_idx ON alarms (owner_did, next_fire_at) WHERE status = 'active';
CREATE INDEX alarms_owner_idx ON alarms (owner_did, created_at DESC);
CREATE UNIQUE INDEX alarms_idempotency_idx ON alarms (owner_did, idempotency_key) WHERE idempotency_key <> '';
CREATE UNIQUE INDEX alarms_resource_idx ON alarms (cluster_id, resource_uid) WHERE source = 'kubernetes';
CREATE INDEX alarms_resource_name_idx ON alarms (cluster_id, resource_namespace, resource_name) WHERE source = 'kubernetes';

CREATE TABLE attempts (
    id             uuid        NOT NULL DEFAULT gen_random_uuid(),
    alarm_id       uuid        NOT NULL,
    owner_did      text        NOT NULL,
    claim_token    uuid,
    delivery_id    uuid,
    scheduled_for  timestamptz NOT NULL,
    attempt        int         NOT NULL,
    started_at     timestamptz NOT NULL,
    duration_ms    bigint      NOT NULL DEFAULT 0,
    outcome        text        NOT NULL,
    http_status    int,
    error          text        NOT NULL DEFAULT '',
    worker         uuid,
    first_at       timestamptz,
    last_at        timestamptz,
    slots          bigint,
    reason         text,
    -- Repeating a settle whose answer was lost sends the same values and changes nothing. Number and reason are among them
    -- because one claim may leave a try and the runs of slots it passed over, within a microsecond. In this order the same
    -- index reads an alarm's history: every attempt pays for one index, not for two.
    CONSTRAINT attempts_once_per_claim UNIQUE NULLS NOT DISTINCT (alarm_id, started_at, claim_token, attempt, reason),
    CONSTRAINT attempts_outcome_known CHECK (
        outcome IN ('delivered', 'retrying', 'exhausted', 'missed', 'skipped', 'cancelled', 'fenced')),
    CONSTRAINT attempts_number_in_range CHECK (attempt >= 0),
    CONSTRAINT attempts_run_is_in_order CHECK (first_at <= last_at AND slots >= 1),
    CONSTRAINT attempts_try_or_run CHECK (
        CASE WHEN attempt = 0
             THEN num_nulls(first_at, last_at, slots, reason) = 0 AND http_status IS NULL
             ELSE num_nonnulls(first_at, last_at, slots, reason) = 0 AND num_nulls(claim_token, delivery_id) = 0
        END),
    CONSTRAINT attempts_error_is_capped CHECK (char_length(error) <= 300)
) PARTITION BY RANGE (started_at);

COMMENT ON COLUMN attempts.id IS 'Orders rows of one instant; not unique by constraint, and nobody refers to it.';
COMMENT ON COLUMN attempts.delivery_id IS 'What a receiver dedupes on; of a run that of its last slot, NULL where the database itself wrote the row (the id is a SHA-1, which Postgres does not have).';
COMMENT ON TABLE attempts IS 'What became of every try, and of every run of slots that did not fire (attempt 0). Immutable; no foreign key, so that history outlives its alarm.';
CREATE TABLE attempts_default PARTITION OF attempts DEFAULT;
COMMENT ON TABLE attempts_default IS 'Catches what no daily partition takes: a missing partition must never fail a settle.';

CREATE TABLE nonces (
    did        text        NOT NULL,
    nonce      text        NOT NULL,
    expires_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT nonces_pkey PRIMARY KEY (did, nonce)
);
COMMENT ON TABLE nonces IS 'Open challenges, in the database so that any replica can verify. Consumed by DELETE ... RETURNING before the signature is looked at.';
CREATE INDEX nonces_expiry_idx ON nonces (expires_at);
