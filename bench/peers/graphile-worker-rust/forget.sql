-- What is due or soon will be, whoever has it in hand; what is pending is due in weeks.
DELETE FROM graphile_worker._private_jobs WHERE run_at < now() + interval '1 day';
