-- One row for each lock that is held or waited for, or was a moment ago. Times
-- are milliseconds since 1970. Names are compared byte by byte.
CREATE TABLE IF NOT EXISTS dlock_lock (
    name VARBINARY(512) NOT NULL PRIMARY KEY,
    -- The last fencing token.
    token BIGINT NOT NULL,
    -- w: one writer; r: readers, in a table of their own.
    mode CHAR(1) CHARACTER SET ascii NOT NULL,
    -- The writer, or the reader who was let in last.
    owner VARBINARY(64) NOT NULL,
    -- When the lease ends, or that of the last reader.
    expires_at BIGINT NOT NULL,
    -- 1: somebody waits in the queue.
    waited SMALLINT NOT NULL
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS dlock_reader (
    name VARBINARY(512) NOT NULL,
    owner VARBINARY(64) NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name, owner)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS dlock_queue (
    name VARBINARY(512) NOT NULL,
    -- First come, first served.
    ticket BIGINT NOT NULL,
    owner VARBINARY(64) NOT NULL,
    mode CHAR(1) CHARACTER SET ascii NOT NULL,
    process VARBINARY(64) NOT NULL,
    PRIMARY KEY (name, ticket),
    KEY dlock_queue_process (process)
) ENGINE = InnoDB;
-- The processes whose waiters are alive.
CREATE TABLE IF NOT EXISTS dlock_process (
    process VARBINARY(64) NOT NULL PRIMARY KEY,
    alive_until BIGINT NOT NULL
) ENGINE = InnoDB;
-- One row.
CREATE TABLE IF NOT EXISTS dlock_meta (
    version INT NOT NULL PRIMARY KEY,
    -- No token of a lock whose row was removed is above.
    floor BIGINT NOT NULL,
    cleaned_at BIGINT NOT NULL
) ENGINE = InnoDB;
INSERT IGNORE INTO dlock_meta (version, floor, cleaned_at) VALUES (1, 64, 0);
