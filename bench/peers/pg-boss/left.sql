-- By the peer's own index job_i14, from the last job backwards; those that a worker holds only when nobody has any left to take.
SELECT EXISTS (
    (SELECT FROM pgboss.job WHERE name = 'wake' AND state = 'created' AND NOT blocked AND start_after <= now() ORDER BY start_after DESC LIMIT 1)
    UNION ALL
    (SELECT FROM pgboss.job WHERE name = 'wake' AND state = 'retry' AND NOT blocked AND start_after <= now() ORDER BY start_after DESC LIMIT 1)
    UNION ALL
    (SELECT FROM pgboss.job WHERE name = 'wake' AND state = 'active' AND NOT blocked AND start_after <= now() ORDER BY start_after DESC LIMIT 1)
);
