-- One that failed is put off by five minutes: it is not done either.
SELECT count(*) FROM scheduled_tasks WHERE execution_time <= now() OR consecutive_failures > 0;
