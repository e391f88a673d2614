-- Gives back whatever an owner has: the lock, its share of it, its place in the
-- queue. Without an owner it only removes what the dead have left.
--
--   $key $owner
--
-- One row: 1 if the owner held the lock, else 0.
{begin};
{lock};
{number};
SELECT CASE WHEN {held} THEN 1 ELSE 0 END;
DELETE FROM dlock_queue WHERE name = $key AND (owner = $owner OR process NOT IN (
    SELECT process FROM dlock_process WHERE alive_until > {now}));
DELETE FROM dlock_reader WHERE name = $key
    AND (owner = $owner OR expires_at <= {now} OR NOT {is_read});
UPDATE dlock_lock SET owner = '', expires_at = {now}
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now};
{true_end};
{mark_waited};
{wake};
{commit}
