-- What the row says of the end: of the last reader's lease, or that nobody has
-- had it since now at the latest, if a clock that was ahead has given it back.
UPDATE dlock_lock SET expires_at = COALESCE(
        (SELECT MAX(r.expires_at) FROM dlock_reader r WHERE r.name = $key),
        CASE WHEN expires_at > {now} THEN {now} ELSE expires_at END)
    WHERE name = $key AND (mode = 'r' OR (owner = '' AND expires_at > {now}))
