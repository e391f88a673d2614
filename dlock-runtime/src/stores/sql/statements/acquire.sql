-- Takes the lock, or a place in its queue. The one question of a waiter, asked
-- as often as it likes: who holds the lock already has its lease extended, and
-- who is in the queue keeps its place. No place is numbered 0 but that of a
-- holder within its own script.
--
-- The row of the lock is the mutex of its key: every statement behind {lock}
-- sees all that was done for this key before, and is alone with it.
--
--   $key $owner $process $mode $ttl   {alive} and {enqueue}: where it is to wait
--
-- One row: 1 if it is had, else 0; the token; for how many ms more somebody
-- else has it; 1 if the token outlives a crash, else 0.
{begin_grant};
{lock};
{number};
DELETE FROM dlock_queue WHERE name = $key AND (ticket = 0 OR (process <> $process
    AND process NOT IN (SELECT process FROM dlock_process WHERE alive_until > {now})));
{keep_place};
DELETE FROM dlock_reader WHERE name = $key
    AND (owner = $owner OR expires_at <= {now} OR NOT {is_read});
{true_end};
{wait};
{grant};
{pass};
{mark_waited};
SELECT CASE WHEN {held} THEN 1 ELSE 0 END, l.token,
    CASE WHEN l.expires_at > {now} THEN l.expires_at - {now} ELSE 0 END, {durable}
    FROM dlock_lock l WHERE l.name = $key;
{commit}
