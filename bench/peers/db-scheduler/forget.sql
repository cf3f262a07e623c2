-- What is due or soon will be, whoever has it in hand; what is pending is due in weeks.
DELETE FROM scheduled_tasks WHERE execution_time < now() + interval '1 day';
