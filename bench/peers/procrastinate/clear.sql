DELETE FROM procrastinate_jobs WHERE status NOT IN ('todo', 'doing');
DELETE FROM filled WHERE NOT EXISTS (SELECT FROM procrastinate_jobs WHERE id BETWEEN filled.first AND filled.last);
VACUUM (ANALYZE) procrastinate_jobs, procrastinate_events;
