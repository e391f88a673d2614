-- Gives back whatever an owner has: the lock, its share of it, its place in the
-- queue.
--
--   $key $owner
--
-- One row: 1 if the owner held the lock, else 0.
{begin};
{lock};
{number};
SELECT CASE WHEN {held} THEN 1 ELSE 0 END;
{leave_queue};
DELETE FROM dlock_reader WHERE name = $key
    AND (owner = $owner OR expires_at <= {now} OR NOT {is_read});
UPDATE dlock_lock SET owner = '', expires_at = {now}
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now};
{true_end};
{mark_waited};
{wake};
{commit}
