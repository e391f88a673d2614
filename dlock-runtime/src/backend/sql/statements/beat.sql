-- Says that a process is alive, and counts its places in queues.
--
--   $process $alive
{alive};
SELECT COUNT(*) FROM dlock_queue WHERE process = $process
