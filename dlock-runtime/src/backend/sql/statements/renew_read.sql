{lock};
{number};
UPDATE dlock_reader SET expires_at = {now} + $ttl
    WHERE name = $key AND owner = $owner AND expires_at > {now};
{count_readers};
SELECT r.owner FROM dlock_reader r
    WHERE r.name = $key AND r.owner = $owner AND r.expires_at > {now}
