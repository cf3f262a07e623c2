-- What became of wakes. $1 effect, $2 token: the fence. $3 status, $4 why it failed, $5 seconds until the next try. Pending again without
-- a failure is one that was not sent: no attempt was made, and it must not look like one that kills whoever delivers it.
UPDATE effects
SET status = result.status, reason = CASE WHEN result.status = 'completed' THEN NULL ELSE coalesce(result.why, reason) END, updated_at = now(),
    not_before = CASE WHEN result.wait IS NULL THEN not_before ELSE now() + make_interval(secs => result.wait) END,
    failure_count = failure_count + CASE WHEN result.why IS NULL THEN 0 ELSE 1 END,
    attempt_count = attempt_count - CASE WHEN result.status = 'pending' AND result.why IS NULL THEN 1 ELSE 0 END,
    last_attempt_at = CASE WHEN result.status = 'pending' AND result.why IS NULL AND attempt_count = 1 THEN NULL ELSE last_attempt_at END,
    claimed_at = NULL, claimed_until = NULL, claim_token = NULL, claimed_by = NULL
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::float8[]) AS result (id, token, status, why, wait)
WHERE effects.id = result.id AND effects.claim_token = result.token
