-- What is due or soon will be, whoever has it in hand; what is pending is due in weeks.
DELETE FROM river_job WHERE scheduled_at < now() + interval '1 day';
