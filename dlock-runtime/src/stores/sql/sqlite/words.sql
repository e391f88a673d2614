-- What SQLite says in its own way.

--- begin
-- Without a wait for the disk: should the machine fail, its processes and their
-- leases are gone with it. Only the tokens have to stay.
PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE

--- begin_lease
{begin}

--- begin_grant
-- As good as `FULL`, and better where the file system has no WAL.
PRAGMA synchronous = EXTRA; BEGIN IMMEDIATE

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
PRAGMA synchronous = EXTRA;
INSERT INTO dlock_lock AS l (name, token, mode, owner, expires_at, waited)
    VALUES [($key, (SELECT floor FROM dlock_meta) + $tokens, 'w', $owner, {now} + $ttl, 0)]
    ON CONFLICT (name) DO UPDATE SET token = l.token + $tokens, mode = 'w',
        owner = excluded.owner, expires_at = excluded.expires_at
    WHERE (l.expires_at <= {now} AND l.waited = 0)
        OR (l.mode = 'w' AND l.owner = excluded.owner AND l.expires_at > {now})
    RETURNING name, token, {durable}, 0

--- permits
CAST(substr(owner, instr(owner, '/') + 1) AS INTEGER)

--- create_tables
BEGIN IMMEDIATE; {schema}; COMMIT

--- table
WITHOUT ROWID
