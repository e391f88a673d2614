-- Gives a node's vote for a lease back, and tells those who wait for the lock:
-- they ask all nodes themselves, since no node alone may hand the lock on.
--
--   KEYS[1] lock
--   ARGV[1] mode: w or r   ARGV[2] owner
--
-- Returns 1 if the owner had the vote, else 0.

local held, holder = state()
if ARGV[1] == 'w' then
  if held ~= 'write' or holder ~= ARGV[2] then
    return 0
  end
  redis.call('DEL', lock)
else
  if held ~= 'read' or redis.call('ZREM', readers, ARGV[2]) == 0 then
    return 0
  end
  if redis.call('EXISTS', readers) == 1 then
    -- Not longer than the last of those who stay, who keep out whoever waits.
    keep_readers(now())
    return 1
  end
  redis.call('DEL', lock)
end
tell_all(lock, ARGV[2])
return 1
