-- What the scripts of a fair lock share.
--
--   KEYS[2] queue   KEYS[3] timeouts   KEYS[4] never there, see names.rs
--   ARGV[1] for how many ms a place lasts   ARGV[2] owner   ARGV[3] channel
--
--   queue     a list of the owners who wait, first come first
--   timeouts  a sorted set: the same owners, and when their places end in unix ms. Each
--             has the time of the one before and as much again as a place lasts: so
--             each is first for so long. When one goes, those behind it lose as much.
--
-- In Java it is the caller's clock that ends a place. Here it is the server's: all who
-- use dlock have the same.

-- What the owners have in them who use dlock.
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

-- Who is first. Those before it whose time is over lose their places; not the owner, who
-- asks and so is alive.
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

-- Those from this place on are one place nearer: Redisson takes the time of a place from
-- each. Many of them in one command.
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

-- Who has a place and is alive keeps it for as long as if all had come just now; but not
-- with somebody from Java behind it: in older versions that one sleeps until this place was
-- to end when it looked, and if it finds it there yet, sleeps for ever unless it is told.
-- Returns whether there is a place.
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

-- If the lock is free, whoever is first may take it and nobody else. It may not have been
-- told, or not have heard it.
local function tell(who)
  if who and redis.call('EXISTS', lock) == 0 then
    publish(channel .. ':' .. who, '0')
  end
end
