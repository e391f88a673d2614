(l.expires_at <= {now} - $claim
        OR ((l.expires_at <= {now} OR l.owner = '' OR (l.mode = 'r' AND q.mode = 'r')) AND {first}))
