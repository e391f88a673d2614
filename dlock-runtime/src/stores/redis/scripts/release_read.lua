-- Gives a reader's lease back, or its place in the queue, and lets the next in.
--
--   KEYS[1] lock
--   ARGV[1] owner
--   ARGV[2] its entry in the queue; only given if it may have one
--
-- Returns 1 if the lease was given back, 2 if only a place in the queue, 0 if
-- the owner had neither.

local held = state()
local answer = 0
if ARGV[2] and redis.call('LREM', queue, 1, ARGV[2]) == 1 then
  answer = 2
end
if held == 'read' and redis.call('ZREM', readers, ARGV[1], ARGV[1] .. UNCLAIMED) > 0 then
  answer = 1
  if redis.call('EXISTS', readers) == 1 then
    -- Not longer than the last of those who stay.
    keep_readers(now())
  else
    redis.call('DEL', lock)
    held = 'free'
  end
end
if held == 'free' or held == 'read' then
  advance(held == 'read')
end
return answer
