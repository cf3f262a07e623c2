-- Some owners (the keys of $14) have more due than they have room for, or are suspended and have none. Reading on along alarms_due_idx would
-- mean reading through all of it, so rows are found by owner instead. Whose: those with a row that became due since $15, those with a backlog and room again,
-- and, when $16 says so, every owner there is, one probe of alarms_owner_due_idx each.
fresh AS (
    SELECT owner_did, next_fire_at
    FROM alarms
    WHERE status = 'active' AND next_fire_at > $15 AND next_fire_at <= now()
    ORDER BY next_fire_at
    -- A backlog may grow while we look: not more than this is read of it.
    LIMIT 1000
), everyone AS (
    (SELECT owner_did, next_fire_at FROM alarms WHERE status = 'active' AND $16 ORDER BY owner_did, next_fire_at LIMIT 1)
    UNION ALL
    SELECT later.owner_did, later.next_fire_at
    FROM everyone
    CROSS JOIN LATERAL (
        SELECT owner_did, next_fire_at FROM alarms
        WHERE status = 'active' AND owner_did > everyone.owner_did
        ORDER BY owner_did, next_fire_at LIMIT 1
    ) AS later
), waiting AS (
    SELECT found.owner_did, shut_out.did IS NOT NULL AS suspended, min(found.next_fire_at) AS since,
           CASE WHEN shut_out.did IS NULL THEN coalesce(($8::jsonb ->> found.owner_did)::int, $10) ELSE 0 END AS room
    FROM (
        SELECT owner_did, next_fire_at FROM fresh WHERE NOT $14::jsonb ? owner_did
        UNION ALL
        SELECT owner_did, next_fire_at FROM everyone WHERE next_fire_at <= now() AND NOT $14::jsonb ? owner_did
        UNION ALL
        SELECT owner_did, (
            SELECT next_fire_at FROM alarms
            WHERE status = 'active' AND alarms.owner_did >= backlog.owner_did AND alarms.owner_did <= backlog.owner_did
            ORDER BY alarms.owner_did, next_fire_at LIMIT 1
        )
        FROM jsonb_object_keys($14::jsonb) AS backlog (owner_did)
    ) AS found
    LEFT JOIN shut_out ON shut_out.did = found.owner_did
    GROUP BY found.owner_did, shut_out.did
), due AS MATERIALIZED (
    SELECT oldest.id, waiting.owner_did, waiting.room, oldest.next_fire_at, oldest.claims, oldest.bytes
    FROM (SELECT * FROM waiting WHERE room > 0 ORDER BY since) AS waiting
    CROSS JOIN LATERAL (
        SELECT id, next_fire_at, claims, pg_column_size(payload) + octet_length(wake_message) AS bytes
        FROM alarms
        -- This owner's until now, in words for which there is only alarms_owner_due_idx. The plan is kept: where nothing was due when it was
        -- made, walking along alarms_due_idx would have looked as good.
        WHERE status = 'active' AND alarms.owner_did >= waiting.owner_did
          AND (alarms.owner_did, next_fire_at) <= (waiting.owner_did, now())
          AND (claimed_until IS NULL OR claimed_until <= now())
          AND ($12 OR claims < $11)
          AND ($13 OR subject <> 'session')
          AND (SELECT claim FROM may)
        ORDER BY alarms.owner_did, next_fire_at
        -- One more than any owner has room for tells that there is a backlog.
        LIMIT $10 + 1
    ) AS oldest
), ranked AS (
    SELECT id, owner_did, claims, room,
           row_number() OVER (PARTITION BY owner_did ORDER BY next_fire_at, id) AS of_owner,
           row_number() OVER by_age AS place,
           sum(bytes) OVER by_age - bytes AS bytes_before,
           first_value(claims) OVER by_age AS eldest_claims
    FROM due
    WINDOW by_age AS (ORDER BY next_fire_at, id)
), chosen AS (
    SELECT id, row_number() OVER (ORDER BY place) AS place FROM ranked
    WHERE of_owner <= room AND bytes_before < $7
      AND CASE WHEN eldest_claims >= $11 THEN place = 1 ELSE claims < $11 END
), taken AS (
    SELECT locked.id, chosen.place
    FROM chosen
    CROSS JOIN LATERAL (
        SELECT id FROM alarms
        -- By its id, and so that no other index would do: as above.
        WHERE alarms.id = chosen.id
          AND CASE WHEN status = 'active' AND next_fire_at <= now() THEN claimed_until IS NULL OR claimed_until <= now() END
        FOR UPDATE SKIP LOCKED
    ) AS locked
    WHERE chosen.place <= $5
),
-- A suspended owner is told of with every look, as long as anything of its is due: it was asked about as one that has room, and who
-- is not told of counts as having no backlog any more.
crowd AS (
    SELECT owner_did, false AS suspended FROM ranked WHERE of_owner > room
    UNION
    SELECT owner_did, true FROM waiting WHERE suspended AND since <= now()
),
-- Was anything left that this look could have found? What is taken alone leaves the others behind, as does what fits no more.
-- When everybody was asked, it does not matter that not all that is fresh was read.
surveyed AS (
    SELECT ($16 OR (SELECT count(*) FROM fresh) < 1000) AND (SELECT count(*) FROM chosen) <= $5
           AND NOT EXISTS (SELECT FROM ranked WHERE claims >= $11 OR bytes_before >= $7) AS whole
),
