{lock};
{number};
-- Readers have the lock for as long as its row says so: a writer may have got it
-- since, by a clock that was ahead, or somebody has taken it away by hand.
DELETE FROM dlock_reader WHERE name = $key AND NOT {is_read};
UPDATE dlock_reader SET expires_at = {now} + $ttl
    WHERE name = $key AND owner = $owner AND expires_at > {now};
{true_end};
SELECT r.owner FROM dlock_reader r
    WHERE r.name = $key AND r.owner = $owner AND r.expires_at > {now}
