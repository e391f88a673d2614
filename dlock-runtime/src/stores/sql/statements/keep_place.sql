-- Who holds the lock already goes before everybody: it asks again because an
-- answer was lost, and nobody is to be put before it, nor to lose a place. The
-- place is left again below.
INSERT INTO dlock_queue (name, ticket, owner, mode, process)
    SELECT l.name, 0, $owner, $mode, $process FROM dlock_lock l
    WHERE l.name = $key AND {held}
