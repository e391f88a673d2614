UPDATE dlock_lock SET expires_at = {now} + $ttl
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now};
SELECT l.owner FROM dlock_lock l
    WHERE l.name = $key AND l.mode = 'w' AND l.owner = $owner AND l.expires_at > {now}
