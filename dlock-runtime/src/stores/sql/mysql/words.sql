-- What MySQL and MariaDB say in their own way.

--- begin
-- With a limit to the wait for a row and for a table: the server does not notice
-- that a client has gone, and would run a script that waits for a row when that
-- comes free, for nobody. It is set in each script, as a proxy may give each to
-- another session.
SET innodb_lock_wait_timeout = $seconds, lock_wait_timeout = $seconds, autocommit = 1;
{begin_here}

--- begin_lease
-- The shortest wait that there is.
SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, autocommit = 1; {begin_here}

--- begin_grant
{begin}

--- begin_here
{committed}; START TRANSACTION

--- version_of_server
VERSION()

--- read_only
-- A number, or in later versions a word. Some users may write all the same.
CASE WHEN CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF') THEN '' ELSE 'it is read-only' END

--- durable
-- 3 is MariaDB's, and does more than 1. With a binary log, a commit is as durable
-- as its entry there, and one that lacks it is undone after a crash:
-- https://bugs.mysql.com/bug.php?id=75519
CASE WHEN @@GLOBAL.innodb_flush_log_at_trx_commit IN (1, 3)
    AND (@@GLOBAL.log_bin = 0 OR @@GLOBAL.sync_binlog = 1) THEN 1 ELSE 0 END

--- durable_tables
CASE WHEN (SELECT COUNT(*) FROM information_schema.tables
    WHERE table_schema = DATABASE() AND engine = 'InnoDB'
        AND table_name IN ('dlock_lock', 'dlock_meta')) = 2 THEN 1 ELSE 0 END

--- now
-- `UNIX_TIMESTAMP()` goes by way of the session's time zone, and jumps when that
-- has summer time.
(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)

--- lock
-- Not `INSERT IGNORE`: that locks a row that is there for reading, and two who do
-- so and then write wait for each other.
INSERT INTO dlock_lock (name, token, mode, owner, expires_at, waited)
    VALUES ($key, 0, 'w', '', 0, 0) ON DUPLICATE KEY UPDATE waited = waited

--- take
{begin_grant};
{lock};
{number};
UPDATE dlock_lock SET token = token + $tokens, mode = 'w', owner = $owner, since = {now},
    expires_at = {now} + $ttl
    WHERE name = $key AND ((expires_at <= {now} AND waited = 0)
        OR (mode = 'w' AND owner = $owner AND expires_at > {now}));
SELECT name, token, {durable}, CASE mode WHEN 'd' THEN 2 ELSE 0 END FROM dlock_lock
    WHERE name = $key AND (mode = 'd' OR (mode = 'w' AND owner = $owner)) AND expires_at > {now};
COMMIT

--- begin_together
-- No transaction stays open when one of its statements fails: each of them is one, and
-- keeps no row longer than it runs. The shortest wait that there is, for a row.
SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, autocommit = 1,
    sql_select_limit = 18446744073709551615;
{committed}

--- committed
-- Of the next statement, or transaction.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

--- owner_of_each
ELT(FIELD(name, [$key]), [$owner])

--- take_together
-- Of those that have a row already: a new one gets its number in a transaction. Time
-- stands still in a statement, so who has waited for a row shortens no lease that its
-- owner has meanwhile. A row that is reached late, behind others that somebody kept, is
-- left alone: nothing is done to it after its owner has given up.
--
-- One row for each that is had, ending in 0, that has been done, ending in 2, or that
-- somebody else has.
{begin_together};
UPDATE dlock_lock SET token = token + $tokens, mode = 'w', owner = {owner_of_each}, since = {now},
        expires_at = GREATEST(expires_at, {now} + CAST(ELT(FIELD(name, [$key]), [$ttl]) AS SIGNED))
    WHERE name IN ([$key]) AND SYSDATE(6) < NOW(6) + INTERVAL ($moment * 1000) MICROSECOND
        AND ({can_be_had} OR {is_had});
{committed};
SELECT name, token, {durable}, CASE WHEN {is_had} THEN 0
        WHEN mode = 'd' AND expires_at > {now} THEN 2 ELSE 1 END
    FROM dlock_lock WHERE name IN ([$key]) AND ({is_had} OR NOT {can_be_had})

--- can_be_had
(expires_at <= {now} AND waited = 0)

--- is_had
(mode = 'w' AND owner = {owner_of_each} AND expires_at > {now})

--- release_together
-- Those that are held are read first: at that moment they were.
{begin_together};
SELECT name FROM dlock_lock WHERE name IN ([$key]) AND {is_had};
{committed};
UPDATE dlock_lock SET owner = '', expires_at = {now} WHERE name IN ([$key]) AND {is_had}

--- raise_rows
-- Who makes a row from here on reads the floor as it is now. Whoever has read it before has
-- a row already, which this waits for: but not with `READ COMMITTED`, which passes over
-- rows that are not committed.
COMMIT;
SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
START TRANSACTION;
UPDATE dlock_lock SET token = $floor WHERE token < $floor

--- free
SELECT name FROM dlock_lock
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now} FOR UPDATE;
UPDATE dlock_lock SET owner = '', expires_at = {now}
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now}

--- remove_mark
SELECT name FROM dlock_lock WHERE name = $key AND mode = 'd' AND expires_at > {now} FOR UPDATE;
UPDATE dlock_lock SET mode = 'w', owner = '', expires_at = {now}
    WHERE name = $key AND mode = 'd' AND expires_at > {now}

--- alive
INSERT INTO dlock_process (process, alive_until) VALUES ($process, {now} + $alive)
    ON DUPLICATE KEY UPDATE alive_until = VALUES(alive_until)

--- permits
-- What is no number is 0, and no error.
CAST(CONV(SUBSTRING_INDEX(owner, '/', -1), 10, 10) AS UNSIGNED)

--- create_tables
{schema}

--- upgrade_readers
{change};
ALTER TABLE dlock_queue MODIFY owner VARBINARY(255) NOT NULL;
ALTER TABLE dlock_reader MODIFY owner VARBINARY(255) NOT NULL,
    ADD COLUMN since BIGINT NOT NULL DEFAULT 0

--- upgrade_locks
{change};
ALTER TABLE dlock_lock MODIFY owner VARBINARY(255) NOT NULL,
    ADD COLUMN since BIGINT NOT NULL DEFAULT 0

--- change
SET lock_wait_timeout = $seconds

--- name
-- Compared byte by byte.
VARBINARY(512)

--- letter
CHAR(1) CHARACTER SET ascii

--- id
VARBINARY(64)

--- owner
VARBINARY(255)

--- table
ENGINE = InnoDB

--- key_of_processes
, KEY dlock_queue_process (process)

--- index_of_processes

--- first_row
INSERT IGNORE INTO dlock_meta (version, floor, cleaned_at) VALUES (1, 64, 0)
