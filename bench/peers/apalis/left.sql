-- No index has the tasks that a worker holds: they are looked for among the last ones, and only when no other is due. The last are worked last,
-- and no more are held at a time than some batches.
SELECT CASE
    WHEN (
        SELECT min(run_at) FROM apalis.jobs
        WHERE (status = 'Pending' OR (status = 'Failed' AND attempts < max_attempts)) AND job_type = 'wakes' AND priority = 0
    ) <= now() THEN true
    ELSE EXISTS (
        SELECT FROM (SELECT status FROM apalis.jobs ORDER BY id DESC LIMIT 5000) AS task WHERE status IN ('Queued', 'Running')
    )
END;
