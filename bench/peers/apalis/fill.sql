-- What push() writes for tasks with a run_at; its trigger's NOTIFY is left out. It knows whole seconds only and would cut off the rest, thus wake
-- too early: the column and the query that fetches take the instant as it is.
\ir ../args.sql
SET session_replication_role = replica;
INSERT INTO apalis.jobs (id, job_type, job, status, attempts, max_attempts, run_at, priority, metadata, idempotency_key)
SELECT apalis.generate_ulid(), 'wakes', convert_to(body::text, 'UTF8'), 'Pending', 0, 25, due, 0, '', NULL FROM args ORDER BY n;
