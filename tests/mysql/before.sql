-- What the version before said to MySQL in its own way: see `tests/tables/before.sql`.

--- begin
SET innodb_lock_wait_timeout = $seconds, lock_wait_timeout = $seconds, autocommit = 1;
{begin_here}

--- begin_lease
SET innodb_lock_wait_timeout = 1, lock_wait_timeout = 1, autocommit = 1; {begin_here}

--- begin_grant
{begin}

--- begin_here
{committed}; START TRANSACTION

--- durable
CASE WHEN @@GLOBAL.innodb_flush_log_at_trx_commit IN (1, 3)
    AND (@@GLOBAL.log_bin = 0 OR @@GLOBAL.sync_binlog = 1) THEN 1 ELSE 0 END

--- durable_tables
CASE WHEN (SELECT COUNT(*) FROM information_schema.tables
    WHERE table_schema = DATABASE() AND engine = 'InnoDB'
        AND table_name IN ('dlock_lock', 'dlock_meta')) = 2 THEN 1 ELSE 0 END

--- now
(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000)

--- lock
INSERT INTO dlock_lock (name, token, mode, owner, expires_at, waited)
    VALUES ($key, 0, 'w', '', 0, 0) ON DUPLICATE KEY UPDATE waited = waited

--- take
{begin_grant};
{lock};
{number};
UPDATE dlock_lock SET token = token + $tokens, mode = 'w', owner = $owner, expires_at = {now} + $ttl
    WHERE name = $key AND ((expires_at <= {now} AND waited = 0)
        OR (mode = 'w' AND owner = $owner AND expires_at > {now}));
SELECT name, token, {durable}, CASE mode WHEN 'd' THEN 2 ELSE 0 END FROM dlock_lock
    WHERE name = $key AND (mode = 'd' OR (mode = 'w' AND owner = $owner)) AND expires_at > {now};
COMMIT

--- committed
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

--- free
SELECT name FROM dlock_lock
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now} FOR UPDATE;
UPDATE dlock_lock SET owner = '', expires_at = {now}
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now}

--- alive
INSERT INTO dlock_process (process, alive_until) VALUES ($process, {now} + $alive)
    ON DUPLICATE KEY UPDATE alive_until = VALUES(alive_until)

--- permits
CAST(CONV(SUBSTRING_INDEX(owner, '/', -1), 10, 10) AS UNSIGNED)

--- create_tables
{schema}

--- name
VARBINARY(512)

--- letter
CHAR(1) CHARACTER SET ascii

--- id
VARBINARY(64)

--- table
ENGINE = InnoDB

--- key_of_processes
, KEY dlock_queue_process (process)

--- index_of_processes

--- first_row
INSERT IGNORE INTO dlock_meta (version, floor, cleaned_at) VALUES (1, 64, 0)
