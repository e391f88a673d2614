-- What the scripts share. scripts.rs puts this constant in front:
--   IN_SLOT   whether the keys are in a cluster
--
-- What the keys hold, as Redisson 3.17 to 4.7 reads and writes them:
--   lock     a hash with a ttl. "<uuid>:<number>" -> how many times that owner has the lock.
--            In a read/write lock, the field of a writer ends in ":write", and the field
--            "mode" is "read" or "write". A free lock has no key at all: a request for an
--            RLock gets in only then.
--   token    the last token of a fenced lock, kept for ever
--   timeout  a string for each time that a reader has the lock. It ends with that lease;
--            the hash lasts as long as the last of them
--   queue, timeouts   the waiters of a fair lock, see queue.lua
-- An owner of dlock has a lock only once, so a repeated command does not count twice.

local lock = KEYS[1]

-- Waiters in Java have subscribed to a channel of the slot since 3.22, and to one of the
-- whole cluster before that.
local function publish(channel, message)
  if IN_SLOT then
    -- Not known before Redis 7.
    redis.pcall('SPUBLISH', channel, message)
  end
  redis.call('PUBLISH', channel, message)
end

-- How the lock is held: "<remaining ms>:<mode>", with no mode for an RLock. An error for a
-- hash without a ttl, which is no lock.
local function held()
  local ms = redis.call('PTTL', lock)
  if ms == -1 then
    return redis.error_reply('DLOCKFOREIGN a lock without a ttl')
  end
  return ms .. ':' .. (redis.call('HGET', lock, 'mode') or '')
end
