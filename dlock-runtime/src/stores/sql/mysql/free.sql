SELECT waited FROM dlock_lock
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now} FOR UPDATE;
UPDATE dlock_lock SET owner = '', expires_at = {now}
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now}
