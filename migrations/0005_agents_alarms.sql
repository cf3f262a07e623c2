-- Migration 5: what becomes of an agent's alarms when the agent is suspended, resumed or removed.

-- With every look a dispatcher asks who of the owners of due rows is suspended: a few of many.
CREATE INDEX agents_suspended_idx ON agents (did) WHERE suspended;
COMMENT ON INDEX agents_suspended_idx IS 'Whose timers wait.';

-- Every few seconds somebody asks whether the alarms of all agents say what their agents' rows say. The active ones of a suspended
-- agent are found by alarms_owner_due_idx; those that are paused, with and without this cause, by this one. The cause is a column of
-- it because an owner may have a hundred thousand alarms paused for another reason, which nobody wants to read each time. Only rows
-- that are paused are in it: no claim and no settle of an active alarm has an entry to write.
CREATE INDEX alarms_owner_paused_idx ON alarms (owner_did, ('agent' = ANY (paused_by))) WHERE status = 'paused';
COMMENT ON INDEX alarms_owner_paused_idx IS 'Paused alarms by owner, and whether the agent''s suspension is among the causes.';
