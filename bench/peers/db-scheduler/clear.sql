-- It has deleted what is done.
VACUUM (ANALYZE) scheduled_tasks;
