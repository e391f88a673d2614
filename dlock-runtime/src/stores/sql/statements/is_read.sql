EXISTS (SELECT 1 FROM dlock_lock h
        WHERE h.name = $key AND h.mode = 'r' AND h.expires_at > {now})
