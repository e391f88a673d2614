-- What a process of the version before runs, word by word and without its comments: what
-- writers and readers need, and its tables, which lack `since`. What each database says in
-- its own way is beside the tests of that.

--- acquire
{begin_grant};
{lock};
{number};
DELETE FROM dlock_queue WHERE name = $key AND (ticket = 0 OR (process <> $process
    AND process NOT IN (SELECT process FROM dlock_process WHERE alive_until > {now})));
{keep_place};
DELETE FROM dlock_reader WHERE name = $key
    AND (owner = $owner OR expires_at <= {now} OR NOT {is_read});
{true_end};
$queue
$grant
{pass};
$beside
{mark_waited};
SELECT CASE WHEN {held} THEN 1 WHEN {is_done} THEN 2 ELSE 0 END, l.token,
    CASE WHEN l.expires_at > {now} THEN l.expires_at - {now} ELSE 0 END, {durable}
    FROM dlock_lock l WHERE l.name = $key;
COMMIT

--- number
UPDATE dlock_lock SET token = (SELECT floor FROM dlock_meta) WHERE name = $key AND token = 0

--- keep_place
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

--- true_end
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
    WHERE name = $key HAVING COUNT(CASE WHEN owner = $owner THEN 1 END) = 0

--- wait_alive
{alive};
{wait}

--- grant_write
UPDATE dlock_lock SET token = token + $tokens, mode = 'w', owner = $owner, expires_at = {now} + $ttl
    WHERE name = $key AND ((mode = 'w' AND owner = $owner AND expires_at > {now})
        OR expires_at <= {now} - $claim
        OR (expires_at <= {now} AND NOT EXISTS (
            SELECT 1 FROM dlock_queue q WHERE q.name = $key AND q.owner <> $owner AND q.ticket < {place})))

--- grant_read
INSERT INTO dlock_reader (name, owner, expires_at)
    SELECT l.name, $owner, {now} + $ttl FROM dlock_lock l
    WHERE l.name = $key AND (l.expires_at <= {now} - $claim OR {is_next});
{let_in}

--- is_next
((l.mode = 'r' OR l.expires_at <= {now}) AND NOT EXISTS (
    SELECT 1 FROM dlock_queue q WHERE q.name = $key AND q.ticket < {place} AND {most} < $most))

--- most
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
DELETE FROM dlock_queue WHERE name = $key AND ticket < {place}
    AND ($mode = 'w' OR {most} < $most) AND {held};
DELETE FROM dlock_queue WHERE name = $key AND owner = $owner AND ({held} OR {is_done})

--- mark_waited
UPDATE dlock_lock SET waited = CASE WHEN EXISTS (
    SELECT 1 FROM dlock_queue q WHERE q.name = $key) THEN 1 ELSE 0 END WHERE name = $key

--- first
NOT EXISTS (SELECT 1 FROM dlock_queue a, dlock_process p
    WHERE a.name = q.name AND a.ticket < q.ticket AND (a.mode <> 'r' OR q.mode = 'w')
        AND p.process = a.process AND p.alive_until > {now})

--- release
{begin};
$hurry
{free};
{wake};
$calm
COMMIT

--- free
UPDATE dlock_lock SET owner = '', expires_at = {now}
    WHERE name IN ([$key]) AND (name, owner) IN (VALUES [($key, $owner)])
        AND mode = 'w' AND expires_at > {now}
    RETURNING name

--- leave
{begin};
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

--- leave_queue
DELETE FROM dlock_queue WHERE name = $key AND (owner = $owner OR process NOT IN (
    SELECT process FROM dlock_process WHERE alive_until > {now}))

--- renew_write
UPDATE dlock_lock SET expires_at = {now} + $ttl
    WHERE name = $key AND mode = 'w' AND owner = $owner AND expires_at > {now};
SELECT l.owner FROM dlock_lock l
    WHERE l.name = $key AND l.mode = 'w' AND l.owner = $owner AND l.expires_at > {now}

--- renew_read
{lock};
{number};
DELETE FROM dlock_reader WHERE name = $key AND NOT {is_read};
UPDATE dlock_reader SET expires_at = {now} + $ttl
    WHERE name = $key AND owner = $owner AND expires_at > {now};
{true_end};
SELECT r.owner FROM dlock_reader r
    WHERE r.name = $key AND r.owner = $owner AND r.expires_at > {now}

--- beat
{alive};
$permits
SELECT q.owner, q.name, CASE WHEN {free_for} THEN 1 ELSE 0 END
    FROM dlock_queue q, dlock_lock l
    WHERE q.process = $process AND l.name = q.name

--- free_for
(l.expires_at <= {now} - $claim OR (l.mode = 'd' AND l.expires_at > {now})
        OR ((l.expires_at <= {now} OR l.owner = '' OR (l.mode = 'r' AND q.mode = 'r')) AND {first}))

--- farewell
DELETE FROM dlock_process WHERE process = $process

--- is_clean
SELECT CASE WHEN cleaned_at <= {now} - $pause OR cleaned_at > {now} THEN 1 ELSE 0 END,
    (SELECT COUNT(*) FROM dlock_lock) + (SELECT COUNT(*) FROM dlock_reader)
        + (SELECT COUNT(*) FROM dlock_queue) + (SELECT COUNT(*) FROM dlock_process)
    FROM dlock_meta

--- clean
{begin};
UPDATE dlock_meta SET cleaned_at = {now};
DELETE FROM dlock_process WHERE alive_until <= {now};
DELETE FROM dlock_reader WHERE expires_at <= {now} AND NOT EXISTS (
    SELECT 1 FROM dlock_lock l WHERE l.name = dlock_reader.name AND l.expires_at > {now});
UPDATE dlock_meta SET floor = {highest} WHERE floor < {highest};
DELETE FROM dlock_lock WHERE {is_over};
SELECT l.name FROM dlock_lock l WHERE (l.expires_at <= {now} OR l.mode = 'd') AND l.waited = 1;
COMMIT

--- is_over
{is_unused}

--- is_unused
expires_at <= {now} AND waited = 0 AND token <= (SELECT floor FROM dlock_meta)

--- highest
COALESCE((SELECT MAX(l.token) FROM dlock_lock l WHERE l.expires_at <= {now} AND l.waited = 0
        AND l.token <= floor + $room), 0)

--- check
SELECT name, token, mode, owner, expires_at, waited FROM dlock_lock WHERE 1 = 0;
SELECT name, owner, expires_at FROM dlock_reader WHERE 1 = 0;
SELECT name, ticket, owner, mode, process FROM dlock_queue WHERE 1 = 0;
SELECT process, alive_until FROM dlock_process WHERE 1 = 0;
SELECT version, floor, cleaned_at, {durable}, {durable_tables} FROM dlock_meta

--- schema
CREATE TABLE IF NOT EXISTS dlock_lock (
    name {name} NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL,
    mode {letter} NOT NULL,
    owner {id} NOT NULL,
    expires_at BIGINT NOT NULL,
    waited SMALLINT NOT NULL
) {table_of_locks};
CREATE TABLE IF NOT EXISTS dlock_reader (
    name {name} NOT NULL,
    owner {id} NOT NULL,
    expires_at BIGINT NOT NULL,
    PRIMARY KEY (name, owner)
) {table};
CREATE TABLE IF NOT EXISTS dlock_queue (
    name {name} NOT NULL,
    ticket BIGINT NOT NULL,
    owner {id} NOT NULL,
    mode {letter} NOT NULL,
    process {id} NOT NULL,
    PRIMARY KEY (name, ticket) {key_of_processes}
) {table};
{index_of_processes};
CREATE TABLE IF NOT EXISTS dlock_process (
    process {id} NOT NULL PRIMARY KEY,
    alive_until BIGINT NOT NULL
) {table_of_processes};
CREATE TABLE IF NOT EXISTS dlock_meta (
    version INTEGER NOT NULL PRIMARY KEY,
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

--- letter
TEXT

--- table

--- table_of_locks
{table}

--- table_of_processes
{table}

--- key_of_processes

--- wake
