(EXISTS (SELECT 1 FROM dlock_lock h
        WHERE h.name = $key AND h.mode = 'w' AND h.owner = $owner AND h.expires_at > {now})
    OR EXISTS (SELECT 1 FROM dlock_reader s, dlock_lock h
        WHERE s.name = $key AND s.owner = $owner AND s.expires_at > {now}
            AND h.name = s.name AND h.mode = 'r' AND h.expires_at > {now}))
