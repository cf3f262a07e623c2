-- Migration 6: what the controller keeps about the alarm of a resource.

ALTER TABLE alarms
    ADD COLUMN fire_requested text,
    ADD COLUMN fires_spent    text[]      NOT NULL DEFAULT '{}',
    ADD COLUMN adopted_at     timestamptz,
    ADD CONSTRAINT alarms_only_resources_are_asked_to_fire CHECK (
        source = 'kubernetes' OR (fire_requested IS NULL AND fires_spent = '{}')),
    ADD CONSTRAINT alarms_only_resources_are_adopted CHECK (adopted_at IS NULL OR source = 'kubernetes'),
    ADD CONSTRAINT alarms_fire_requested_is_capped CHECK (octet_length(fire_requested) BETWEEN 1 AND 256);

COMMENT ON COLUMN alarms.fire_requested IS 'The newest token of the annotation chronos.dev/fire-requested-at that was seen: whoever changes it, in the statement that arms, fires; nobody else does.';
COMMENT ON COLUMN alarms.fires_spent IS 'Those before it, newest first, some of them: a cluster that comes back from a snapshot shows one again, and it must not fire again.';
COMMENT ON COLUMN alarms.adopted_at IS 'When it was handed over from a cluster that is gone. The resource of its namespace and name takes it over, whatever its uid, and clears this.';
