SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing') AND scheduled_at <= now();
