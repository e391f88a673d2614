-- The part of the protocol that all databases have in common. Each statement follows a line with
-- its name. In another statement, this name in braces stands for it.
--
-- A request for one of n permits is a reader, with "/<n>" behind its owner. In the queue, its mode
-- is `p`.
--
-- When a body that was to run once has been done, the row of its lock becomes a mark: its mode is
-- `d`, its owner is the one that has done it, and it counts until `expires_at`.

--- acquire
-- Takes the lock, or a place in its queue. A waiter asks only this, and may repeat it at any time:
-- if it holds the lock already, its lease is extended; if it is in the queue, it keeps its place.
-- Ticket 0 is the place of a holder, while its own script runs.
--
-- The row of the lock is the mutex of its key: every statement behind {lock} sees all that was done
-- for this key before, and is alone with it.
--
--   $key $owner $process $mode $ttl   $queue: nothing, `wait` or `wait_alive`
--   $grant: `grant_read`, `grant_permit` or `grant_write`
--   $most: how many may hold the lock together if this request does: none besides a
--     writer (0), n for a permit, any number for a reader
--   $beside: `wake_beside` for a permit, else nothing
--
-- One row: 1 if the request has the lock, 2 if its body has been done, 3 if the owner was taken out
-- of the queue, else 0; the token; for how many ms more the lock is held; 1 if the token outlives a
-- crash, else 0; the owner in the row, of several holders the one that came last.
{begin_grant};
{lock};
{number};
DELETE FROM dlock_queue WHERE name = $key AND (ticket = 0 OR {is_dead});
{keep_place};
DELETE FROM dlock_reader WHERE name = $key
    AND (owner = $owner OR expires_at <= {now} OR NOT {is_read});
{true_end};
$queue
$grant
{pass};
$beside
{mark_waited};
SELECT CASE WHEN {held} THEN 1 WHEN {is_done} THEN 2 WHEN {is_out} THEN 3 ELSE 0 END, l.token,
    CASE WHEN l.expires_at > {now} THEN l.expires_at - {now} ELSE 0 END, {durable}, l.owner
    FROM dlock_lock l WHERE l.name = $key;
COMMIT

--- number
-- A new row counts from the floor. The floor is read by a statement of its own, behind the one that
-- made the row: if another transaction has removed the earlier row, it has raised the floor as
-- well, and was committed before this row could be made.
UPDATE dlock_lock SET token = (SELECT floor FROM dlock_meta) WHERE name = $key AND token = 0

--- is_dead
-- The process of this waiter shows no sign of life, and is not the one that asks.
(process <> $process
    AND process NOT IN (SELECT process FROM dlock_process WHERE alive_until > {now}))

--- keep_place
-- A request that holds the lock already goes before everybody: it asks again because an answer was
-- lost, so it must not be put behind others, nor cost them their places. In {pass} it leaves this
-- place again.
INSERT INTO dlock_queue (name, ticket, owner, mode, process)
    SELECT l.name, 0, $owner, $mode, $process FROM dlock_lock l
    WHERE l.name = $key AND {held}

--- is_read
EXISTS (SELECT 1 FROM dlock_lock h
        WHERE h.name = $key AND h.mode = 'r' AND h.expires_at > {now})

--- held
(EXISTS (SELECT 1 FROM dlock_lock h
        WHERE h.name = $key AND h.mode = 'w' AND h.owner = $owner AND h.expires_at > {now})
    OR EXISTS (SELECT 1 FROM dlock_reader s, dlock_lock h
        WHERE s.name = $key AND s.owner = $owner AND s.expires_at > {now}
            AND h.name = s.name AND h.mode = 'r' AND h.expires_at > {now}))

--- is_done
EXISTS (SELECT 1 FROM dlock_lock h
        WHERE h.name = $key AND h.mode = 'd' AND h.expires_at > {now})

--- is_out
-- The owner was taken out of the queue: its name then stands among the processes for a while.
EXISTS (SELECT 1 FROM dlock_process o WHERE o.process = $out AND o.alive_until > {now})

--- true_end
-- Corrects `expires_at`. For a lock that readers share, it is the end of the last lease. For a lock
-- that nobody holds, it is not later than now: it would be if the clock was set back after the lock
-- was given back.
UPDATE dlock_lock SET expires_at = COALESCE(
        (SELECT MAX(r.expires_at) FROM dlock_reader r WHERE r.name = $key),
        CASE WHEN expires_at > {now} THEN {now} ELSE expires_at END)
    WHERE name = $key AND (mode = 'r' OR (owner = '' AND expires_at > {now}))

--- alive
INSERT INTO dlock_process (process, alive_until) VALUES ($process, {now} + $alive)
    ON CONFLICT (process) DO UPDATE SET alive_until = excluded.alive_until

--- wait
INSERT INTO dlock_queue (name, ticket, owner, mode, process)
    SELECT $key, COALESCE(MAX(ticket), 0) + 1, $owner, $mode, $process FROM dlock_queue
    WHERE name = $key HAVING COUNT(CASE WHEN owner = $owner THEN 1 END) = 0 AND NOT {is_out}

--- wait_alive
{alive};
{wait}

--- grant_write
UPDATE dlock_lock SET token = token + $tokens, mode = 'w', owner = $owner, since = {now},
    expires_at = {now} + $ttl
    WHERE name = $key AND NOT {is_out} AND ((mode = 'w' AND owner = $owner AND expires_at > {now})
        OR expires_at <= {now} - $claim
        OR (expires_at <= {now} AND NOT EXISTS (
            SELECT 1 FROM dlock_queue q WHERE q.name = $key AND q.owner <> $owner AND q.ticket < {place})))

--- grant_read
INSERT INTO dlock_reader (name, owner, since, expires_at)
    SELECT l.name, $owner, {now}, {now} + $ttl FROM dlock_lock l
    WHERE l.name = $key AND NOT {is_out} AND (l.expires_at <= {now} - $claim OR {is_next});
{let_in}

--- grant_permit
INSERT INTO dlock_reader (name, owner, since, expires_at)
    SELECT l.name, $owner, {now}, {now} + $ttl FROM dlock_lock l
    WHERE l.name = $key AND NOT {is_out}
        AND (l.expires_at <= {now} - $claim OR ({is_next} AND {has_room}));
{let_in}

--- is_next
-- Nobody is ahead who allows fewer holders than this request does. So readers go past readers, and
-- permits past those of the same or a larger number. For these there is room even then: {has_room}
-- counts them.
((l.mode = 'r' OR l.expires_at <= {now}) AND NOT EXISTS (
    SELECT 1 FROM dlock_queue q WHERE q.name = $key AND q.ticket < {place} AND {most} < $most))

--- has_room
-- There is room beside the holders, and beside all waiters that are ahead. A request that holds the
-- lock already has its room, however many have come since.
(CASE WHEN {place} = 0 THEN 0
    ELSE {sharers} + (SELECT COUNT(*) FROM dlock_queue b WHERE b.name = $key AND b.ticket < {place})
    END < $most)

--- sharers
(SELECT COUNT(*) FROM dlock_reader r WHERE r.name = l.name AND r.expires_at > {now}
    AND l.mode = 'r' AND l.expires_at > {now})

--- most
-- How many may hold the lock together if this waiter does.
CASE mode WHEN 'w' THEN 0 WHEN 'r' THEN 9223372036854775807 ELSE {permits} END

--- let_in
UPDATE dlock_lock SET token = token + $tokens, mode = 'r', owner = $owner,
    expires_at = (SELECT MAX(r.expires_at) FROM dlock_reader r WHERE r.name = $key)
    WHERE name = $key AND EXISTS (
        SELECT 1 FROM dlock_reader r WHERE r.name = $key AND r.owner = $owner)

--- place
COALESCE((SELECT m.ticket FROM (SELECT MIN(t.ticket) AS ticket
        FROM dlock_queue t WHERE t.name = $key AND t.owner = $owner) m),
    9223372036854775807)

--- pass
-- A request that gets the lock leaves the queue. Those ahead of it lose their places, since they
-- did not come while the lock was free: they are dead, or take a new place when they notice. Those
-- that it may go past have missed nothing, and stay. A request whose body has been done leaves the
-- queue too.
--
-- Two statements, in this order: once its own place is gone, {place} is behind everybody. In a
-- single statement, MySQL would read {place} only when it comes to a row that it has to compare.
DELETE FROM dlock_queue WHERE name = $key AND ticket < {place}
    AND ($mode = 'w' OR {most} < $most) AND {held};
DELETE FROM dlock_queue WHERE name = $key AND owner = $owner AND ({held} OR {is_done})

--- mark_waited
UPDATE dlock_lock SET waited = CASE WHEN EXISTS (
    SELECT 1 FROM dlock_queue q WHERE q.name = $key) THEN 1 ELSE 0 END WHERE name = $key

--- first
-- No live waiter is ahead; or only readers are, and this waiter does not write. Of the waiters for
-- permits this is only the first: when it gets the lock, it notifies the others, or they look.
NOT EXISTS (SELECT 1 FROM dlock_queue a, dlock_process p
    WHERE a.name = q.name AND a.ticket < q.ticket AND (a.mode <> 'r' OR q.mode = 'w')
        AND p.process = a.process AND p.alive_until > {now})

--- release
-- Gives back the locks of writers, and notifies the next in their queues.
--
--   [$key $owner]
--
-- One row for each that its owner held: its key.
{begin};
$hurry
{free};
{wake};
$calm
COMMIT

--- release_together
-- Gives back several locks.
{release}

--- take_together
{take}

--- free
UPDATE dlock_lock SET owner = '', expires_at = {now}
    WHERE name IN ([$key]) AND (name, owner) IN (VALUES [($key, $owner)])
        AND mode = 'w' AND expires_at > {now}
    RETURNING name

--- leave_soon
-- Like {leave}, for a caller that does not wait for the answer. It asks again later, and must not
-- keep a connection for long while another session keeps the row.
{begin_brief};
{leaves}

--- leave
-- Gives back whatever an owner has: the lock, its share of it, its place in the queue.
--
--   $key $owner
--
-- One row: 1 if the owner held the lock, else 0.
{begin};
{leaves}

--- leaves
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
COMMIT

--- take_out
-- Removes a waiter from the queue, and leaves a row by which it is told so when it asks. A waiter
-- that is alive asks at its next beat. One that was paused for longer than this row lasts takes a
-- new place when it asks.
--
--   $key $owner $out
--
-- One row: 1 if it waited, else 0.
{begin};
{lock};
{number};
SELECT COUNT(*) FROM dlock_queue WHERE name = $key AND owner = $owner;
-- Left from before, by an owner that did not ask in time and has a place again.
DELETE FROM dlock_process WHERE process = $out AND alive_until <= {now};
INSERT INTO dlock_process (process, alive_until)
    SELECT $out, {now} + 2 * $alive FROM dlock_queue WHERE name = $key AND owner = $owner;
{leave_queue};
{mark_waited};
{wake};
COMMIT

--- done
-- Replaces the lock that its owner holds by a mark, and notifies all waiters. They keep their
-- places until they ask, so that those that are not notified find out by a look. Dead waiters lose
-- theirs.
--
--   $key $owner   $ttl: for how long it is remembered
--
-- One row: 1 if the mark is there, made by this script or by the same script before, else 0.
{begin_grant};
{lock};
{number};
UPDATE dlock_lock SET mode = 'd', expires_at = {now} + $ttl
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now};
{leave_queue};
DELETE FROM dlock_reader WHERE name = $key AND NOT {is_read};
{mark_waited};
{wake_all};
SELECT CASE WHEN mode = 'd' AND owner = $owner AND expires_at > {now} THEN 1 ELSE 0 END
    FROM dlock_lock WHERE name = $key;
COMMIT

--- forget
-- Removes the mark of what has been done: the lock is free.
--
--   $key
--
-- One row if there was one.
{begin_grant};
{remove_mark};
{wake};
COMMIT

--- remove_mark
UPDATE dlock_lock SET mode = 'w', owner = '', expires_at = {now}
    WHERE name = $key AND mode = 'd' AND expires_at > {now}
    RETURNING name

--- raise_tokens
-- Raises the floor of all tokens: for new rows, and for those that are there. Another script may
-- have read the old floor, for a row that it has made and that nobody else sees before its commit.
-- {raise_rows} waits for such rows, in each database in its own way.
--
--   $floor
{begin_grant};
{raise_floor};
{raise_rows};
COMMIT

--- raise_floor
UPDATE dlock_meta SET floor = $floor WHERE floor < $floor

--- raise_rows
UPDATE dlock_lock SET token = $floor WHERE token < $floor

--- leave_queue
DELETE FROM dlock_queue WHERE name = $key AND (owner = $owner OR process NOT IN (
    SELECT process FROM dlock_process WHERE alive_until > {now}))

--- give_up
-- Removes the place of an owner that does not wait any more, and those of dead waiters; without an
-- owner, only the latter. Notifies who is first then. It ends no lease: a copy of this process (a
-- machine that was restored from a snapshot) has the same name, and its waiter may hold the lock by
-- now.
--
--   $key $owner
{begin_brief};
{lock};
{number};
{leave_queue};
{mark_waited};
{wake};
COMMIT

--- renew_write
UPDATE dlock_lock SET expires_at = {now} + $ttl
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now};
SELECT l.owner FROM dlock_lock l
    WHERE l.name = $key AND l.mode = 'w' AND l.owner = $owner AND l.expires_at > {now}

--- renew_read
{lock};
{number};
-- Readers hold the lock only while its row says so: a writer may have got it since, if the clock
-- was ahead, or an operator has removed it by hand.
DELETE FROM dlock_reader WHERE name = $key AND NOT {is_read};
UPDATE dlock_reader SET expires_at = {now} + $ttl
    WHERE name = $key AND owner = $owner AND expires_at > {now};
{true_end};
SELECT r.owner FROM dlock_reader r
    WHERE r.name = $key AND r.owner = $owner AND r.expires_at > {now}

--- look
-- The waiters of a process that should ask, since the lock is free for them, or its body has been
-- done; and those that are next. Waiters for permits may be shown twice.
--
--   $process   $permits: `look_for_room` if the process has such waiters, else nothing
{limits};
$permits
SELECT q.owner, q.name, {standing} FROM dlock_queue q, dlock_lock l
    WHERE q.process = $process AND l.name = q.name AND ({free_for} OR {next})

--- standing
-- 1: the waiter should ask. 2: it is next. 0: neither.
CASE WHEN {free_for} THEN 1 WHEN {next} THEN 2 ELSE 0 END

--- next
-- Nobody is ahead. Of the waiters of a process only the foremost is looked at: if another one is
-- first, so is this one.
(NOT EXISTS (SELECT 1 FROM dlock_queue o WHERE o.process = q.process AND o.name = q.name
        AND o.ticket < q.ticket) AND {first})

--- beat
-- Records that a process is alive, and shows its places in queues, each with its {standing}.
--
--   $process $alive $permits
{limits};
{alive};
$permits
SELECT q.owner, q.name, {standing}
    FROM dlock_queue q, dlock_lock l
    WHERE q.process = $process AND l.name = q.name

--- free_for
(l.expires_at <= {now} - $claim OR (l.mode = 'd' AND l.expires_at > {now})
        OR ((l.expires_at <= {now} OR l.owner = '' OR (l.mode = 'r' AND q.mode = 'r')) AND {first}))

--- look_for_room
SELECT q.owner, q.name, 1 FROM ({line} AND q.name IN (
        SELECT o.name FROM dlock_queue o WHERE o.process = $process AND o.mode = 'p')
        {in_line}) q, dlock_lock l
    WHERE q.process = $process AND q.mode = 'p' AND l.name = q.name
        AND (l.expires_at <= {now} OR l.owner = '' OR l.mode = 'r') AND {fits}

--- line
-- The waiters that are alive, each with the number of waiters ahead of it, and the smallest {most}
-- of those.
SELECT q.name, q.owner, q.mode, q.process, {most} AS most,
        COUNT(*) OVER before_it AS ahead, MIN({most}) OVER before_it AS lowest
    FROM dlock_queue q, dlock_process p WHERE p.process = q.process AND p.alive_until > {now}

--- in_line
WINDOW before_it AS (
    PARTITION BY q.name ORDER BY q.ticket ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)

--- fits
(COALESCE(q.lowest, q.most) >= q.most AND q.ahead + {sharers} < q.most)

--- farewell
{limits};
DELETE FROM dlock_process WHERE process = $process

--- is_clean
-- Whether the tables should be cleaned, and whether they have rows (1 or 0).
{limits};
SELECT CASE WHEN cleaned_at <= {now} - $pause OR cleaned_at > {now} THEN 1 ELSE 0 END,
    CASE WHEN EXISTS (SELECT 1 FROM dlock_lock) OR EXISTS (SELECT 1 FROM dlock_reader)
        OR EXISTS (SELECT 1 FROM dlock_queue) OR EXISTS (SELECT 1 FROM dlock_process)
        THEN 1 ELSE 0 END
    FROM dlock_meta

--- clean
-- Removes what nobody needs any more: the rows of free locks, and what dead processes have left.
-- The floor is raised to the highest counter that is removed, in the same transaction. A counter
-- that is further above the floor than $room was written by another program, and there may be no
-- tokens left above it. Its row stays.
--
-- One row for each lock that is free or done, and has waiters. They may all be dead.
{begin_brief};
UPDATE dlock_meta SET cleaned_at = {now};
DELETE FROM dlock_reader WHERE expires_at <= {now} AND NOT EXISTS (
    SELECT 1 FROM dlock_lock l
    WHERE l.name = dlock_reader.name AND l.mode = 'r' AND l.expires_at > {now});
UPDATE dlock_meta SET floor = {highest} WHERE floor < {highest};
DELETE FROM dlock_lock WHERE {is_over};
-- As other scripts, this one comes to the processes last.
DELETE FROM dlock_process WHERE alive_until <= {now};
SELECT l.name FROM dlock_lock l WHERE ({is_free} OR l.mode = 'd') AND l.waited = 1;
COMMIT

--- is_free
-- A lock that was given back while the clock was ahead is free, whatever `expires_at` says.
(expires_at <= {now} OR (mode = 'w' AND owner = ''))

--- is_over
-- PostgreSQL has a condition of its own.
{is_unused}

--- is_unused
{is_free} AND waited = 0 AND token <= (SELECT floor FROM dlock_meta)

--- highest
COALESCE((SELECT MAX(l.token) FROM dlock_lock l WHERE {is_free} AND l.waited = 0
        AND l.token <= floor + $room), 0)

--- check
{limits};
SELECT name, token, mode, owner, expires_at, waited, since FROM dlock_lock WHERE 1 = 0;
SELECT name, owner, expires_at, since FROM dlock_reader WHERE 1 = 0;
SELECT name, ticket, owner, mode, process FROM dlock_queue WHERE 1 = 0;
SELECT process, alive_until FROM dlock_process WHERE 1 = 0;
SELECT version, floor, cleaned_at, {durable}, {durable_tables} FROM dlock_meta

--- server
-- For people. That a server takes no writes does not show when connecting.
{limits};
SELECT {version_of_server}, {read_only}

--- inspect
-- The holders of a lock.
--
--   $key
{limits};
{holders} AND l.name = $key ORDER BY l.name

--- places
-- The first waiters for a lock.
--
--   $key $shown
{limits};
SELECT q.owner, q.mode FROM dlock_queue q, dlock_process p
    WHERE q.name = $key AND p.process = q.process AND p.alive_until > {now}
    ORDER BY q.ticket LIMIT $shown

--- list
-- The holders of the locks whose names begin with $key.
{limits};
{holders} AND SUBSTR(l.name, 1, LENGTH($key)) = $key ORDER BY l.name

--- holders
-- One row for each holder of a lock, or for the one that has done its body.
SELECT l.name, l.mode, COALESCE(r.owner, l.owner), COALESCE(r.expires_at, l.expires_at) - {now},
    COALESCE(r.since, l.since), (
        SELECT COUNT(*) FROM dlock_queue q, dlock_process p
        WHERE q.name = l.name AND p.process = q.process AND p.alive_until > {now}),
    -- For several readers, the row has the token of the last.
    CASE WHEN l.owner = COALESCE(r.owner, l.owner) THEN l.token ELSE 0 END
    FROM dlock_lock l LEFT JOIN dlock_reader r ON r.name = l.name AND l.mode = 'r'
    WHERE l.expires_at > {now} AND COALESCE(r.expires_at, l.expires_at) > {now}
        AND COALESCE(r.owner, l.owner) <> ''

--- schema
-- One row for each lock that is held or waited for, or was a moment ago. Times are milliseconds
-- since 1970.
CREATE TABLE IF NOT EXISTS dlock_lock (
    name {name} NOT NULL PRIMARY KEY,
    -- The last fencing token.
    token BIGINT NOT NULL,
    -- w: one writer; r: readers, in a table of their own; d: nobody, its body was to run
    -- once and has been done.
    mode {letter} NOT NULL,
    -- The writer, the reader that was let in last, or the one that has done it. Behind the `@` in
    -- each owner: its host, process id and label, and when it asked by its own clock.
    owner {owner} NOT NULL,
    -- When the lease ends, or the last reader's lease, or when a mark is forgotten.
    expires_at BIGINT NOT NULL,
    -- 1: somebody waits in the queue.
    waited SMALLINT NOT NULL,
    -- When its owner got it.
    since BIGINT NOT NULL DEFAULT 0
) {table_of_locks};
CREATE TABLE IF NOT EXISTS dlock_reader (
    name {name} NOT NULL,
    owner {owner} NOT NULL,
    expires_at BIGINT NOT NULL,
    since BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (name, owner)
) {table};
CREATE TABLE IF NOT EXISTS dlock_queue (
    name {name} NOT NULL,
    -- First come, first served.
    ticket BIGINT NOT NULL,
    owner {owner} NOT NULL,
    mode {letter} NOT NULL,
    process {id} NOT NULL,
    PRIMARY KEY (name, ticket) {key_of_processes}
) {table};
{index_of_processes};
-- The processes whose waiters are alive, and for a while the owners that were taken out.
CREATE TABLE IF NOT EXISTS dlock_process (
    process {id} NOT NULL PRIMARY KEY,
    alive_until BIGINT NOT NULL
) {table_of_processes};
-- This table has one row.
CREATE TABLE IF NOT EXISTS dlock_meta (
    version INTEGER NOT NULL PRIMARY KEY,
    -- No row with a token above this one was ever removed.
    floor BIGINT NOT NULL,
    cleaned_at BIGINT NOT NULL
) {table};
{first_row}

--- index_of_processes
CREATE INDEX IF NOT EXISTS dlock_queue_process ON dlock_queue (process)

--- first_row
INSERT INTO dlock_meta (version, floor, cleaned_at) VALUES (1, 64, 0) ON CONFLICT DO NOTHING

--- name
TEXT

--- id
TEXT

--- owner
TEXT

--- upgrade_readers
-- Together with `upgrade_locks`, changes the tables of the previous version. Processes of both
-- versions work with them side by side. Each changes one table at a time, so that it never keeps a
-- table while it waits for another. It may have been done already: by another process, or by one
-- that was killed in between.
{change}; ALTER TABLE dlock_reader ADD COLUMN since BIGINT NOT NULL DEFAULT 0; {changed}

--- upgrade_locks
{change}; ALTER TABLE dlock_lock ADD COLUMN since BIGINT NOT NULL DEFAULT 0; {changed}

--- change

--- changed

--- letter
TEXT

--- table

--- table_of_locks
{table}

--- table_of_processes
{table}

--- key_of_processes

--- wake

--- wake_all

--- wake_beside

--- limits
-- Limits how long what follows waits. A client that has given up is not noticed by the server.

--- begin_brief
{begin}

--- hurry

--- calm
