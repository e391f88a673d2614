-- Who holds the locks, one row for each holder.
SELECT l.name, l.mode, COALESCE(r.owner, l.owner), COALESCE(r.expires_at, l.expires_at) - {now}, (
        SELECT COUNT(*) FROM dlock_queue q, dlock_process p
        WHERE q.name = l.name AND p.process = q.process AND p.alive_until > {now})
    FROM dlock_lock l LEFT JOIN dlock_reader r ON r.name = l.name AND l.mode = 'r'
    WHERE l.expires_at > {now} AND COALESCE(r.expires_at, l.expires_at) > {now}
        AND COALESCE(r.owner, l.owner) <> ''
