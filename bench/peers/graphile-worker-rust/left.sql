-- No index has the jobs that a worker holds: they are looked for by their ids, and only when no other is due. The last ones are worked last.
SELECT CASE
    WHEN (SELECT min(run_at) FROM graphile_worker._private_jobs WHERE is_available AND priority = 0) <= now() THEN true
    ELSE EXISTS (
        SELECT FROM filled, LATERAL (
            SELECT FROM graphile_worker._private_jobs
            WHERE id BETWEEN filled.first AND filled.last AND run_at <= now()
            ORDER BY id DESC LIMIT 1
        ) AS job
    )
END;
