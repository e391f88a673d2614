-- The SQL that is particular to SQLite.

--- begin
-- Does not wait for the disk. If the machine fails, all processes that could hold a lease have
-- failed with it. Only tokens must outlive it.
PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE

--- begin_lease
{begin}

--- begin_grant
-- In WAL mode the same as `FULL`; where a file system has no WAL, the directory is synced too:
-- https://www.sqlite.org/pragma.html#pragma_synchronous
PRAGMA synchronous = EXTRA; BEGIN IMMEDIATE

--- version_of_server
sqlite_version()

--- read_only
CASE (SELECT query_only FROM pragma_query_only) WHEN 0 THEN '' ELSE 'it is read-only' END

--- durable
1

--- durable_tables
1

--- now
CAST(unixepoch('subsec') * 1000 AS INTEGER)

--- lock
INSERT INTO dlock_lock (name, token, mode, owner, expires_at, waited)
    VALUES ($key, 0, 'w', '', 0, 0) ON CONFLICT (name) DO NOTHING

--- take
-- `{now}` is the same time in the whole statement. `RETURNING` leaves out a row that the statement
-- leaves alone, so the mark of what has been done is written again, as it is.
PRAGMA synchronous = EXTRA;
INSERT INTO dlock_lock AS l (name, token, mode, owner, expires_at, waited, since)
    VALUES [($key, (SELECT floor FROM dlock_meta) + $tokens, 'w', $owner, {now} + $ttl, 0, {now})]
    ON CONFLICT (name) DO UPDATE SET
        token = CASE WHEN {is_mark} THEN l.token ELSE l.token + $tokens END,
        mode = CASE WHEN {is_mark} THEN 'd' ELSE 'w' END,
        owner = CASE WHEN {is_mark} THEN l.owner ELSE excluded.owner END,
        since = CASE WHEN {is_mark} THEN l.since ELSE excluded.since END,
        expires_at = CASE WHEN {is_mark} THEN l.expires_at ELSE excluded.expires_at END
    WHERE (l.expires_at <= {now} AND l.waited = 0)
        OR (l.mode = 'w' AND l.owner = excluded.owner AND l.expires_at > {now})
        OR {is_mark}
    RETURNING name, token, {durable}, CASE mode WHEN 'd' THEN 2 ELSE 0 END

--- quick_take
UPDATE dlock_lock SET token = token + $tokens, mode = 'w', owner = $owner, since = {now},
    expires_at = {now} + $ttl
    WHERE name = $key AND ((expires_at <= {now} AND waited = 0)
            OR (mode = 'w' AND owner = $owner AND expires_at > {now}))
        AND (SELECT synchronous FROM pragma_synchronous) = 3
    RETURNING name, token, {durable}, 0

--- quick_release
UPDATE dlock_lock SET owner = '', expires_at = {now}
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now}
    RETURNING name

--- is_mark
(l.mode = 'd' AND l.expires_at > {now})

--- permits
CAST(substr(owner, instr(owner, '/') + 1) AS INTEGER)

--- create_tables
BEGIN IMMEDIATE; {schema}; COMMIT

--- table
WITHOUT ROWID
