-- Extends a writer's lease if it is still the holder. Never takes the lock.
--
--   KEYS[1] lock
--   ARGV[1] the value a lock of this owner has   ARGV[2] ttl in ms
--
-- Returns 1 if the lease was extended, 0 if it has ended.

local value = redis.call('GET', KEYS[1])
if value == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
elseif value == ARGV[1] .. '+' or value == ARGV[1] .. UNCLAIMED then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  if value ~= ARGV[1] .. '+' then
    -- It has answered, at a master that was replaced since.
    redis.call('SET', KEYS[1], ARGV[1] .. '+', 'KEEPTTL')
  end
  -- The waiters' list must not end before the lease that they wait for.
  local ttl = tonumber(ARGV[2])
  local kept = string.format('%.0f', ttl + math.max(ttl, CLAIM_MS))
  -- In a cluster it may be on its way to another node just now.
  redis.pcall('PEXPIRE', KEYS[1] .. QUEUE, kept)
  return 1
end
return 0
