-- What the scripts share. They get, put in front by scripts.rs, the constant
--   IN_SLOT   whether a cluster has the keys
--
-- What the keys hold, as Redisson reads and writes them, from 3.17 to 4.7:
--   lock     a hash with a ttl. "<uuid>:<number>" -> how often that owner has it; a
--            writer of a read/write lock has ":write" behind it, and the field "mode"
--            says "read" or "write" there. A lock that is free has no key at all: who
--            asks for an RLock enters only then.
--   token    the last token of a fenced lock, for ever
--   timeout  a string for each time that a reader has the lock, which ends with its
--            lease: the hash lasts as long as the last of them
--   queue, timeouts   who waits for a fair lock, see queue.lua
-- An owner of dlock's has a lock once: the repetition of a command is no second time.

local lock = KEYS[1]

-- Who waits in Java has subscribed to a channel of the slot since 3.22, and to one of
-- the whole cluster before that.
local function publish(channel, message)
  if IN_SLOT then
    -- Not known before Redis 7.
    redis.pcall('SPUBLISH', channel, message)
  end
  redis.call('PUBLISH', channel, message)
end

-- What somebody else holds: its mode if it has one, and for how many ms yet. Without an
-- end, it is no lock.
local function held()
  local ms = redis.call('PTTL', lock)
  if ms == -1 then
    return redis.error_reply('DLOCKFOREIGN a lock without a ttl')
  end
  return ms .. ':' .. (redis.call('HGET', lock, 'mode') or '')
end
