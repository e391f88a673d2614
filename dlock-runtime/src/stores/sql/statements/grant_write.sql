UPDATE dlock_lock SET token = token + $tokens, mode = 'w', owner = $owner, expires_at = {now} + $ttl
    WHERE name = $key AND ((mode = 'w' AND owner = $owner AND expires_at > {now})
        OR expires_at <= {now} - $claim
        OR (expires_at <= {now} AND NOT EXISTS (
            SELECT 1 FROM dlock_queue q WHERE q.name = $key AND q.owner <> $owner AND q.ticket < {place})))
