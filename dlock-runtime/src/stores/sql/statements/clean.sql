-- Removes what nobody needs any more: the rows of locks that are free, and what
-- the dead have left. The floor is raised above every counter that goes, in the
-- same transaction.
--
-- Rows: locks that are free and waited for, perhaps by the dead only.
{begin};
UPDATE dlock_meta SET cleaned_at = {now};
DELETE FROM dlock_process WHERE alive_until <= {now};
DELETE FROM dlock_reader WHERE expires_at <= {now} AND NOT EXISTS (
    SELECT 1 FROM dlock_lock l WHERE l.name = dlock_reader.name AND l.expires_at > {now});
UPDATE dlock_meta SET floor = COALESCE((
        SELECT MAX(l.token) FROM dlock_lock l WHERE l.expires_at <= {now} AND l.waited = 0), 0)
    WHERE floor < COALESCE((
        SELECT MAX(l.token) FROM dlock_lock l WHERE l.expires_at <= {now} AND l.waited = 0), 0);
DELETE FROM dlock_lock WHERE expires_at <= {now} AND waited = 0
    AND token <= (SELECT floor FROM dlock_meta);
SELECT l.name FROM dlock_lock l WHERE l.expires_at <= {now} AND l.waited = 1;
{commit}
