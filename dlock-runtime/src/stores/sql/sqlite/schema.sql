-- One row for each lock that is held or waited for, or was a moment ago. Times
-- are milliseconds since 1970.
CREATE TABLE IF NOT EXISTS dlock_lock (
    name TEXT NOT NULL PRIMARY KEY,
    -- The last fencing token.
    token INTEGER NOT NULL,
    -- w: one writer; r: readers, in a table of their own.
    mode TEXT NOT NULL,
    -- The writer, or the reader who was let in last.
    owner TEXT NOT NULL,
    -- When the lease ends, or that of the last reader.
    expires_at INTEGER NOT NULL,
    -- 1: somebody waits in the queue.
    waited INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dlock_reader (
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (name, owner)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dlock_queue (
    name TEXT NOT NULL,
    -- First come, first served.
    ticket INTEGER NOT NULL,
    owner TEXT NOT NULL,
    mode TEXT NOT NULL,
    process TEXT NOT NULL,
    PRIMARY KEY (name, ticket)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS dlock_queue_process ON dlock_queue (process);
-- The processes whose waiters are alive.
CREATE TABLE IF NOT EXISTS dlock_process (
    process TEXT NOT NULL PRIMARY KEY,
    alive_until INTEGER NOT NULL
) WITHOUT ROWID;
-- One row.
CREATE TABLE IF NOT EXISTS dlock_meta (
    version INTEGER NOT NULL PRIMARY KEY,
    -- No token of a lock whose row was removed is above.
    floor INTEGER NOT NULL,
    cleaned_at INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO dlock_meta (version, floor, cleaned_at) VALUES (1, 64, 0) ON CONFLICT DO NOTHING;
