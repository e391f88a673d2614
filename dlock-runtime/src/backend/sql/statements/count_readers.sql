UPDATE dlock_lock SET expires_at = COALESCE(
        (SELECT MAX(r.expires_at) FROM dlock_reader r WHERE r.name = $key),
        CASE WHEN expires_at > {now} THEN {now} ELSE expires_at END)
    WHERE name = $key AND mode = 'r'
