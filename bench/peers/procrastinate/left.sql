-- From the last job backwards: it is worked last.
SELECT EXISTS (
    SELECT FROM filled, LATERAL (
        SELECT FROM procrastinate_jobs
        WHERE id BETWEEN filled.first AND filled.last AND status IN ('todo', 'doing') AND scheduled_at <= now()
        ORDER BY id DESC LIMIT 1
    ) AS job
);
