-- Another slot goes out than the one that was claimed, and tells of those that passed: written before it goes out. The claim
-- stays. $1 alarm, $2 token, $3 epoch, $4 slot, $5 when it was due, $6 what its wake tells of, $7 slots that passed, $8 owner.
-- $9 token, $10 first, $11 last, $12 slots, $13 outcome, $14 reason, $15 delivery, $16 when, $17 error: their runs. $18 worker.
WITH folded AS (
    UPDATE alarms
    SET scheduled_for = fold.slot, series_at = NULL, next_fire_at = fold.due_at, occurrence_missed = fold.missed,
        missed_count = missed_count + fold.passed, updated_at = now()
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::timestamptz[], $5::timestamptz[], $6::bigint[], $7::bigint[], $8::text[])
         AS fold (id, token, epoch, slot, due_at, missed, passed, owner_did)
    WHERE alarms.id = fold.id
      AND alarms.claim_token = fold.token AND alarms.schedule_epoch = fold.epoch AND alarms.status IN ('active', 'paused')
    RETURNING alarms.id, fold.token, fold.owner_did
), passed AS (
    INSERT INTO attempts (
        alarm_id, claim_token, owner_did, delivery_id, scheduled_for, attempt, started_at, outcome, error,
        first_at, last_at, slots, reason, worker)
    SELECT folded.id, folded.token, folded.owner_did, run.delivery_id, run.last_at, 0, run.at, run.outcome, run.error,
           run.first_at, run.last_at, run.slots, run.reason, $18
    FROM unnest($9::uuid[], $10::timestamptz[], $11::timestamptz[], $12::bigint[], $13::text[], $14::text[], $15::uuid[],
                $16::timestamptz[], $17::text[])
         AS run (token, first_at, last_at, slots, outcome, reason, delivery_id, at, error)
    JOIN folded USING (token)
    ON CONFLICT DO NOTHING
)
SELECT id FROM folded
