-- Gives back what an owner has: its lease, its place in the queue, or both; and
-- lets the next in, within one script: the lock is never free while somebody
-- waits, and a newcomer cannot overtake.
--
--   KEYS[1] lock
--   ARGV[1] a writer: the value that its lock has; a reader: its owner
--   ARGV[2] its entry in the queue; only given if it may have one
--
-- Returns 1 if the lease was given back, 2 if only a place in the queue, 0 if
-- the owner had neither.

-- Nobody waits: the path of nearly every release, in front of all else.
if redis.call('GET', KEYS[1]) == ARGV[1] and not ARGV[2] then
  redis.call('DEL', KEYS[1])
  return 1
end

-- prelude

local had, held = take_back(string.match(ARGV[1], OWNER))
local queued = ARGV[2] and redis.call('LREM', queue, 1, ARGV[2]) == 1
advance(held)
return had and 1 or queued and 2 or 0
