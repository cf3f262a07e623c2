-- One challenge in; what has expired, and this DID's oldest beyond the cap, out.
WITH superfluous AS (
    SELECT did, nonce FROM nonces WHERE did = $1 ORDER BY created_at DESC OFFSET $4 - 1
), expired AS (
    -- Whoever else is sweeping at this moment takes theirs; nobody waits for them.
    SELECT did, nonce FROM nonces WHERE expires_at < now() LIMIT 100 FOR UPDATE SKIP LOCKED
), swept AS (
    DELETE FROM nonces WHERE (did, nonce) IN (SELECT * FROM superfluous UNION SELECT * FROM expired)
)
INSERT INTO nonces (did, nonce, expires_at) VALUES ($1, $2, now() + make_interval(secs => $3))
