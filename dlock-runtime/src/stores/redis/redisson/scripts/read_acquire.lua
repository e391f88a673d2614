-- Lets a reader into a read/write lock, or extends its lease.
--
--   KEYS[1] lock    KEYS[2] the timeout of this reader
--   ARGV[1] owner   ARGV[2] ttl in ms
--
-- Returns OK, or what is held.

local mode = redis.call('HGET', lock, 'mode')
local is_free = redis.call('EXISTS', lock) == 0
if not is_free and mode ~= 'read' then
  return held()
end
redis.call('HSET', lock, 'mode', 'read', ARGV[1], 1)
redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])
-- As long as the last of the readers.
redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), tonumber(ARGV[2])))
return redis.status_reply('OK')
