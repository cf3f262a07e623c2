-- One request's timers. $1 tenant, $2 correlation id, $3 most. A test explains this very text.
SELECT owner_did, service_call_id, correlation_id, scheduled_for, registered_at, last_fired_at, status
FROM alarms
WHERE owner_did = $1 AND correlation_id = $2 AND subject = 'service_call'
ORDER BY scheduled_for, service_call_id
LIMIT $3
