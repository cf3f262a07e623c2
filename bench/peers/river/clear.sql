DELETE FROM river_job WHERE state IN ('completed', 'cancelled', 'discarded');
VACUUM (ANALYZE) river_job;
