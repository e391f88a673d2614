(EXISTS (SELECT 1 FROM dlock_lock h
        WHERE h.name = $key AND h.mode = 'w' AND h.owner = $owner AND h.expires_at > {now})
    OR EXISTS (SELECT 1 FROM dlock_reader h
        WHERE h.name = $key AND h.owner = $owner AND h.expires_at > {now}))
