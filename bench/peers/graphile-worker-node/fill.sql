-- What add_jobs() writes for jobs with a run_at, less its NOTIFY. Jobs that are not pending are noted for left.sql: no index of the peer's
-- has the jobs that a worker holds.
\ir ../args.sql
WITH jobs AS (
    INSERT INTO graphile_worker._private_jobs (job_queue_id, task_id, payload, run_at, max_attempts, key, priority, flags)
    SELECT NULL, tasks.id, args.body, args.due, 25, NULL, 0, NULL
    FROM args, graphile_worker._private_tasks AS tasks
    WHERE tasks.identifier = 'wake'
    ORDER BY args.n
    RETURNING id
)
INSERT INTO filled SELECT min(id), max(id) FROM jobs WHERE :'pending' = 'f' HAVING count(*) > 0;
ANALYZE graphile_worker._private_jobs;
