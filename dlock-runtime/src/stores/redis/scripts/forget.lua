-- Removes the mark that says that the body of a lock has been done. There are no waiters:
-- all were notified when the mark was set.
--
--   KEYS[1] lock
--
-- Returns 1 if there was one, else 0.

return state() == 'done' and redis.call('DEL', lock) or 0
