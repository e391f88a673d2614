DELETE FROM dlock_queue WHERE name = $key AND (owner = $owner OR process NOT IN (
    SELECT process FROM dlock_process WHERE alive_until > {now}))
