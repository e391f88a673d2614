-- Extends a writer's lease if it is still the holder. Never takes the lock.
--
--   KEYS[1] lock  KEYS[2] queue
--   ARGV[1] the value a lock of this owner has   ARGV[2] ttl in ms
--
-- Returns 1 if the lease was extended, 0 if it has ended.

if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
local ttl = tonumber(ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
-- The waiters' list must not end before the lease that they wait for.
redis.call('PEXPIRE', KEYS[2], string.format('%.0f', ttl + math.max(ttl, CLAIM_MS)))
return 1
