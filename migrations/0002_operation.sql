-- Migration 2: what running chronos needs beside alarms: who is enrolled, who dispatches, which clusters write here, the
-- few settings that live in the database, and the daily partitions of attempts.

CREATE TABLE agents (
    did                  text        NOT NULL,
    public_key           text        NOT NULL,
    suspended            boolean     NOT NULL DEFAULT false,
    max_active_alarms    int,
    min_interval_seconds int,

    source               text        NOT NULL,
    cluster_id           uuid,
    resource_uid         uuid,
    resource_namespace   text,
    resource_name        text,
    resource_created_at  timestamptz,

    created_at           timestamptz NOT NULL DEFAULT now(),
    updated_at           timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT agents_pkey PRIMARY KEY (did),
    -- Canonical, as the edge makes it: equal names are equal texts.
    CONSTRAINT agents_did_is_well_formed CHECK (
        did ~ '^did:matrix:[A-Za-z0-9_-]+:[0-9a-f]{16}$' AND octet_length(did) <= 256),
    CONSTRAINT agents_public_key_is_hex CHECK (public_key ~ '^[0-9a-f]{64}$'),
    CONSTRAINT agents_did_names_its_key CHECK (right(did, 16) = left(public_key, 16)),
    CONSTRAINT agents_quotas_are_not_negative CHECK (max_active_alarms >= 0 AND min_interval_seconds >= 0),
    CONSTRAINT agents_source_known CHECK (source IN ('kubernetes', 'cli')),
    CONSTRAINT agents_resource_is_whole CHECK (
        CASE WHEN source = 'kubernetes'
             THEN num_nulls(cluster_id, resource_uid, resource_namespace, resource_name, resource_created_at) = 0
             ELSE num_nonnulls(cluster_id, resource_uid, resource_namespace, resource_name, resource_created_at) = 0
        END)
);

COMMENT ON TABLE agents IS 'Who is enrolled: a signature proves a key, this table says that the key speaks for the user in its DID. Read on every request.';
COMMENT ON COLUMN agents.public_key IS 'The whole key. The DID holds a quarter of it, which others could match by search.';
COMMENT ON COLUMN agents.max_active_alarms IS 'NULL: no limit.';
COMMENT ON COLUMN agents.min_interval_seconds IS 'NULL: no limit.';
COMMENT ON COLUMN agents.source IS 'Who may change the row: an Agent resource, or the command line.';
COMMENT ON COLUMN agents.resource_created_at IS 'The resource''s creationTimestamp: of two resources with one DID the older holds it.';

CREATE UNIQUE INDEX agents_resource_idx ON agents (cluster_id, resource_uid) WHERE source = 'kubernetes';

CREATE TABLE dispatchers (
    worker     uuid        NOT NULL,
    beats      bigint      NOT NULL DEFAULT 1,
    beaten_at  timestamptz NOT NULL DEFAULT now(),
    started_at timestamptz NOT NULL DEFAULT now(),
    version    text        NOT NULL,
    host       text        NOT NULL,
    CONSTRAINT dispatchers_pkey PRIMARY KEY (worker),
    CONSTRAINT dispatchers_beats_are_counted_from_one CHECK (beats >= 1)
)
-- A handful of rows, each rewritten every few seconds: room on the page lets the new version stand beside the old.
WITH (fillfactor = 20);

COMMENT ON TABLE dispatchers IS 'Heartbeats: a peer whose row stays unchanged is dead, and its claims may be taken.';
COMMENT ON COLUMN dispatchers.beats IS 'What peers compare. A counter, not a time: no clock has to agree with another.';
COMMENT ON COLUMN dispatchers.beaten_at IS 'For people. Nothing is decided by it.';
COMMENT ON COLUMN dispatchers.host IS 'For people: pod or machine.';

CREATE TABLE clusters (
    cluster_id uuid        NOT NULL,
    name       text        NOT NULL,
    last_seen  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT clusters_pkey PRIMARY KEY (cluster_id),
    CONSTRAINT clusters_name_is_capped CHECK (octet_length(name) <= 256)
);

COMMENT ON TABLE clusters IS 'Kubernetes clusters whose controllers write here, so that a rebuilt cluster''s forsaken rows can be told from a living one''s.';
COMMENT ON COLUMN clusters.cluster_id IS 'The uid of its kube-system namespace: a rebuilt cluster has another.';
COMMENT ON COLUMN clusters.name IS 'CHRONOS_CLUSTER_NAME; empty when nobody gave one.';

-- One row of typed columns rather than keys and texts: a misspelled key or an unreadable value cannot be stored.
CREATE TABLE settings (
    only_row               boolean     NOT NULL DEFAULT true,
    held_by                text,
    held_at                timestamptz,
    min_compatible_version bigint      NOT NULL,
    min_compatible_release text        NOT NULL,
    zone_database          text,
    CONSTRAINT settings_pkey PRIMARY KEY (only_row),
    CONSTRAINT settings_are_one_row CHECK (only_row),
    CONSTRAINT settings_hold_is_whole CHECK (num_nulls(held_by, held_at) IN (0, 2)),
    CONSTRAINT settings_hold_says_by_whom CHECK (octet_length(held_by) BETWEEN 1 AND 256)
);

COMMENT ON TABLE settings IS 'What all replicas must agree on. One row.';
COMMENT ON COLUMN settings.held_by IS 'Who held dispatch for maintenance; NULL: nobody, alarms are claimed.';
COMMENT ON COLUMN settings.min_compatible_version IS 'The number of a migration: a binary that does not know it refuses this schema. A migration that only adds leaves it alone; one that older binaries cannot live with raises it to its own number.';
COMMENT ON COLUMN settings.min_compatible_release IS 'The first release that knows that migration: what the refusal tells people to install.';
COMMENT ON COLUMN settings.zone_database IS 'Newest zone rules by which instants were computed; NULL: none recorded yet.';

INSERT INTO settings (min_compatible_version, min_compatible_release) VALUES (1, '0.1.0');

-- The partitions of attempts are made and dropped by functions here because their names are computed, and SQL is not
-- assembled from strings anywhere else. Both wait only briefly for their locks: while a statement waits for an exclusive
-- lock on attempts, say behind a dump that reads it for an hour, every settle queues up behind it. Both work one at a time.

CREATE FUNCTION attempts_make_partition(day date) RETURNS boolean
LANGUAGE plpgsql
SET lock_timeout = '2s'
AS $$
DECLARE
    partition text := 'attempts_' || to_char(day, 'YYYYMMDD');
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('chronos: partitions of attempts', 0));
    IF to_regclass(partition) IS NOT NULL THEN
        RETURN true;
    END IF;
    -- Made by itself and then attached: CREATE ... PARTITION OF would keep every settle waiting, ATTACH does not.
    EXECUTE format('CREATE TABLE %I (LIKE attempts INCLUDING ALL)', partition);
    EXECUTE format('COMMENT ON TABLE %I IS %L', partition, 'Attempts of ' || day || ' (UTC).');
    EXECUTE format('ALTER TABLE attempts ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                   partition, day::timestamp AT TIME ZONE 'UTC', (day + 1)::timestamp AT TIME ZONE 'UTC');
    RETURN true;
EXCEPTION
    -- DEFAULT already has rows of that day, which would have to move. They stay, and with them the day.
    WHEN check_violation THEN
        RETURN false;
END
$$;
COMMENT ON FUNCTION attempts_make_partition IS 'Whether this day (UTC) has a partition of its own, made now if need be; false: the DEFAULT partition keeps it.';

CREATE FUNCTION attempts_drop_oldest_partition(before date) RETURNS text
LANGUAGE plpgsql
SET lock_timeout = '2s'
AS $$
DECLARE
    partition text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('chronos: partitions of attempts', 0));
    SELECT relname INTO partition
    FROM pg_inherits
    JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'attempts'::regclass
      AND CASE WHEN relname ~ '^attempts_[0-9]{8}$' THEN to_date(right(relname, 8), 'YYYYMMDD') < before ELSE false END
    ORDER BY relname
    LIMIT 1;
    IF partition IS NOT NULL THEN
        EXECUTE format('DROP TABLE %I', partition);
    END IF;
    RETURN partition;
END
$$;
COMMENT ON FUNCTION attempts_drop_oldest_partition IS 'Drops the oldest daily partition of a day before this one; NULL: there is none. One per call, so that attempts is locked for moments.';
