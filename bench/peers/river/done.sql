SELECT count(*) FROM river_job
WHERE state IN ('scheduled', 'available') AND scheduled_at <= now() OR state IN ('running', 'retryable');
