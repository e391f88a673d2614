-- Which waiters of a process the lock is free for.
--
--   $process
SELECT q.owner, q.name, 1 FROM dlock_queue q, dlock_lock l
    WHERE q.process = $process AND l.name = q.name AND {free_for}
