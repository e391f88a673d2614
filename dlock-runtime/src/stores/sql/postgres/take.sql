{begin_grant};
INSERT INTO dlock_lock AS l (name, token, mode, owner, expires_at, waited)
    VALUES ($key, 0, 'w', $owner, {now} + $ttl, 0)
    ON CONFLICT (name) DO UPDATE SET token = l.token + $tokens, mode = 'w',
        owner = $owner, expires_at = {now} + $ttl
    WHERE (l.expires_at <= {now} AND l.waited = 0)
        OR (l.mode = 'w' AND l.owner = $owner AND l.expires_at > {now})
    RETURNING token, {durable};
UPDATE dlock_lock SET token = (SELECT floor FROM dlock_meta) + $tokens
    WHERE name = $key AND token = 0 RETURNING token, {durable};
{commit}
