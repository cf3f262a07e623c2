SELECT count(*) FROM apalis.jobs WHERE run_at <= now() AND status <> 'Done';
