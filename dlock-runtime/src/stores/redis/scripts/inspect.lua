-- What is known of a lock. Changes nothing.
--
--   KEYS[1] lock
--
-- Returns nothing if it is free, else its value, its remaining ms, how many
-- wait, and for each reader its owner and remaining ms.

local value = redis.pcall('GET', KEYS[1])
if not value then
  return false
elseif type(value) == 'table' then
  -- Another type is as foreign as another value.
  if string.find(value.err, 'WRONGTYPE', 1, true) then
    return { '', 0, 0 }
  end
  return value
end
local answer = { value, redis.call('PTTL', KEYS[1]), redis.call('LLEN', KEYS[1] .. QUEUE) }
if string.sub(value, 1, 2) == 'r:' then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local found = redis.call('ZRANGEBYSCORE', KEYS[1] .. READERS,
    string.format('(%.0f', now), '+inf', 'WITHSCORES')
  for index = 1, #found, 2 do
    answer[#answer + 1] = string.match(found[index], '^[^' .. UNCLAIMED .. ']*')
    answer[#answer + 1] = found[index + 1] - now
  end
end
return answer
