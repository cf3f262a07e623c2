-- One look: the beat when one is due, the peers with it, and the claim of what is due. The statement is this beginning, then
-- one of due_oldest.sql and due_past_backlogs.sql, which choose the rows, then look_end.sql.
-- $1 worker, $2 version, $3 host; $4: beat now. $5 most rows; $6 lease in seconds; $7 most bytes. $8: owners with deliveries in flight,
-- each with the room it has left; $10 the room of any other owner. $11: claimed so often, a row is claimed alone, and only if $12 says so.
-- $13: sessions' timers, too. $9: a token for each row there is room for; made by us, because Postgres takes a microsecond for each.
-- Postgres' now() alone decides what is due.
-- The plan is made once, and kept: it must do whatever the table was like then. So nothing is joined that could be joined otherwise than
-- by an index: rooms are looked up in $8, not joined.
WITH RECURSIVE beat AS (
    INSERT INTO dispatchers (worker, version, host)
    SELECT $1, $2, $3 WHERE $4
    ON CONFLICT (worker) DO UPDATE SET beats = dispatchers.beats + 1, beaten_at = now()
), may AS (
    -- Nothing is claimed while dispatch is held, nor by a worker that its peers do not see: nobody would take over from it.
    SELECT held_by IS NULL AND ($4 OR EXISTS (SELECT FROM dispatchers WHERE worker = $1)) AS claim, held_by IS NOT NULL AS held
    FROM settings
),
