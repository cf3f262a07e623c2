-- It deletes what is done. By min() and not by EXISTS: that takes the index, whatever the statistics say.
SELECT min(execution_time) <= now() IS TRUE FROM scheduled_tasks;
