-- The SQL that is particular to MySQL and MariaDB.

--- begin
-- Limits the wait for a row and for a table. The server does not notice that a client has gone:
-- when a row comes free, it would run the script that waits for it, for nobody. Each script sets
-- the limits, and {any_rows}, since a proxy may give each script another session.
{limits}; {begin_here}

--- limits
SET innodb_lock_wait_timeout = $seconds, lock_wait_timeout = $seconds, autocommit = 1, {any_rows}

--- any_rows
-- Else a session may refuse statements that find their rows by no key, as cleaning does.
sql_safe_updates = 0

--- begin_brief
{begin_lease}

--- begin_lease
-- The shortest wait that MySQL has.
SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, autocommit = 1, {any_rows}; {begin_here}

--- begin_grant
{begin}

--- begin_here
{committed}; START TRANSACTION

--- version_of_server
VERSION()

--- read_only
-- The variable is a number, or a word in later versions. Some users may write in spite of it.
CASE WHEN CAST(@@GLOBAL.read_only AS CHAR) IN ('0', 'OFF') THEN '' ELSE 'it is read-only' END

--- durable
-- 3 is a value of MariaDB, which syncs more often than with 1. With a binary log, a commit is only
-- as durable as its entry there: a commit without an entry is undone after a crash.
-- https://bugs.mysql.com/bug.php?id=75519
CASE WHEN @@GLOBAL.innodb_flush_log_at_trx_commit IN (1, 3)
    AND (@@GLOBAL.log_bin = 0 OR @@GLOBAL.sync_binlog = 1) THEN 1 ELSE 0 END

--- durable_tables
CASE WHEN (SELECT COUNT(*) FROM information_schema.tables
    WHERE table_schema = DATABASE() AND engine = 'InnoDB'
        AND table_name IN ('dlock_lock', 'dlock_meta')) = 2 THEN 1 ELSE 0 END

--- now
-- Not `UNIX_TIMESTAMP(NOW(6))`: it converts by the session's time zone, and jumps where that has
-- summer time.
-- https://dev.mysql.com/doc/refman/8.0/en/date-and-time-functions.html#function_unix-timestamp
(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)

--- lock
-- Not `INSERT IGNORE`, which locks an existing row for reading: two sessions that do so and then
-- write wait for each other. https://dev.mysql.com/doc/refman/8.0/en/innodb-locks-set.html
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
-- Each statement is a transaction of its own: none stays open when one fails, and rows are kept
-- only while a statement runs. The waits are the shortest that MySQL has. A session's limit to the
-- rows of a `SELECT` would cut off the answer.
SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, autocommit = 1, {any_rows},
    sql_select_limit = 18446744073709551615;
{committed}

--- committed
-- For the next transaction, which may be a single statement.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

--- owner_of_each
ELT(FIELD(name, [$key]), [$owner])

--- take_together
-- Takes locks that have a row. A new row gets its number in a transaction, by `take`.
--
-- `{now}` is when the statement began. While the statement waits for a row, the same owner may get
-- the lock by another one, with a later end; `GREATEST` keeps that. A row that is reached late,
-- after a wait for other rows, is left alone, since its owner may have given up. (`NOW` is when the
-- statement began, `SYSDATE` the time as it is.)
--
-- One row for each lock that is had, ending in 0, or whose body has been done, ending in 2, or that
-- is not free, ending in 1.
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
-- Reads which of the locks are held, and then frees those. They were held when they were read,
-- which is what the answer says.
{begin_together};
SELECT name FROM dlock_lock WHERE name IN ([$key]) AND {is_had};
{committed};
UPDATE dlock_lock SET owner = '', expires_at = {now} WHERE name IN ([$key]) AND {is_had}

--- raise_rows
-- A session that makes a row from here on reads the new floor. One that has read the old floor has
-- made its row before, and this waits for that row: but not with `READ COMMITTED`, which passes
-- over rows that are not committed.
-- https://dev.mysql.com/doc/refman/8.0/en/innodb-transaction-isolation-levels.html
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
-- `CONV` takes text that is no number for 0. A cast would be an error in a statement that changes
-- rows.
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
-- Everybody waits behind it.
SET lock_wait_timeout = 1

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
