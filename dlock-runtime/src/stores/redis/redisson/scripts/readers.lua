-- What the scripts share that look at readers.

-- A foreign value may name any number of leases, and the server does nothing else while it
-- reads them. So a script reads no more than this many in all.
local MOST = 10000
local left = MOST

-- How many ms are left of the last of a reader's `times` leases; -2 if all have ended;
-- nothing if they are too many to read.
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
