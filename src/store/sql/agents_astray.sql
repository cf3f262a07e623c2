-- Agents whose alarms do not follow them: of one that is suspended some are not paused by it, of one that is not some are. A probe or
-- two per agent, each by its index, and nothing else while all is well: LATERAL with a LIMIT leaves no other way, and the index
-- knows IS FALSE where it does not know NOT. DIDs that nobody enrolled are not asked about: open enrolment knows no agents, and what a
-- removed agent left behind stays as it is. The alarms of resources go on only for an Agent of their own cluster and namespace.
SELECT did
FROM agents
CROSS JOIN LATERAL (
    (SELECT FROM alarms WHERE owner_did = did AND status = 'active' AND subject = 'agent' LIMIT 1)
    UNION ALL
    (SELECT FROM alarms WHERE owner_did = did AND status = 'paused' AND ('agent' = ANY (paused_by)) IS FALSE LIMIT 1)
    LIMIT 1
) AS unpaused
WHERE suspended
UNION ALL
SELECT did
FROM agents
CROSS JOIN LATERAL (
    SELECT FROM alarms
    WHERE owner_did = did AND status = 'paused' AND ('agent' = ANY (paused_by))
      AND (alarms.source <> 'kubernetes'
           OR (alarms.cluster_id, alarms.resource_namespace) = (agents.cluster_id, agents.resource_namespace))
    LIMIT 1
) AS held
WHERE NOT suspended
