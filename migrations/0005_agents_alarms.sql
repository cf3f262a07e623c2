-- Migration 5: what becomes of an agent's alarms when the agent is suspended, resumed or removed.

-- With every look a dispatcher asks who of the owners of due rows may not be woken: a few of many. Those that are suspended, and those
-- whose row is gone: where agents need not be enrolled at all, a row that was never there says nothing.
CREATE TABLE shut_out (
    did   text        NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT shut_out_pkey PRIMARY KEY (did)
);
COMMENT ON TABLE shut_out IS 'Agents that are suspended or were removed: nothing of theirs is claimed or sent. Kept by a trigger on agents.';

CREATE FUNCTION agents_shut_out() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        INSERT INTO shut_out (did) VALUES (OLD.did) ON CONFLICT DO NOTHING;
    ELSIF NEW.suspended THEN
        INSERT INTO shut_out (did) VALUES (NEW.did) ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM shut_out WHERE did = NEW.did;
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION agents_shut_out IS 'Whoever suspends or removes an agent shuts it out in the same transaction; whoever enrols or resumes it lets it in.';

CREATE TRIGGER agents_are_shut_out AFTER INSERT OR UPDATE OR DELETE ON agents
    FOR EACH ROW EXECUTE FUNCTION agents_shut_out();

-- Every few seconds somebody asks whether the alarms of all agents say what their agents' rows say. The active ones of a suspended
-- agent are found by alarms_owner_due_idx; those that are paused, with and without this cause, by this one. The cause is a column of
-- it because an owner may have a hundred thousand alarms paused for another reason, which nobody wants to read each time. Only rows
-- that are paused are in it: no claim and no settle of an active alarm has an entry to write.
CREATE INDEX alarms_owner_paused_idx ON alarms (owner_did, ('agent' = ANY (paused_by))) WHERE status = 'paused';
COMMENT ON INDEX alarms_owner_paused_idx IS 'Paused alarms by owner, and whether the agent''s suspension is among the causes.';
