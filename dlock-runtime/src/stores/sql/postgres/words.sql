-- The SQL that is particular to PostgreSQL.

--- begin_here
BEGIN ISOLATION LEVEL READ COMMITTED; {limits}

--- limits
SET LOCAL statement_timeout = $timeout

--- begin_brief
{begin}; SET LOCAL lock_timeout = $brief

--- brief
SET LOCAL lock_timeout = 500

--- begin
-- Does not wait for the disk. If a crash undoes a release, the lease ends by itself.
{begin_here}; SET LOCAL synchronous_commit = off

--- begin_lease
{begin_here}; {brief}; {wait_for_the_disk}

--- begin_grant
{begin_here}; {wait_for_the_disk}

--- wait_for_the_disk
-- Waits for the disk even if the session would not. The setting at the commit counts, and this one
-- holds for the transaction only:
-- https://www.postgresql.org/docs/current/runtime-config-wal.html#GUC-SYNCHRONOUS-COMMIT A session
-- that waits for more, such as for replicas, still does. The row has three columns, so that it is
-- not taken for the answer of a script.
SELECT set_config('synchronous_commit', 'on', true), 0, 0
    WHERE current_setting('synchronous_commit') = 'off'

--- version_of_server
current_setting('server_version')

--- read_only
CASE WHEN pg_is_in_recovery() THEN 'it is a standby'
    WHEN current_setting('transaction_read_only') = 'on' THEN 'it is read-only' ELSE '' END

--- durable
-- A page that was half written is restored from the log, or detected by its checksum:
-- https://www.postgresql.org/docs/current/wal-reliability.html
CASE WHEN current_setting('fsync', true) = 'on'
    AND (current_setting('full_page_writes', true) = 'on'
        OR current_setting('data_checksums', true) = 'on') THEN 1 ELSE 0 END

--- durable_tables
-- Unlogged tables are emptied after a crash.
CASE WHEN (SELECT COUNT(*) FROM pg_class
    WHERE oid IN (CAST('dlock_lock' AS regclass), CAST('dlock_meta' AS regclass))
        AND relpersistence = 'p') = 2 THEN 1 ELSE 0 END

--- now
-- `now()` would be when the transaction began.
CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)

--- lock
INSERT INTO dlock_lock AS l (name, token, mode, owner, expires_at, waited)
    VALUES ($key, 0, 'w', '', 0, 0) ON CONFLICT (name) DO UPDATE SET waited = l.waited

--- take
-- The end of the lease is computed before the statement waits for the row. Meanwhile the same owner
-- may get the lock by a repeated request, with a later end; `GREATEST` keeps that. The mark of what
-- has been done is part of the answer, and stays as it is.
{begin_grant};
$hurry
INSERT INTO dlock_lock AS l (name, token, mode, owner, expires_at, waited, since)
    VALUES [($key, 0, 'w', $owner, {now} + $ttl, 0, {now})]
    ON CONFLICT (name) DO UPDATE SET token = l.token + $tokens, mode = 'w',
        owner = excluded.owner, since = excluded.since,
        expires_at = GREATEST(l.expires_at, excluded.expires_at)
    WHERE (l.expires_at <= {now} AND l.waited = 0)
        OR (l.mode = 'w' AND l.owner = excluded.owner AND l.expires_at > {now})
    RETURNING name, token, {durable}, 0;
UPDATE dlock_lock SET token = CASE token
        WHEN 0 THEN (SELECT floor FROM dlock_meta) + $tokens ELSE token END
    WHERE name IN ([$key]) AND ((owner IN ([$owner]) AND token = 0)
        OR (mode = 'd' AND expires_at > {now}))
    RETURNING name, token, {durable}, CASE mode WHEN 'd' THEN 2 ELSE 0 END;
$calm
COMMIT

--- quick_take
-- `hurry` goes before it, in the same transaction. `set_config` holds for that transaction only.
-- After a wait for the row, PostgreSQL looks at the conditions again:
-- https://www.postgresql.org/docs/current/transaction-iso.html#XACT-READ-COMMITTED
-- If the lock was held or waited for when the statement began, that is an answer too.
WITH taken AS (
    UPDATE dlock_lock SET token = token + $tokens, mode = 'w', owner = $owner, since = {now},
        expires_at = GREATEST(expires_at, {now} + $ttl)
        WHERE name = $key AND ((expires_at <= {now} AND waited = 0)
                OR (mode = 'w' AND owner = $owner AND expires_at > {now}))
            AND {in_time} AND {waits_for_the_disk}
        RETURNING name, token)
SELECT name, token, {durable}, 0 FROM taken
UNION ALL SELECT name, token, {durable}, 1 FROM dlock_lock
    WHERE name = $key AND mode <> 'd' AND owner <> $owner AND (expires_at > {now} OR waited = 1)
        AND NOT EXISTS (SELECT 1 FROM taken)

--- quick_turn
-- What it sees of the queue is from when it began, and is true if the row is unchanged since:
-- whatever changes the queue changes the row.
WITH taken AS (
    UPDATE dlock_lock SET token = token + $tokens, owner = $owner, since = {now},
        expires_at = {now} + $ttl, waited = CASE WHEN EXISTS (
            SELECT 1 FROM dlock_queue q WHERE q.name = $key AND q.owner <> $owner
                AND NOT {is_left})
            THEN 1 ELSE 0 END
        WHERE name = $key AND mode = 'w' AND token > 0 AND expires_at <= {now} AND {is_unchanged}
            AND $owner = (SELECT q.owner FROM dlock_queue q WHERE q.name = $key
                ORDER BY q.ticket LIMIT 1)
            AND {in_time} AND {waits_for_the_disk}
        RETURNING name, token),
passed AS (DELETE FROM dlock_queue q USING taken
    WHERE q.name = taken.name AND (q.owner = $owner OR {is_left}))
SELECT 1, token, $ttl, {durable}, $owner FROM taken

--- is_left
-- As {is_dead}, without the name of a process in the text: behind a pooler, all processes share what
-- a session has prepared. Whoever asks has a place, which names its process.
q.process NOT IN (SELECT p.process FROM dlock_process p WHERE p.alive_until > {now}
    UNION ALL SELECT m.process FROM dlock_queue m WHERE m.name = $key AND m.owner = $owner)

--- quick_release
-- Notifies as {wake} does.
WITH freed AS (
    UPDATE dlock_lock SET owner = '', expires_at = {now}
        WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now}
            AND (waited = 0 OR {is_unchanged})
            AND {in_time} AND set_config('synchronous_commit', 'off', true) <> ''
        RETURNING name, waited)
SELECT freed.name FROM freed LEFT JOIN LATERAL (
    SELECT CAST(pg_notify('dlock_' || q.process, {message}) AS TEXT) AS told FROM dlock_queue q
        WHERE freed.waited = 1 AND q.name = freed.name AND {first}) n ON n.told = ''

--- is_unchanged
-- Nobody has changed the row since the statement began: it is still the version that was read then,
-- by the transaction that wrote it.
xmin = (SELECT u.xmin FROM dlock_lock u WHERE u.name = $key)

--- waits_for_the_disk
(current_setting('synchronous_commit') <> 'off'
    OR set_config('synchronous_commit', 'on', true) <> '')

--- in_time
-- Nothing is done once `$moment` has passed since the message came, since the owner may have given
-- up. The timeout of the statement does not count the time before the statement begins.
clock_timestamp() < statement_timestamp() + $moment * INTERVAL '1 millisecond'

--- hurry
SET LOCAL lock_timeout = $brief; SET LOCAL statement_timeout = $moment

--- calm
SET LOCAL statement_timeout = $timeout

--- raise_rows
-- Waits until nobody else writes to the table; a session that writes to it afterwards reads the new
-- floor. The row of the floor was locked before the table, in the order in which `clean` locks
-- them, so that the two do not wait for each other. The wait is short, since all other writers wait
-- behind this one.
{brief};
LOCK TABLE dlock_lock IN SHARE ROW EXCLUSIVE MODE;
UPDATE dlock_lock SET token = $floor WHERE token < $floor

--- free
-- Locks the rows in the order of their names, as `take` does, so that two transactions do not wait
-- for each other.
WITH held AS (
    SELECT l.name FROM dlock_lock l JOIN (VALUES [($key, $owner)]) AS v (name, owner)
        ON l.name = v.name AND l.owner = v.owner
    WHERE l.mode = 'w' AND l.expires_at > {now} ORDER BY l.name FOR UPDATE OF l)
UPDATE dlock_lock l SET owner = '', expires_at = {now} FROM held
    WHERE l.name = held.name RETURNING l.name

--- is_over
-- A row that another transaction has locked is in use again. The rest is locked in the order of the
-- names, so that two transactions do not wait for each other.
name IN (SELECT name FROM dlock_lock WHERE {is_unused} ORDER BY name FOR UPDATE SKIP LOCKED)

--- wake
-- The row has two columns, so that it is not taken for the answer of a script.
SELECT pg_notify('dlock_' || q.process, {message}), 0 FROM dlock_queue q
    WHERE q.name IN ([$key]) AND {first}

--- wake_all
SELECT pg_notify('dlock_' || q.process, {message}), 0 FROM dlock_queue q
    WHERE q.name = $key AND {is_done}

--- wake_beside
-- A permit that was granted notifies the waiters for whom there is room beside it.
SELECT pg_notify('dlock_' || q.process, {message}), 0
    FROM ({line} AND q.name = $key {in_line}) q, dlock_lock l
    WHERE l.name = $key AND {held} AND {fits}

--- message
-- Waiters for permits are notified one by one, since there is not room for all those of a process.
-- No key has a control character such as the tab.
CASE q.mode WHEN 'p' THEN q.owner || chr(9) || q.name ELSE q.name END

--- permits
COALESCE(CAST(substring(owner FROM E'/(\\d+)') AS BIGINT), 0)

--- create_tables
-- The advisory lock: if two sessions run `CREATE … IF NOT EXISTS` at the same time, one of them
-- fails. An index that is there is locked all the same, and whoever comes later waits behind that:
-- so the wait is short, and is tried again.
BEGIN; {brief}; SELECT pg_advisory_xact_lock(7236837239827); {schema}; COMMIT

--- change
-- Everybody waits behind it.
{begin_here}; {brief}

--- changed
COMMIT

--- name
TEXT COLLATE "C"

--- table_of_locks
-- With room in each page, a row that changes stays in its page:
-- https://www.postgresql.org/docs/current/storage-hot.html
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)

--- table_of_processes
WITH (fillfactor = 50)
