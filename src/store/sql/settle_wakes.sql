-- What became of wakes. $1 effect, $2 token: the fence. $3 status, $4 why it failed, $5 seconds until the next try.
UPDATE effects
SET status = result.status, reason = CASE WHEN result.status = 'completed' THEN NULL ELSE coalesce(result.why, reason) END, updated_at = now(),
    not_before = CASE WHEN result.wait IS NULL THEN not_before ELSE now() + make_interval(secs => result.wait) END,
    failure_count = failure_count + CASE WHEN result.why IS NULL THEN 0 ELSE 1 END,
    claimed_at = NULL, claimed_until = NULL, claim_token = NULL, claimed_by = NULL
FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::float8[]) AS result (id, token, status, why, wait)
WHERE effects.id = result.id AND effects.claim_token = result.token
