-- Gives a read/write lock back that was had to read. The last reader tells those who wait.
--
--   KEYS[1] lock    KEYS[2] the timeout of this reader   KEYS[3] never there, see names.rs
--   ARGV[1] owner   ARGV[2] channel   ARGV[3] what the names of the timeouts begin with
--   ARGV[4] 1: its lease is broken
--
-- Returns 1 if the owner had the lock, else 0. In Java, a reader has the lock as long as
-- its field exists, and may have it several times; for the owner that gives it back, the
-- lease has ended when its timeout has.

-- readers

local had = redis.call('DEL', KEYS[2])
if ARGV[4] == '1' then
  had = 1
  for time = 2, math.min(tonumber(redis.call('HGET', lock, ARGV[1])) or 0, MOST) do
    redis.call('DEL', ARGV[3] .. ':' .. ARGV[1] .. ':rwlock_timeout:' .. time)
  end
end
if redis.call('HDEL', lock, ARGV[1]) == 0 then
  return 0
end
-- The hash lasts as long as the last of the remaining readers; unchanged if they are too
-- many to read.
if redis.call('HLEN', lock) > MOST then
  return had
end
local last = 0
local fields = redis.call('HGETALL', lock)
for index = 1, #fields, 2 do
  local ends = ends_in(ARGV[3], fields[index], tonumber(fields[index + 1]) or 0)
  if not ends then
    return had
  end
  last = math.max(last, ends)
end
if last > 0 then
  redis.call('PEXPIRE', lock, last)
elseif redis.call('HGET', lock, 'mode') == 'read' then
  redis.call('DEL', lock)
  publish(ARGV[2], '0')
end
return had
