-- How many alarms of owner $1 in one of the statuses $2 meet the requirements $3, how many of them action $4 can change, and the first
-- $5 of those, behind id $6 if one is given. What a resource manages is not to be changed here.
SELECT
    count(*) AS matched,
    count(*) FILTER (WHERE fits) AS fitting,
    coalesce((array_agg(id ORDER BY id) FILTER (WHERE fits))[1:$5], '{}') AS ids
FROM (
    SELECT id, source <> 'kubernetes' AND CASE $4
        WHEN 'cancel' THEN status IN ('active', 'paused')
        WHEN 'pause' THEN status IN ('active', 'paused') AND NOT 'owner' = ANY (paused_by)
        WHEN 'resume' THEN 'owner' = ANY (paused_by)
        -- What has passed needs another instant, or another end, which no bulk can give.
        WHEN 'rearm' THEN status NOT IN ('active', 'paused') AND (kind = 'cron' OR fire_at > now())
                          AND coalesce(ends_at > now(), true)
    END AS fits
    FROM alarms
    WHERE owner_did = $1 AND subject = 'agent' AND status = ANY ($2)
      AND ($3::text IS NULL OR labels_match(labels, $3::jsonb))
      AND ($6::uuid IS NULL OR id > $6)
) AS selected
