-- One row for each lock that is held or waited for, or was a moment ago. Times
-- are milliseconds since 1970. Room in each page lets a row change in its place.
CREATE TABLE IF NOT EXISTS dlock_lock (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    -- The last fencing token.
    token BIGINT NOT NULL,
    -- w: one writer; r: readers, in a table of their own.
    mode TEXT NOT NULL,
    -- The writer, or the reader who was let in last.
    owner TEXT NOT NULL,
    -- When the lease ends, or that of the last reader.
    expires_at BIGINT NOT NULL,
    -- 1: somebody waits in the queue.
    waited SMALLINT NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE TABLE IF NOT EXISTS dlock_reader (
    name TEXT COLLATE "C" NOT NULL,
    owner TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name, owner)
);
CREATE TABLE IF NOT EXISTS dlock_queue (
    name TEXT COLLATE "C" NOT NULL,
    -- First come, first served.
    ticket BIGINT NOT NULL,
    owner TEXT NOT NULL,
    mode TEXT NOT NULL,
    process TEXT NOT NULL,
    PRIMARY KEY (name, ticket)
);
CREATE INDEX IF NOT EXISTS dlock_queue_process ON dlock_queue (process);
-- The processes whose waiters are alive.
CREATE TABLE IF NOT EXISTS dlock_process (
    process TEXT NOT NULL PRIMARY KEY,
    alive_until BIGINT NOT NULL
) WITH (fillfactor = 50);
-- One row.
CREATE TABLE IF NOT EXISTS dlock_meta (
    version INTEGER NOT NULL PRIMARY KEY,
    -- No token of a lock whose row was removed is above.
    floor BIGINT NOT NULL,
    cleaned_at BIGINT NOT NULL
);
INSERT INTO dlock_meta (version, floor, cleaned_at) VALUES (1, 64, 0) ON CONFLICT DO NOTHING;
