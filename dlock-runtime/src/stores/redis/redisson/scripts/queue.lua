-- What the scripts of a fair lock share.
--
--   KEYS[2] queue   KEYS[3] timeouts   KEYS[4] a key that never exists, see names.rs
--   ARGV[1] for how many ms a place lasts   ARGV[2] owner   ARGV[3] channel
--
--   queue     a list of the waiting owners, first come, first served
--   timeouts  a sorted set: the same owners, and when their places end in unix ms. Each
--             place ends ARGV[1] after the one before it: so each waiter may be first for
--             that long. When a waiter leaves, those behind it lose as much time.
--
-- In Java, the clock of the caller ends a place. Here the server's clock does, which is the
-- same for all processes of dlock.

-- The end of the UUID in each owner of dlock.
local DLOCK = '-00646c6f636b:'

local queue, timeouts = KEYS[2], KEYS[3]
local lasts, owner, channel = tonumber(ARGV[1]), ARGV[2], ARGV[3]

-- Redis would write a large number with an exponent, or round it.
local function text(number)
  return string.format('%.0f', number)
end

-- In milliseconds.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The first waiter. Waiters before it whose time is over lose their places; but not the
-- owner, which is asking now and so is alive.
local function first()
  local time
  while true do
    local found = redis.call('LINDEX', queue, 0)
    if not found or found == owner then
      return found
    end
    time = time or now()
    local ends = redis.call('ZSCORE', timeouts, found)
    if ends and tonumber(ends) > time then
      return found
    end
    redis.call('LPOP', queue)
    redis.call('ZREM', timeouts, found)
  end
end

-- Moves all waiters from this place on one place forward: their places end ARGV[1] earlier,
-- as Redisson has it. A command for a thousand of them.
local function move_up(from)
  local owners = redis.call('LRANGE', queue, from, -1)
  for start = 1, #owners, 1000 do
    local some = { unpack(owners, start, math.min(start + 999, #owners)) }
    local moved = {}
    for index, ends in ipairs(redis.call('ZMSCORE', timeouts, unpack(some))) do
      if ends then
        moved[#moved + 1] = text(tonumber(ends) - lasts)
        moved[#moved + 1] = some[index]
      end
    end
    if #moved > 0 then
      redis.call('ZADD', timeouts, unpack(moved))
    end
  end
end

-- If the owner has a place, it keeps it for as long as if all waiters had come just now.
-- But not if a waiter in Java is behind it: in older versions, that one sleeps until the
-- end that this place had when it looked. If the place is still there then, it sleeps until
-- it is notified, perhaps for ever. Returns whether the owner has a place.
local function keep_place()
  local before = redis.call('LPOS', queue, owner)
  if not before then
    return false
  end
  for _, behind in ipairs(redis.call('LRANGE', queue, before + 1, -1)) do
    if not string.find(behind, DLOCK, 1, true) then
      return true
    end
  end
  redis.call('ZADD', timeouts, 'GT', text(now() + (before + 1) * lasts), owner)
  return true
end

-- If the lock is free, notifies the first waiter: nobody else may take it, and an earlier
-- message may have been lost.
local function tell(who)
  if who and redis.call('EXISTS', lock) == 0 then
    publish(channel .. ':' .. who, '0')
  end
end
