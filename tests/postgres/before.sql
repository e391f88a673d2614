-- What the version before said to PostgreSQL in its own way: see `tests/tables/before.sql`.

--- begin_here
BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL statement_timeout = $timeout

--- begin
{begin_here}; SET LOCAL synchronous_commit = off

--- begin_lease
{begin_here}; SET LOCAL lock_timeout = 500; {wait_for_the_disk}

--- begin_grant
{begin_here}; {wait_for_the_disk}

--- wait_for_the_disk
SELECT set_config('synchronous_commit', 'on', true), 0, 0
    WHERE current_setting('synchronous_commit') = 'off'

--- durable
CASE WHEN current_setting('fsync', true) = 'on'
    AND (current_setting('full_page_writes', true) = 'on'
        OR current_setting('data_checksums', true) = 'on') THEN 1 ELSE 0 END

--- durable_tables
CASE WHEN (SELECT COUNT(*) FROM pg_class
    WHERE oid IN (CAST('dlock_lock' AS regclass), CAST('dlock_meta' AS regclass))
        AND relpersistence = 'p') = 2 THEN 1 ELSE 0 END

--- now
CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)

--- lock
INSERT INTO dlock_lock AS l (name, token, mode, owner, expires_at, waited)
    VALUES ($key, 0, 'w', '', 0, 0) ON CONFLICT (name) DO UPDATE SET waited = l.waited

--- take
{begin_grant};
$hurry
INSERT INTO dlock_lock AS l (name, token, mode, owner, expires_at, waited)
    VALUES [($key, 0, 'w', $owner, {now} + $ttl, 0)]
    ON CONFLICT (name) DO UPDATE SET token = l.token + $tokens, mode = 'w',
        owner = excluded.owner, expires_at = GREATEST(l.expires_at, excluded.expires_at)
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

--- free
WITH held AS (
    SELECT l.name FROM dlock_lock l JOIN (VALUES [($key, $owner)]) AS v (name, owner)
        ON l.name = v.name AND l.owner = v.owner
    WHERE l.mode = 'w' AND l.expires_at > {now} ORDER BY l.name FOR UPDATE OF l)
UPDATE dlock_lock l SET owner = '', expires_at = {now} FROM held
    WHERE l.name = held.name RETURNING l.name

--- is_over
name IN (SELECT name FROM dlock_lock WHERE {is_unused} ORDER BY name FOR UPDATE SKIP LOCKED)

--- wake
SELECT pg_notify('dlock_' || q.process, {message}), 0 FROM dlock_queue q
    WHERE q.name IN ([$key]) AND {first}

--- message
CASE q.mode WHEN 'p' THEN q.owner || chr(9) || q.name ELSE q.name END

--- permits
COALESCE(CAST(substring(owner FROM E'/(\\d+)') AS BIGINT), 0)

--- create_tables
BEGIN; SELECT pg_advisory_xact_lock(7236837239827); {schema}; COMMIT

--- name
TEXT COLLATE "C"

--- table_of_locks
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)

--- table_of_processes
WITH (fillfactor = 50)
