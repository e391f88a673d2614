SELECT name, token, mode, owner, expires_at, waited FROM dlock_lock WHERE 1 = 0;
SELECT name, owner, expires_at FROM dlock_reader WHERE 1 = 0;
SELECT name, ticket, owner, mode, process FROM dlock_queue WHERE 1 = 0;
SELECT process, alive_until FROM dlock_process WHERE 1 = 0;
SELECT version, floor, cleaned_at, {durable}, {durable_tables} FROM dlock_meta
