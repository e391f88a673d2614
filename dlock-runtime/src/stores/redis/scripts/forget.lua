-- Removes the mark that says that the body of a lock has been done. Nobody waits: all
-- who did were told.
--
--   KEYS[1] lock
--
-- Returns 1 if there was one, else 0.

return state() == 'done' and redis.call('DEL', lock) or 0
