-- Takes a fair lock if it is free and no other waiter is first, or extends the owner's
-- lease. A waiter gets a place in the queue, and keeps it by asking.
--
--   KEYS[1] lock
--   ARGV[4] ttl in ms   ARGV[5] 1 to queue, 0 only to try
--
-- Returns OK, or what is held.

-- queue

local function have()
  redis.call('HSET', lock, owner, 1)
  redis.call('PEXPIRE', lock, ARGV[4])
  return redis.status_reply('OK')
end

local is_free = redis.call('EXISTS', lock) == 0
if not is_free and redis.call('HEXISTS', lock, owner) == 1 then
  return have()
end
local who = first()
if is_free and (not who or who == owner) then
  if who then
    redis.call('LPOP', queue)
    redis.call('ZREM', timeouts, owner)
    move_up(0)
  end
  return have()
end
local found = held()
if type(found) ~= 'string' then
  return found
end
if ARGV[5] == '1' and not keep_place() then
  local last = redis.call('LINDEX', queue, -1)
  local before = last and redis.call('ZSCORE', timeouts, last)
  local time = now()
  before = before and tonumber(before) or time + redis.call('PTTL', lock)
  redis.call('ZADD', timeouts, text(math.max(before, time) + lasts), owner)
  redis.call('RPUSH', queue, owner)
end
tell(who)
return found
