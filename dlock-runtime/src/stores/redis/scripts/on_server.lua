-- What the scripts share, where one server has all keys: a process has one key
-- that says that it is alive, and one channel.

local function alive_key(process)
  return ALIVE .. process
end

local function tell(process, message)
  return redis.call('PUBLISH', WAKE .. process, message)
end

local function tell_all(lock, message)
  return redis.call('PUBLISH', WAKE .. lock, message)
end

