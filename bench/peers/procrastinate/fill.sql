-- What procrastinate_defer_jobs_v1() writes for jobs with a scheduled_at, the events of its triggers with it, less their NOTIFY. Jobs that are
-- not pending are noted for left.sql, which would have to read past all pending ones to find them.
\ir ../args.sql
BEGIN;
ALTER TABLE procrastinate_jobs DISABLE TRIGGER procrastinate_jobs_notify_queue_job_inserted_v1;
WITH jobs AS (
    INSERT INTO procrastinate_jobs (queue_name, task_name, priority, lock, queueing_lock, args, scheduled_at)
    SELECT 'default', 'wake', 0, NULL, NULL, body, due FROM args ORDER BY n
    RETURNING id
)
INSERT INTO filled SELECT min(id), max(id) FROM jobs WHERE :'pending' = 'f' HAVING count(*) > 0;
ALTER TABLE procrastinate_jobs ENABLE TRIGGER procrastinate_jobs_notify_queue_job_inserted_v1;
COMMIT;
ANALYZE procrastinate_jobs, procrastinate_events;
