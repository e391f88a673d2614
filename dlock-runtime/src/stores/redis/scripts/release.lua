-- Gives back what an owner has: its lease, its place in the queue, or both. Lets the next
-- waiter in within the same script, so that the lock is never free while somebody waits,
-- and a newcomer cannot overtake.
--
--   KEYS[1] lock
--   ARGV[1] of a writer the value of its lock; of a reader its owner
--   ARGV[2] its entry in the queue; given if it may have one, and together with ARGV[3]
--   ARGV[3] given if the body has been done: for how many ms that is remembered
--
-- Returns 1 if the lease was given back, 2 if only a place in the queue, 0 if
-- the owner had neither.

-- Nobody waits: the path of nearly every release, in front of all else.
if redis.call('GET', KEYS[1]) == ARGV[1] and not ARGV[2] then
  redis.call('DEL', KEYS[1])
  return 1
end

-- prelude

-- Ends the queue: nobody is let in, and all who wait are told to ask again.
local function tell_all()
  for _, entry in ipairs(redis.call('LRANGE', queue, 0, -1)) do
    local _, process = string.match(entry, '^[rw]:' .. OWNER .. ':%d+:(.+)$')
    if process then
      tell(process, entry .. ' ' .. lock)
    end
  end
  redis.call('DEL', queue)
end

local owner = string.match(ARGV[1], '^w:(.*)$') or ARGV[1]
local had, held, holder = take_back(owner)
local queued = ARGV[2] and redis.call('LREM', queue, 1, ARGV[2]) == 1
if had and ARGV[3] then
  redis.call('SET', lock, 'd:' .. owner, 'PX', ARGV[3])
  tell_all()
else
  -- If the same command was sent before, that may have set the mark.
  had = had or (ARGV[3] and held == 'done' and holder == owner)
  advance(held)
end
return had and 1 or queued and 2 or 0
