SELECT count(*) FROM pgboss.job WHERE name = 'wake' AND state <= 'active' AND start_after <= now();
