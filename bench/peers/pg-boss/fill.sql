-- What send() writes, job by job, with a startAfter: hence created_on.
\ir ../args.sql
INSERT INTO pgboss.job (id, name, data, priority, start_after, created_on, singleton_key, singleton_on, group_id, group_tier, expire_seconds,
                        deletion_seconds, keep_until, retry_limit, retry_delay, retry_backoff, retry_delay_max, policy, dead_letter,
                        heartbeat_seconds, blocked, blocking, pending_dependencies, trace_context)
SELECT gen_random_uuid(), queue.name, args.body::jsonb, 0, args.due, clock_timestamp(), NULL, NULL, NULL, NULL, queue.expire_seconds,
       queue.deletion_seconds, args.due + queue.retention_seconds * interval '1s', queue.retry_limit, queue.retry_delay, queue.retry_backoff,
       queue.retry_delay_max, queue.policy, queue.dead_letter, queue.heartbeat_seconds, false, false, 0, NULL
FROM (SELECT * FROM args ORDER BY n) AS args, pgboss.queue
WHERE queue.name = 'wake';
ANALYZE pgboss.job;
