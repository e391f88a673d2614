{alive};
INSERT INTO dlock_queue (name, ticket, owner, mode, process)
    SELECT $key, COALESCE(MAX(ticket), 0) + 1, $owner, $mode, $process FROM dlock_queue
    WHERE name = $key HAVING COUNT(CASE WHEN owner = $owner THEN 1 END) = 0
