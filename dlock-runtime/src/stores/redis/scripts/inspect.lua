-- Shows a lock. Changes nothing.
--
--   KEYS[1] lock
--   ARGV[1] 1: the waiters are the subscribers of the lock's channel
--   ARGV[2] how many places in the queue are shown
--
-- Returns nothing if the lock is free. Otherwise its value, its remaining ms, the number of
-- waiters, of each reader its owner and remaining ms, the first places in the queue, since
-- when each reader holds the lock, and the token of each holder; nothing for what is not
-- known. What cannot be read is replaced by its error.

local value = redis.call('GET', lock)
if not value then
  return false
end
local found, since, tokens = {}, {}, {}

local function look_for_token(owner)
  local known = redis.pcall('GET', fencing_key(owner))
  tokens[#tokens + 1] = type(known) == 'string' and known
end

if string.sub(value, 1, 2) == 'r:' then
  local time = now()
  found = redis.pcall('ZRANGEBYSCORE', readers, '(' .. text(time), '+inf', 'WITHSCORES')
  for index = 1, #found, 2 do
    found[index] = string.match(found[index], '^[^' .. UNCLAIMED .. ']*')
    found[index + 1] = found[index + 1] - time
    local known = redis.pcall('GET', since_key(found[index]))
    since[#since + 1] = type(known) == 'string' and known
    look_for_token(found[index])
  end
end
local writer = string.match(value, '^w:' .. OWNER)
if writer then
  look_for_token(writer)
end
local waiters = redis.pcall('LLEN', queue)
if ARGV[1] == '1' then
  -- If the server refuses this, the answer is an error, which has no second element.
  local listeners = redis.pcall('PUBSUB', IN_SLOT and 'SHARDNUMSUB' or 'NUMSUB', WAKE .. lock)
  waiters = listeners[2] or 0
end
local places = ARGV[2] == '0' and {} or redis.pcall('LRANGE', queue, 0, ARGV[2] - 1)
return { value, redis.call('PTTL', lock), waiters, found, places, since, tokens }
