COALESCE((SELECT m.ticket FROM (SELECT MIN(t.ticket) AS ticket
        FROM dlock_queue t WHERE t.name = $key AND t.owner = $owner) m),
    9223372036854775807)
