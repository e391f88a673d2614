-- A new row counts on from where those that were removed had got to. Read in a
-- statement of its own, behind the one that made the row: whoever removed the
-- row before had raised the floor in the same transaction, and that was over.
UPDATE dlock_lock SET token = (SELECT floor FROM dlock_meta) WHERE name = $key AND token = 0
