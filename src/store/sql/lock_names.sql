-- The locks of resources' names: $1 cluster, $2 namespaces, $3 names. In the order of the keys themselves, so that two who want
-- several never wait for each other in a circle.
SELECT pg_advisory_xact_lock(key)
FROM (
    SELECT DISTINCT hashtextextended(concat_ws('/', 'chronos: resource', $1::uuid, namespace, name), 0) AS key
    FROM unnest($2::text[], $3::text[]) AS named (namespace, name)
    ORDER BY key
) AS keys
