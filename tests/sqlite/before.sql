-- What the version before said to SQLite in its own way: see `tests/tables/before.sql`.

--- begin
PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE

--- begin_lease
{begin}

--- begin_grant
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
    ON CONFLICT (name) DO UPDATE SET
        token = CASE WHEN {is_mark} THEN l.token ELSE l.token + $tokens END,
        mode = CASE WHEN {is_mark} THEN 'd' ELSE 'w' END,
        owner = CASE WHEN {is_mark} THEN l.owner ELSE excluded.owner END,
        expires_at = CASE WHEN {is_mark} THEN l.expires_at ELSE excluded.expires_at END
    WHERE (l.expires_at <= {now} AND l.waited = 0)
        OR (l.mode = 'w' AND l.owner = excluded.owner AND l.expires_at > {now})
        OR {is_mark}
    RETURNING name, token, {durable}, CASE mode WHEN 'd' THEN 2 ELSE 0 END

--- is_mark
(l.mode = 'd' AND l.expires_at > {now})

--- permits
CAST(substr(owner, instr(owner, '/') + 1) AS INTEGER)

--- create_tables
BEGIN IMMEDIATE; {schema}; COMMIT

--- table
WITHOUT ROWID
