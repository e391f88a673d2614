COALESCE((SELECT m.ticket FROM dlock_queue m WHERE m.name = $key AND m.owner = $owner),
    9223372036854775807)
