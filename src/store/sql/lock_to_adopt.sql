-- The alarms of these names in two clusters: $1 and $2 the clusters, $3 namespaces, $4 names. What was cancelled with its resource or
-- its cluster is nobody's any more. Locked in the order of their ids, and as they are once the lock is had.
SELECT id, cluster_id, resource_namespace, resource_name, owner_did, status IN ('active', 'paused') AS living, created_at,
       adopted_at IS NOT NULL AS waits
FROM alarms
JOIN unnest($3::text[], $4::text[]) AS meant (namespace, name)
    ON resource_namespace = meant.namespace AND resource_name = meant.name
WHERE source = 'kubernetes' AND cluster_id IN ($1, $2) AND coalesce(cancelled_by NOT IN ('resource', 'cluster'), true)
ORDER BY id
FOR UPDATE OF alarms
