-- What became of many claims at once. Where the claim still stands, the alarm gets its next state, and its attempt and the slots that
-- passed are written with it; where it does not, nothing is, and the caller records the attempt by record_lost.sql.
-- $1 alarm, $2 token, $3 epoch: the fence. $4 final status or NULL, $5 scheduled_for, $6 next_fire_at, $7 failure_count,
-- $8 last_error, $9 fired, $10 what the next wake tells of, $11 slots that passed.
-- $12 owner, $13 delivery, $14 nominal instant, $15 number (0: nothing was sent), $16 started, $17 milliseconds, $18 outcome,
-- $19 HTTP status, $20 error: the attempt. $21 worker.
-- $22 token, $23 first, $24 last, $25 slots, $26 outcome, $27 reason, $28 delivery, $29 when, $30 error: runs of slots that passed.
-- $31 the channel of hints.
WITH result AS (
    SELECT * FROM unnest(
        $1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::int[], $8::text[], $9::bool[],
        $10::bigint[], $11::bigint[], $12::text[], $13::uuid[], $14::timestamptz[], $15::int[], $16::timestamptz[], $17::bigint[],
        $18::text[], $19::int[], $20::text[]
    ) AS result (
        id, token, epoch, over, scheduled_for, next_fire_at, failure_count, last_error, fired,
        missed, passed, owner_did, delivery_id, nominal, attempt, started_at, duration_ms, outcome, http_status, error)
), settled AS (
    UPDATE alarms
    SET status = coalesce(result.over, alarms.status),
        paused_by = CASE WHEN result.over IS NULL THEN paused_by ELSE '{}' END,
        scheduled_for = result.scheduled_for,
        -- Another slot than before is one of the series; the same one keeps what is told of the series.
        series_at = CASE WHEN alarms.scheduled_for = result.scheduled_for THEN series_at END,
        next_fire_at = result.next_fire_at,
        failure_count = result.failure_count,
        last_error = result.last_error,
        fired_count = fired_count + CASE WHEN result.fired THEN 1 ELSE 0 END,
        -- A service call is told when its timer was reached: the row says the same instant.
        last_fired_at = CASE WHEN NOT result.fired THEN last_fired_at WHEN subject = 'service_call' THEN alarms.claimed_at ELSE now() END,
        occurrence_missed = result.missed,
        missed_count = missed_count + result.passed,
        claimed_at = NULL, claim_token = NULL, claimed_by = NULL, claimed_until = NULL, claims = 0, first_claimed_at = NULL,
        updated_at = now()
    FROM result
    WHERE alarms.id = result.id
      AND alarms.claim_token = result.token AND alarms.schedule_epoch = result.epoch AND alarms.status IN ('active', 'paused')
    -- All that follows comes from here: how many rows a fence lets through no planner can guess, and its joins would be loops in loops.
    RETURNING alarms.id, result.token, result.owner_did, result.delivery_id, result.nominal, result.attempt, result.started_at,
              result.duration_ms, result.outcome, result.http_status, result.error,
              source, cluster_id, resource_namespace, resource_name
), attempted AS (
    INSERT INTO attempts (
        id, alarm_id, claim_token, owner_did, delivery_id, scheduled_for, attempt, started_at, duration_ms,
        outcome, http_status, error, worker)
    -- Its own id is the token's: as random, and Postgres takes a microsecond to think of another.
    SELECT token, id, token, owner_did, delivery_id, nominal, attempt, started_at, duration_ms,
           outcome, http_status, error, $21
    -- Without ON CONFLICT, which costs: what stood until now has left no attempt yet, and sent again it does not stand any more.
    FROM settled
    WHERE attempt > 0
), passed AS (
    INSERT INTO attempts (
        alarm_id, claim_token, owner_did, delivery_id, scheduled_for, attempt, started_at, outcome, error,
        first_at, last_at, slots, reason, worker)
    SELECT settled.id, settled.token, settled.owner_did, run.delivery_id, run.last_at, 0, run.at, run.outcome, run.error,
           run.first_at, run.last_at, run.slots, run.reason, $21
    FROM unnest($22::uuid[], $23::timestamptz[], $24::timestamptz[], $25::bigint[], $26::text[], $27::text[], $28::uuid[],
                $29::timestamptz[], $30::text[])
         AS run (token, first_at, last_at, slots, outcome, reason, delivery_id, at, error)
    JOIN settled USING (token)
    ON CONFLICT DO NOTHING
)
SELECT settled.token, hint.sent
FROM settled
LEFT JOIN LATERAL (
    SELECT pg_notify($31, concat_ws('/', cluster_id, resource_namespace, resource_name))::text AS sent
    WHERE source = 'kubernetes'
) AS hint ON true
