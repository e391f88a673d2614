-- Shows a lock. Changes nothing.
--
--   KEYS[1] lock
--   of a fair lock also   KEYS[2] queue   KEYS[3] when its places end
--   of a lock with readers in a cluster   KEYS[2] a key that never exists, see names.rs
--   ARGV[1] channel   ARGV[2] the beginning of the names of its readers' timeouts
--   ARGV[3] how many waiters with a place are shown
--
-- Returns nothing if the lock is free. Otherwise its remaining ms, the number of waiters
-- (processes, or places in the queue), its mode, the name and the remaining ms of each
-- holder, and the owners of the first places. What cannot be read is replaced by its error.

-- readers

local length = redis.pcall('HLEN', lock)
if type(length) == 'table' then
  return { length }
elseif length == 0 then
  return false
end
local ms = redis.call('PTTL', lock)
if ms == -1 or length > MOST then
  return { ms, 0, '', {}, {} }
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
    ends = ends_in(ARGV[2], field, times) or ms
  end
  -- A reader whose own lease has ended is no holder, however long the hash lasts.
  if ends ~= -2 then
    found[#found + 1] = field
    found[#found + 1] = times and ends or -1
  end
end

-- If the server refuses `PUBSUB`, the answer is an error without these elements. In a
-- cluster with both kinds of channels, waiters may listen to either.
local waiters, places = nil, {}
if KEYS[3] then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  waiters = redis.pcall('ZCOUNT', KEYS[3], string.format('(%.0f', now), '+inf')
  local most = tonumber(ARGV[3])
  local queue = most > 0 and redis.pcall('LRANGE', KEYS[2], 0, MOST - 1) or {}
  if queue.err then
    return { queue }
  end
  for _, owner in ipairs(queue) do
    local ends = redis.pcall('ZSCORE', KEYS[3], owner)
    -- An error stands in the place of their number.
    if type(ends) == 'string' and tonumber(ends) > now then
      places[#places + 1] = owner
    end
    if #places == most then
      break
    end
  end
else
  waiters = redis.pcall('PUBSUB', 'NUMSUB', ARGV[1])[2] or 0
  if IN_SLOT then
    waiters = math.max(waiters, redis.pcall('PUBSUB', 'SHARDNUMSUB', ARGV[1])[2] or 0)
  end
end
return { ms, waiters, mode, found, places }
