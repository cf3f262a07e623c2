-- How many alarms of owner $1 in one of the statuses $2 meet the requirements $3, how many of them action $4 can change, and the first
-- $5 of those. What a resource manages is not to be changed here.
SELECT
    count(*) AS matched,
    count(*) FILTER (WHERE fits) AS fitting,
    coalesce((array_agg(id ORDER BY id) FILTER (WHERE fits))[1:$5], '{}') AS ids
FROM (
    SELECT id, source <> 'kubernetes' AND CASE $4
        WHEN 'cancel' THEN status IN ('active', 'paused')
        WHEN 'pause' THEN status IN ('active', 'paused') AND NOT 'owner' = ANY (paused_by)
        WHEN 'resume' THEN 'owner' = ANY (paused_by)
        -- A once alarm whose instant has passed needs a new one, which no bulk can give.
        WHEN 'rearm' THEN status NOT IN ('active', 'paused') AND (kind = 'cron' OR fire_at > now())
    END AS fits
    FROM alarms
    WHERE owner_did = $1 AND subject = 'agent' AND status = ANY ($2)
      AND labels_match(labels, $3::jsonb)
) AS selected
