-- Says that a process is alive, and shows its places in queues: with 1 where the
-- lock is free for it.
--
--   $process $alive
{alive};
SELECT q.owner, q.name, CASE WHEN {free_for} THEN 1 ELSE 0 END
    FROM dlock_queue q, dlock_lock l
    WHERE q.process = $process AND l.name = q.name
