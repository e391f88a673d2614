-- Gives a fair lock back, or a place in its queue, or both; and tells who is first.
--
--   KEYS[1] lock
--   ARGV[4] 1 if the owner may have a place, 0 if not
--
-- Returns 1 if the owner had the lock, 2 if only a place, else 0.

-- queue

local had = redis.call('HDEL', lock, owner) == 1
local before = ARGV[4] == '1' and redis.call('LPOS', queue, owner)
if before then
  move_up(before + 1)
  redis.call('ZREM', timeouts, owner)
  redis.call('LREM', queue, 0, owner)
end
tell(first())
return had and 1 or before and 2 or 0
