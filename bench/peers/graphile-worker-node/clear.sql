-- It deletes a job that is done; what is left of it is for VACUUM.
DELETE FROM filled WHERE NOT EXISTS (SELECT FROM graphile_worker._private_jobs WHERE id BETWEEN filled.first AND filled.last);
VACUUM (ANALYZE) graphile_worker._private_jobs;
