-- By min() and not by EXISTS: that takes the index, whatever the statistics say. A job to be tried again has a scheduled_at in the future.
SELECT least((SELECT min(scheduled_at) FROM river_job WHERE state = 'scheduled' AND queue = 'default' AND priority = 1),
             (SELECT min(scheduled_at) FROM river_job WHERE state = 'available' AND queue = 'default' AND priority = 1)) <= now() IS TRUE
    OR (SELECT min(scheduled_at) FROM river_job WHERE state = 'running' AND queue = 'default' AND priority = 1) IS NOT NULL
    OR (SELECT min(scheduled_at) FROM river_job WHERE state = 'retryable' AND queue = 'default' AND priority = 1) IS NOT NULL;
