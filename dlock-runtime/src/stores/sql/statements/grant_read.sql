INSERT INTO dlock_reader (name, owner, expires_at)
    SELECT l.name, $owner, {now} + $ttl FROM dlock_lock l
    WHERE l.name = $key AND (l.expires_at <= {now} - $claim
        OR ((l.mode = 'r' OR l.expires_at <= {now}) AND NOT EXISTS (
            SELECT 1 FROM dlock_queue q WHERE q.name = $key AND q.mode = 'w' AND q.ticket < {place})));
UPDATE dlock_lock SET token = token + $tokens, mode = 'r', owner = $owner,
    expires_at = (SELECT MAX(r.expires_at) FROM dlock_reader r WHERE r.name = $key)
    WHERE name = $key AND EXISTS (
        SELECT 1 FROM dlock_reader r WHERE r.name = $key AND r.owner = $owner)
