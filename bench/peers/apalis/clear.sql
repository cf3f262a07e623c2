-- What is done stays: taking it away is the user's.
DELETE FROM apalis.jobs WHERE status = 'Done';
VACUUM (ANALYZE) apalis.jobs;
