DELETE FROM pgboss.job WHERE name = 'wake' AND state > 'active';
VACUUM (ANALYZE) pgboss.job;
