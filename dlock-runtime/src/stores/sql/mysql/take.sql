{begin_grant};
{lock};
{number};
UPDATE dlock_lock SET token = token + $tokens, mode = 'w', owner = $owner, expires_at = {now} + $ttl
    WHERE name = $key AND ((expires_at <= {now} AND waited = 0)
        OR (mode = 'w' AND owner = $owner AND expires_at > {now}));
SELECT token, {durable} FROM dlock_lock
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now};
{commit}
