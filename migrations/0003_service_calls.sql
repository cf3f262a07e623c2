-- Migration 3: timers of service calls. A timer is an alarm with subject service_call; what is here binds it to its call.

CREATE TABLE service_calls (
    tenant_id       text        NOT NULL,
    service_call_id text        NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT service_calls_pkey PRIMARY KEY (tenant_id, service_call_id),
    CONSTRAINT service_calls_tenant_is_capped CHECK (octet_length(tenant_id) BETWEEN 1 AND 256),
    CONSTRAINT service_calls_id_is_well_formed CHECK (service_call_id ~ '^[A-Za-z0-9_.:-]{1,128}$')
);

COMMENT ON TABLE service_calls IS 'Calls that may have a timer. Deleting one deletes its timer.';
COMMENT ON COLUMN service_calls.tenant_id IS 'The caller''s DID: one per tenant. First in every key and every WHERE.';

-- NULL in agents' and sessions' rows, which are therefore not bound by it.
ALTER TABLE alarms ADD CONSTRAINT alarms_service_call_fkey
    FOREIGN KEY (owner_did, service_call_id) REFERENCES service_calls (tenant_id, service_call_id) ON DELETE CASCADE;

-- One timer per call. A CHECK has service_call_id exactly in the rows of subject service_call; the predicate says it by the
-- column because the cascade's own statement knows nothing of subjects, and must find the timer by this index as well.
CREATE UNIQUE INDEX alarms_service_call_idx ON alarms (owner_did, service_call_id) WHERE service_call_id IS NOT NULL;
CREATE INDEX idx_timer_schedules_due_at ON alarms (owner_did, status, next_fire_at) WHERE subject = 'service_call';
CREATE INDEX idx_timer_schedules_correlation_id ON alarms (correlation_id) WHERE subject = 'service_call';

-- Every accepted alarm fires or leaves a row that says why not. Cancelling keeps the alarm's row; a delete does not,
-- whether it comes by the cascade or from somebody's hand: so the table itself writes the trace. What the wake in flight
-- is answered is recorded besides, by its settle.
CREATE FUNCTION alarms_trace_deletion() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO attempts (alarm_id, owner_did, scheduled_for, attempt, started_at, outcome,
                          first_at, last_at, slots, reason)
    VALUES (OLD.id, OLD.owner_did, OLD.scheduled_for, 0, now(),
            'cancelled', OLD.scheduled_for, OLD.scheduled_for, 1, 'deleted');
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION alarms_trace_deletion IS 'Records the occurrence that a deleted alarm still owed as a cancelled run of one slot.';

CREATE TRIGGER alarms_leave_a_trace AFTER DELETE ON alarms
    FOR EACH ROW WHEN (OLD.status IN ('active', 'paused')) EXECUTE FUNCTION alarms_trace_deletion();

-- As the timer module's own document has it: its columns, its two words, its spelling of instants.
CREATE VIEW timer_schedules AS
SELECT
    owner_did AS tenant_id,
    service_call_id,
    correlation_id,
    -- The nominal instant, never a retry's.
    to_char(scheduled_for AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS due_at,
    to_char(registered_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS registered_at,
    to_char(last_fired_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS reached_at,
    CASE status WHEN 'active' THEN 'Scheduled' WHEN 'fired' THEN 'Reached' END AS state
FROM alarms
WHERE subject = 'service_call';

COMMENT ON VIEW timer_schedules IS 'The timers of service calls, for people and for queries written against the timer module''s document. Chronos itself reads alarms.';
