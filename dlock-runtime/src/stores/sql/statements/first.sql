NOT EXISTS (SELECT 1 FROM dlock_queue a, dlock_process p
    WHERE a.name = q.name AND a.ticket < q.ticket AND (a.mode = 'w' OR q.mode = 'w')
        AND p.process = a.process AND p.alive_until > {now})
