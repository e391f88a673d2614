-- Who is let in leaves the queue, and so do those before it who did not come
-- when the lock was free: they are dead, or take a new place when they notice.
DELETE FROM dlock_queue WHERE name = $key AND (owner = $owner
    OR (ticket < {place} AND (mode = 'w' OR $mode = 'w'))) AND {held}
