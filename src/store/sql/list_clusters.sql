-- Every cluster that a controller was seen of, or that some row names, with what it has; the one seen last first.
SELECT cluster_id, coalesce(name, '') AS name, last_seen, clock_timestamp() AS as_of,
       coalesce(living, 0) AS living, coalesce(ended, 0) AS ended, coalesce(agents, 0) AS agents
FROM clusters
FULL JOIN (
    SELECT cluster_id,
           count(*) FILTER (WHERE status IN ('active', 'paused')) AS living,
           count(*) FILTER (WHERE status NOT IN ('active', 'paused')) AS ended
    FROM alarms WHERE source = 'kubernetes' GROUP BY cluster_id
) AS theirs USING (cluster_id)
FULL JOIN (
    SELECT cluster_id, count(*) AS agents FROM agents WHERE source = 'kubernetes' GROUP BY cluster_id
) AS enrolled USING (cluster_id)
ORDER BY last_seen DESC NULLS LAST, cluster_id
