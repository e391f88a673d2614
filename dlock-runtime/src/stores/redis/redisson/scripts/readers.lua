-- What the scripts share that look at readers.

-- What is not Redisson's may say any number and be of any size, and the server does nothing
-- else meanwhile: no more of it is looked at, all in all.
local MOST = 10000
local left = MOST

-- For how many ms yet a reader has the lock that has it so many times, -2 if its leases have
-- ended; nothing if that is too much to look at.
local function ends_in(timeouts, reader, times)
  if not (times <= left) then
    return nil
  end
  left = left - math.max(times, 0)
  local last = -2
  for time = 1, times do
    local timeout = timeouts .. ':' .. reader .. ':rwlock_timeout:' .. time
    last = math.max(last, redis.call('PTTL', timeout))
  end
  return last
end
