UPDATE dlock_lock SET waited = CASE WHEN EXISTS (
    SELECT 1 FROM dlock_queue q WHERE q.name = $key) THEN 1 ELSE 0 END WHERE name = $key
