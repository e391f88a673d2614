-- Shared by the scripts that hand a lock on. They all get the lock as KEYS[1],
-- and, put in front by scripts.rs, the constants
--   QUEUE, READERS       what follows the lock's name in those of its other keys
--   ALIVE, WAKE          the prefixes of a process's keys
--   ALIVE_MS, CLAIM_MS   how long a heartbeat counts, and a grant waits
--   UNCLAIMED            the mark of a grant that waits
-- and on_server.lua or in_slot.lua.
--
-- What the keys hold:
--   lock     "w:<owner>": one writer, and nobody waits. "w:<owner>+": one
--            writer, and somebody may wait. "w:<owner>?": the same, but it was
--            given to a waiter who has not answered yet. "r:<owner>": readers,
--            listed in their own key; the owner is the reader who was let in
--            last by the queue, so that the value changes whenever waiting
--            readers got in.
--   queue    a list of "<mode>:<owner>:<ttl ms>:<process>", first come first
--   readers  a sorted set: owner, with the end of its lease in unix ms; with a
--            "?" behind the owner until it has answered

local lock, queue, readers = KEYS[1], KEYS[1] .. QUEUE, KEYS[1] .. READERS

-- Redis would write a large number with an exponent, or round it.
local function text(number)
  return string.format('%.0f', number)
end

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The queue outlives the lock a little: if the holder dies, the waiters keep
-- their places until one of them notices.
local function keep_queue(lock_ms, ttl)
  redis.call('PEXPIRE', queue, text(lock_ms + math.max(ttl, CLAIM_MS)))
end

-- The lock lasts as long as the last of its readers. Returns how long.
local function keep_readers(time)
  local last = redis.call('ZRANGE', readers, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIREAT', lock, last)
  redis.call('PEXPIREAT', readers, last)
  return last - time
end

-- Who holds the lock: 'free', 'write', 'read', or 'foreign' if what is there
-- was not written by dlock; for a writer, its owner, and the mark behind it,
-- which is '' if nobody waits. Readers whose lease has ended go.
local function state()
  local value = redis.call('GET', lock)
  if not value then
    return 'free'
  end
  local mode, owner, mark = string.match(value, '^([rw]):(%x+%.%x+)([+?]?)$')
  if mode == 'w' then
    return 'write', owner, mark
  elseif mode ~= 'r' then
    return 'foreign'
  end
  redis.call('ZREMRANGEBYSCORE', readers, '-inf', text(now()))
  if redis.call('EXISTS', readers) == 0 then
    redis.call('DEL', lock)
    return 'free'
  end
  return 'read'
end

-- Lets a reader in, beside the readers who are in already if there are any. The
-- value of the lock becomes that of `shown`, if it is to change.
local function let_in(reader, ms, shown)
  local time = now()
  redis.call('ZADD', readers, text(time + ms), reader)
  if shown then
    redis.call('SET', lock, 'r:' .. shown)
  end
  return keep_readers(time)
end

-- Whether an owner is among the readers. If it had not answered, it has now: it is
-- to be let in behind this.
local function answers_as_reader(owner)
  return redis.call('ZSCORE', readers, owner)
    or redis.call('ZREM', readers, owner .. UNCLAIMED) == 1
end

-- Gives the lock to the waiter at the head of the queue, and if that is a
-- reader, to the readers right behind it. With `shared`, readers hold the lock
-- and only readers can be let in. `here` is the entry of the caller, who is
-- alive for certain and needs no message. Returns the mode that was given, if
-- any; whether the caller is among them; and whether a writer waits next.
--
-- A waiter whose process has not been heard of for ALIVE_MS is dropped. One
-- whose process is alive but does not listen just now keeps its place, and the
-- lock goes to the next who listens: a process that was killed is passed over
-- at once, because its connection is closed. If nobody listens the lock stays
-- free, and who lives finds that out within a second.
local function advance(shared, here)
  local given, mine, blocked = nil, false, false
  local deaf, alive, listens = {}, {}, {}

  local function is_alive(process)
    if alive[process] == nil then
      alive[process] = redis.call('EXISTS', alive_key(process)) == 1
    end
    return alive[process]
  end

  local function told(process, entry)
    if listens[process] == false then
      return false
    end
    local heard = tell(process, entry .. ' ' .. lock)
    listens[process] = heard > 0
    return listens[process]
  end

  local function give(mode, owner, ttl, caller)
    -- A waiter gets a short lease, which it turns into a whole one by its
    -- answer: should it have died, the others need not wait for its ttl.
    local ms = caller and ttl or math.min(ttl, CLAIM_MS)
    if mode == 'w' then
      local mark = caller and '+' or UNCLAIMED
      redis.call('SET', lock, 'w:' .. owner .. mark, 'PX', text(ms))
    else
      ms = let_in(caller and owner or owner .. UNCLAIMED, ms, owner)
      shared = true
    end
    given, mine = mode, mine or caller
    keep_queue(ms, ttl)
  end

  -- If it was alone, the list has ended without it, and its expiry too.
  local function put_back(entry, ttl)
    redis.call('LPUSH', queue, entry)
    keep_queue(math.max(redis.call('PTTL', lock), 0), ttl)
  end

  while given ~= 'w' do
    local entry = redis.call('LPOP', queue)
    if not entry then
      break
    end
    local mode, owner, ttl, process =
      string.match(entry, '^([rw]):(%x+%.%x+):(%d+):(.+)$')
    local caller = entry == here
    if mode and (caller or is_alive(process)) then
      if mode == 'w' and shared then
        put_back(entry, tonumber(ttl))
        blocked = true
        break
      elseif caller or told(process, entry) then
        give(mode, owner, tonumber(ttl), caller)
      else
        deaf[#deaf + 1] = { entry, tonumber(ttl) }
      end
    end
  end

  for index = #deaf, 1, -1 do
    put_back(unpack(deaf[index]))
  end
  return given, mine, blocked
end
