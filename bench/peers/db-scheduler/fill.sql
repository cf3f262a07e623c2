-- Executions as schedule() writes them; the data are the bytes that its JacksonSerializer makes of JSON.
\ir ../args.sql
INSERT INTO scheduled_tasks (task_name, task_instance, task_data, execution_time, picked, version)
SELECT 'wake', body ->> 'delivery_id', convert_to(body::text, 'UTF8'), due, false, 1 FROM args;
