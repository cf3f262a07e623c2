-- Mirrors an Agent resource: $1 DID, $2 key, $3 suspended, $4 and $5 quotas, $6 cluster, $7 uid, $8 namespace, $9 name,
-- $10 when it was created. A row is taken from a younger resource, never from an older one or from the command line; the
-- uid decides between two of the same second, so that all replicas decide alike. Under one name of one cluster only one resource
-- stands at a time: there the younger one is the one that stands, and the older one is gone.
INSERT INTO agents (
    did, public_key, suspended, max_active_alarms, min_interval_seconds,
    source, cluster_id, resource_uid, resource_namespace, resource_name, resource_created_at)
VALUES ($1, $2, $3, $4, $5, 'kubernetes', $6, $7, $8, $9, $10)
ON CONFLICT (did) DO UPDATE
SET public_key = excluded.public_key,
    suspended = excluded.suspended,
    max_active_alarms = excluded.max_active_alarms,
    min_interval_seconds = excluded.min_interval_seconds,
    cluster_id = excluded.cluster_id,
    resource_uid = excluded.resource_uid,
    resource_namespace = excluded.resource_namespace,
    resource_name = excluded.resource_name,
    resource_created_at = excluded.resource_created_at,
    updated_at = now()
WHERE agents.source = 'kubernetes'
  AND CASE
      WHEN (agents.cluster_id, agents.resource_uid) = (excluded.cluster_id, excluded.resource_uid)
      THEN (agents.public_key, agents.suspended, agents.max_active_alarms, agents.min_interval_seconds)
           IS DISTINCT FROM
           (excluded.public_key, excluded.suspended, excluded.max_active_alarms, excluded.min_interval_seconds)
      WHEN (agents.cluster_id, agents.resource_namespace, agents.resource_name)
           = (excluded.cluster_id, excluded.resource_namespace, excluded.resource_name)
      THEN excluded.resource_created_at >= agents.resource_created_at
      ELSE (excluded.resource_created_at, excluded.resource_uid) < (agents.resource_created_at, agents.resource_uid)
  END
