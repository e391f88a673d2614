-- Who is let in leaves the queue, and so do those before it who did not come
-- when the lock was free: they are dead, or take a new place when they notice.
-- In this order: without its own place it would be behind everybody, and
-- MySQL reads it only when it comes to a row that it has to compare.
DELETE FROM dlock_queue WHERE name = $key AND ticket < {place}
    AND (mode = 'w' OR $mode = 'w') AND {held};
DELETE FROM dlock_queue WHERE name = $key AND owner = $owner AND {held}
