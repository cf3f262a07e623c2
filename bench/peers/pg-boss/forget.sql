-- What is due or soon will be, whoever has it in hand; what is pending is due in weeks.
DELETE FROM pgboss.job WHERE name = 'wake' AND start_after < now() + interval '1 day';
