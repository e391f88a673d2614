PRAGMA synchronous = EXTRA;
INSERT INTO dlock_lock AS l (name, token, mode, owner, expires_at, waited)
    VALUES ($key, (SELECT floor FROM dlock_meta) + $tokens, 'w', $owner, {now} + $ttl, 0)
    ON CONFLICT (name) DO UPDATE SET token = l.token + $tokens, mode = 'w',
        owner = excluded.owner, expires_at = excluded.expires_at
    WHERE (l.expires_at <= {now} AND l.waited = 0)
        OR (l.mode = 'w' AND l.owner = excluded.owner AND l.expires_at > {now})
    RETURNING token, {durable}
