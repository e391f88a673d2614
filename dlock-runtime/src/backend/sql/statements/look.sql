-- Which waiters of a process the lock is free for.
--
--   $process
SELECT q.owner FROM dlock_queue q, dlock_lock l
    WHERE q.process = $process AND l.name = q.name AND (l.expires_at <= {now} - $claim
        OR ((l.expires_at <= {now} OR l.owner = '' OR (l.mode = 'r' AND q.mode = 'r')) AND {first}))
