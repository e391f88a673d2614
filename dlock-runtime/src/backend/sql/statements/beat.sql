-- Says that a process is alive, and shows its places in queues.
--
--   $process $alive
{alive};
SELECT owner, name FROM dlock_queue WHERE process = $process
