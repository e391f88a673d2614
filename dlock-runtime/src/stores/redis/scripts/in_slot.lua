-- What the scripts share, where a slot of a cluster has the keys: all that they
-- touch must be in it, so a process has a key that says that it is alive, and a
-- channel, for each lock. The slot is never on its way while a script runs that
-- was told of a key that is never there: all of its keys are here.

local braces = string.sub(KEYS[1], 7)

local function alive_key(process)
  return ALIVE .. braces .. ':' .. process
end

-- Returns how many heard it at this node.
local function publish(channel, message)
  local heard = redis.pcall('SPUBLISH', channel, message)
  if type(heard) == 'table' then
    -- Before Redis 7, channels belong to no slot.
    heard = redis.call('PUBLISH', channel, message)
  end
  return heard
end

local function tell(process, message)
  return publish(WAKE .. braces .. ':' .. process, message)
end

local function tell_all(lock, message)
  return publish(WAKE .. lock, message)
end

