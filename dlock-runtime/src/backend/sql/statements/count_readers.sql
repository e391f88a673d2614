UPDATE dlock_lock SET
    expires_at = COALESCE((SELECT MAX(r.expires_at) FROM dlock_reader r WHERE r.name = $key), 0)
    WHERE name = $key AND mode = 'r'
