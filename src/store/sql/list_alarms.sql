-- The alarms of owner $1, newest first. Every filter is NULL where it is not asked for: $2 statuses, $3 kind, $4 prefix of the label,
-- $5 correlation, $6 due from and $7 before, $8 requirements on labels, $9 and $10 the place after which to go on. $11 most.
FROM alarms
WHERE owner_did = $1 AND subject = 'agent'
  AND ($2::text[] IS NULL OR status = ANY ($2))
  AND ($3::text IS NULL OR kind = $3)
  AND ($4::text IS NULL OR starts_with(label, $4))
  AND ($5::text IS NULL OR correlation_id = $5)
  -- Only what is active is due at all.
  AND ($6::timestamptz IS NULL OR (status = 'active' AND next_fire_at >= $6))
  AND ($7::timestamptz IS NULL OR (status = 'active' AND next_fire_at < $7))
  AND ($8::text IS NULL OR labels_match(labels, $8::jsonb))
  AND ($9::timestamptz IS NULL OR (created_at, id) < ($9, $10))
ORDER BY created_at DESC, id DESC
LIMIT $11
