-- The oldest due rows, whosever they are; behind $14, $15, if given: what lies before was seen a moment ago. It is in flight, or settled and
-- not vacuumed yet, and reading through it with every claim would cost as much as the claim.
due AS MATERIALIZED (
    SELECT id, owner_did, next_fire_at, claims, pg_column_size(payload) + octet_length(wake_message) AS bytes
    FROM alarms
    WHERE status = 'active'
      AND next_fire_at <= now()
      AND (claimed_until IS NULL OR claimed_until <= now())
      AND ($12 OR claims < $11)
      AND ($13 OR subject <> 'session')
      AND (SELECT claim FROM may)
      AND (next_fire_at, id) > (coalesce($14, '-infinity'), coalesce($15, '00000000-0000-0000-0000-000000000000'))
    ORDER BY next_fire_at, id
    LIMIT $5
    FOR UPDATE SKIP LOCKED
), ranked AS (
    SELECT due.id, due.owner_did, due.claims, shut_out.did IS NOT NULL AS suspended,
           CASE WHEN shut_out.did IS NULL THEN coalesce(($8::jsonb ->> due.owner_did)::int, $10) ELSE 0 END AS room,
           row_number() OVER (PARTITION BY due.owner_did ORDER BY due.next_fire_at, due.id) AS of_owner,
           row_number() OVER by_age AS place,
           sum(due.bytes) OVER by_age - due.bytes AS bytes_before,
           first_value(due.claims) OVER by_age AS eldest_claims
    FROM due
    LEFT JOIN shut_out ON shut_out.did = due.owner_did
    WINDOW by_age AS (ORDER BY due.next_fire_at, due.id)
), taken AS (
    SELECT id, place FROM ranked
    WHERE of_owner <= room AND bytes_before < $7
      AND CASE WHEN eldest_claims >= $11 THEN place = 1 ELSE claims < $11 END
),
crowd AS (SELECT DISTINCT owner_did, suspended FROM ranked WHERE of_owner > room),
-- Whether all that was free has been seen, and taken: but for what somebody held on to, nothing is left that is due.
surveyed AS (
    SELECT (SELECT claim FROM may) AND count(*) < $5 AND NOT coalesce(bool_or(of_owner > room OR bytes_before >= $7 OR claims >= $11), false) AS whole
    FROM ranked
),
