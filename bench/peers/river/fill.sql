-- Jobs as River's Insert writes them for a ScheduledAt, whenever that is: they are 'scheduled' until the leader makes them 'available'.
\ir ../args.sql
INSERT INTO river_job (args, kind, max_attempts, metadata, priority, queue, scheduled_at, state, tags)
SELECT body, 'wake', 25, '{}', 1, 'default', due, 'scheduled', '{}' FROM args;
