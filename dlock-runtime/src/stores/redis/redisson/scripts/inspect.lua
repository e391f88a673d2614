-- What is known of a lock. Changes nothing.
--
--   KEYS[1] lock      KEYS[2] when the places in its queue end, if it has one
--   ARGV[1] channel   ARGV[2] what the names of its readers' timeouts begin with
--
-- Returns nothing if it is free, else its remaining ms, how many processes wait, its mode,
-- and of each holder in turn its name and remaining ms. An error stands in the place of
-- what cannot be read.

-- A hash of somebody else's may be of any size, and the server does nothing else meanwhile.
local MOST = 10000

local length = redis.pcall('HLEN', lock)
if type(length) == 'table' then
  return { length }
elseif length == 0 then
  return false
end
local ms = redis.call('PTTL', lock)
if ms == -1 or length > MOST then
  return { ms, 0, '', {} }
end

local mode, holders = '', {}
local fields = redis.call('HGETALL', lock)
for index = 1, #fields, 2 do
  local field, times = fields[index], tonumber(fields[index + 1])
  if field == 'mode' then
    mode = fields[index + 1]
  else
    holders[#holders + 1] = { field, times }
  end
end
local found = {}
for _, holder in ipairs(holders) do
  local field, times = holder[1], holder[2]
  local ends = ms
  if mode ~= '' and times and not string.find(field, ':write$') then
    ends = -2
    for time = 1, math.min(times, MOST) do
      local timeout = ARGV[2] .. ':' .. field .. ':rwlock_timeout:' .. time
      ends = math.max(ends, redis.call('PTTL', timeout))
    end
  end
  -- The others have ended, however long the hash lasts.
  if ends ~= -2 then
    found[#found + 1] = field
    found[#found + 1] = times and ends or -1
  end
end

-- As far as the server says: an error has no such element. One of a cluster that has both
-- kinds of channels has those who wait for the lock on either.
local waiters
if KEYS[2] then
  local time = redis.call('TIME')
  local ms = string.format('(%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  waiters = redis.pcall('ZCOUNT', KEYS[2], ms, '+inf')
else
  waiters = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])[2] or 0
end
if IN_SLOT and not KEYS[2] then
  waiters = math.max(waiters, redis.pcall('PUBSUB', 'SHARDNUMSUB', ARGV[1])[2] or 0)
end
return { ms, waiters, mode, found }
