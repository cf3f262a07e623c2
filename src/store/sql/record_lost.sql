-- Attempts whose claim was lost: they leave their rows, and change nothing else. Or settles whose answer was lost and that were sent
-- again: those are there already, and what they say is the answer.
-- $1 alarm, $2 token, $3 owner, $4 delivery, $5 nominal instant, $6 number, $7 started, $8 milliseconds, $9 HTTP status, $10 error,
-- $11 worker.
WITH result AS (
    SELECT result.*, known.outcome AS known,
           CASE WHEN coalesce(alarms.status, 'cancelled') = 'cancelled' THEN 'cancelled' ELSE 'fenced' END AS outcome
    FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::uuid[], $5::timestamptz[], $6::int[], $7::timestamptz[], $8::bigint[],
                $9::int[], $10::text[])
         AS result (id, token, owner_did, delivery_id, nominal, attempt, started_at, duration_ms, http_status, error)
    LEFT JOIN alarms ON alarms.id = result.id
    LEFT JOIN attempts AS known
        ON known.alarm_id = result.id AND known.started_at = result.started_at AND known.claim_token = result.token
        AND known.attempt = result.attempt
), recorded AS (
    INSERT INTO attempts (
        alarm_id, claim_token, owner_did, delivery_id, scheduled_for, attempt, started_at, duration_ms,
        outcome, http_status, error, worker)
    SELECT id, token, owner_did, delivery_id, nominal, attempt, started_at, duration_ms, outcome, http_status, error, $11
    FROM result WHERE known IS NULL
    ON CONFLICT DO NOTHING
)
SELECT token, coalesce(known, outcome) AS outcome FROM result
