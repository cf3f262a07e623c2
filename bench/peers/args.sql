-- A job's arguments, for every peer alike: the body of a wake, as chronosd sends it. Included by each fill.sql, which has set
-- :first, :last (jobs, inclusive), :due (instant of job 0), :step (microseconds between two), :payload (bytes), :pending ('t': named otherwise).
CREATE TEMPORARY VIEW args AS
SELECT n,
       due,
       json_build_object(
           'user_id', format('user%s', n % 1000),
           'message', 'Look after what you were told to look after.',
           'payload', json_build_object('text', substr(
               -- Random hex, as compressible as text is; each job has another piece of it.
               (SELECT string_agg(md5(piece::text), '') FROM generate_series(0, 511) AS piece), 1 + (n * 31 % 7000)::int, :payload)),
           'alarm_id', id,
           'origin', 'chronos',
           'delivery_id', id,
           'scheduled_for', to_char(due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
           'attempt', 1,
           'kind', 'once',
           'label', 'bench',
           'owner_did', format('did:matrix:user%s:%s', n % 1000, substr(md5((n % 1000)::text), 1, 16)),
           'correlation_id', format('bench-%s', n),
           'missed', 0
       ) AS body
FROM generate_series(:first::bigint, :last) AS n,
     LATERAL (SELECT :'due'::timestamptz + n * :step * interval '1 microsecond' AS due, md5(:'pending' || n::text || :'due')::uuid AS id) AS job;
