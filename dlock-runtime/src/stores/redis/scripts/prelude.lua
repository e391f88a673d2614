-- What the scripts share. They get the lock as KEYS[1], and, put in front by
-- scripts.rs, the constants
--   QUEUE, READERS       what follows the lock's name in those of its other keys
--   ALIVE, WAKE          the prefixes of a process's keys
--   OUT                  the prefix of the key of one who was taken out of a queue
--   SINCE                the prefix of the key that says since when one who shares
--                        the lock holds it
--   FENCING              the prefix of the key that has the fencing token of a holder
--   ALIVE_MS, CLAIM_MS   how long a heartbeat counts, and a grant waits
--   UNCLAIMED            the mark of a grant that waits
--   IN_SLOT              whether a slot of a cluster has the keys: all that a
--                        script touches must be in it, and the slot is not on its
--                        way while one runs that was told of a key that is never
--                        there
--   BY_CLOCK             whether the token counter is lifted with each draw
--
-- What the keys hold:
--   lock     "w:<owner>": one writer, and nobody waits. "w:<owner>+": one
--            writer, and somebody may wait, or its token is kept; its release has
--            to look. "w:<owner>?": somebody may wait, and the lock was
--            given to a waiter who has not answered yet. Such a waiter has
--            ";<unix ms>" behind it: since when it holds the lock. "r:<owner>": readers,
--            listed in their own key; the owner is the reader who was let in
--            last by the queue, so that the value changes whenever waiting
--            readers got in. "d:<owner>": nobody; its body was to run once, and
--            this owner has done it.
--   queue    a list of "<mode>:<owner>:<ttl ms>:<process>", first come first
--   readers  a sorted set: owner, with the end of its lease in unix ms; with a
--            "?" behind the owner until it has answered
--   since    of one who shares the lock: "<unix ms>". It ends with the lease. Nothing
--            depends on it, and processes of a version before do not know it
--   fencing  of one who has renewed its lease: the first token of its grant. As above
-- Who asks for one of n permits is a reader, whose owner has "/<n>" behind it. An
-- owner is "<hex>.<hex>", and "@<host>,<process>,<label>,<unix ms>" behind that.

local lock, queue, readers = KEYS[1], KEYS[1] .. QUEUE, KEYS[1] .. READERS

-- A process has one key that says that it is alive, and one channel; where a slot
-- has the keys, it has them for each lock.
local of_lock = IN_SLOT and string.sub(lock, 7) .. ':' or ''

local function alive_key(process)
  return ALIVE .. of_lock .. process
end

-- Says that an owner was taken out of the queue. It asks at least once a second, or its
-- process is dead, and so need not be told for longer.
local function out_key(owner)
  return OUT .. string.sub(lock, 7) .. ':' .. owner
end

-- A command on the two keys of a holder that fails is passed over. A script that is told of
-- the lock alone also runs while the slot is on its way, and these keys may be at the other
-- node then. At the new node such a command does not fail: what it made there would keep the
-- key at the old one from coming, and the slot with it. So no token is given to a renewal that
-- is sent ahead.
local function holder_key(prefix, owner)
  return prefix .. string.sub(lock, 7) .. ':' .. string.match(owner, '^[^@/]*')
end

local function since_key(owner)
  return holder_key(SINCE, owner)
end

local function fencing_key(owner)
  return holder_key(FENCING, owner)
end

-- Returns how many heard it; in a cluster, at this node.
local function publish(channel, message)
  local heard = IN_SLOT and redis.pcall('SPUBLISH', channel, message)
  if type(heard) == 'number' then
    return heard
  end
  -- Before Redis 7, channels belong to no slot.
  return redis.call('PUBLISH', channel, message)
end

local function tell(process, message)
  return publish(WAKE .. of_lock .. process, message)
end

-- Redis would write a large number with an exponent, or round it.
local function text(number)
  return string.format('%.0f', number)
end

-- What may be an owner, up to what stands behind it, as a pattern. No two parts of any
-- pattern here match the same letters: with a long value of somebody else's the server
-- would try all ways to share those out, and answer nobody meanwhile.
local OWNER = '([^:;+?]+)'

local function is_owner(text)
  local bare = string.match(text, '^([^/]+)/%d+$') or text
  return string.match(bare, '^%x+%.%x+$')
    or string.match(bare, '^%x+%.%x+@[%w._-]+,%d+,[%w._-]+,%d+$')
end

-- Whether there is room for one more beside those who share the lock.
local function has_room(owner)
  local most = tonumber(string.match(owner, '/(%d+)$'))
  -- Not `ZCARD`: an operator's list of what dlock may call does not have it.
  return not most or #redis.call('ZRANGE', readers, most - 1, most - 1) == 0
end

-- The server's clock, in microseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The server's clock, in milliseconds.
local function now()
  return math.floor(clock() / 1000)
end

-- Draws so many numbers from a token counter, all of them above `lowest`. Returns
-- the last. Exact: doubles hold every whole number up to 2^53, five times the
-- clock.
local function draw(counter, numbers, lowest)
  local behind = lowest - redis.call('INCRBY', counter, 0)
  return redis.call('INCRBY', counter, text(math.max(behind, 0) + numbers))
end

-- The queue outlives the lock a little: if the holder dies, the waiters keep
-- their places until one of them notices. A writer's renewal in a cluster is told
-- of the lock alone: the queue may be on its way to another node just then.
local function keep_queue(lock_ms, ttl)
  redis.pcall('PEXPIRE', queue, text(lock_ms + math.max(ttl, CLAIM_MS)))
end

-- The lock lasts as long as the last of its readers. Returns how long.
local function keep_readers(time)
  local last = redis.call('ZRANGE', readers, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIREAT', lock, last)
  redis.call('PEXPIREAT', readers, last)
  return last - time
end

-- Who holds the lock: 'free', 'write', 'read', 'done', or 'foreign' if what is there
-- was not written by dlock; for a writer, or who has done it, its owner; and the mark
-- behind a writer, which is '' if nobody waits, and since when it has the lock, as it is
-- written. Readers whose lease has ended go.
local function state()
  local value = redis.call('GET', lock)
  if not value then
    return 'free'
  end
  local mode, owner, behind = string.match(value, '^([rwd]):' .. OWNER .. '(.*)$')
  local since, mark = string.match(behind or '', '^(;?%d*)([+?]?)$')
  if not mark or not owner or not is_owner(owner) then
    return 'foreign'
  elseif mode == 'w' then
    return 'write', owner, mark, since
  elseif mode == 'd' then
    return 'done', owner
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

-- Extends the lease of an owner, if it holds the lock. If it had not answered its
-- grant, it has now. Its token, and since when it holds the lock by its own clock, are
-- written down if they are given. Returns whether it holds it, and the state.
local function extend(owner, ms, token, known)
  local held, holder, mark, since = state()
  local had = held == 'write' and holder == owner
  if had then
    -- First, as a server that is full lets a script go on that has written before.
    redis.call('PEXPIRE', lock, text(ms))
    local behind = since .. (mark == UNCLAIMED and '+' or mark)
    if known and since == '' then
      behind = ';' .. known .. behind
    elseif token and behind == '' then
      behind = '+'
    end
    if behind ~= since .. mark then
      redis.call('SET', lock, 'w:' .. owner .. behind, 'KEEPTTL')
    end
    if mark ~= '' then
      keep_queue(ms, ms)
    end
  elseif held == 'read' then
    had = redis.call('ZSCORE', readers, owner)
      or redis.call('ZREM', readers, owner .. UNCLAIMED) == 1
    if had then
      keep_queue(let_in(owner, ms), ms)
      if known then
        redis.pcall('SET', since_key(owner), known, 'PX', text(ms))
      else
        redis.pcall('PEXPIRE', since_key(owner), text(ms))
      end
    end
  end
  if had and token then
    redis.pcall('SET', fencing_key(owner), token, 'PX', text(ms))
  end
  return had, held, holder, mark
end

-- Takes the lock away from an owner, if it holds it; `unclaimed`: only if it has
-- not answered its grant. Returns whether it did, and who holds the lock then.
local function take_back(owner, unclaimed)
  local held, holder, mark = state()
  if held == 'write' and holder == owner and (mark == UNCLAIMED or not unclaimed) then
    local gone = redis.pcall('DEL', lock, fencing_key(owner))
    if type(gone) ~= 'number' then
      redis.call('DEL', lock)
    end
    return true, 'free'
  elseif held ~= 'read' then
    return false, held, holder
  end
  local found = redis.call('ZREM', readers, owner .. UNCLAIMED)
  if not unclaimed then
    found = found + redis.call('ZREM', readers, owner)
  end
  if found == 0 then
    return false, held
  end
  redis.pcall('DEL', since_key(owner), fencing_key(owner))
  if redis.call('EXISTS', readers) == 0 then
    redis.call('DEL', lock)
    return true, 'free'
  end
  -- Not longer than the last of those who stay.
  keep_readers(now())
  return true, held
end

-- Gives the lock to the waiter at the head of the queue, and if that is a
-- reader, to the readers right behind it for whom there is room. It is free, or
-- readers `held` it, and only readers can be let in. `here` is the entry of the
-- caller, who is alive for certain and needs no message. Returns the mode that was
-- given, if any; whether the caller is among them; and whether somebody waits next
-- who cannot be let in.
--
-- A waiter whose process has not been heard of for ALIVE_MS is dropped. One
-- whose process is alive but does not listen just now keeps its place, and the
-- lock goes to the next who listens: a process that was killed is passed over
-- at once, because its connection is closed. If nobody listens the lock stays
-- free, and who lives finds that out within a second.
local function advance(held, here)
  if held ~= 'free' and held ~= 'read' then
    return
  end
  local given, mine, blocked = nil, false, false
  local shared, deaf, alive, listens = held == 'read', {}, {}, {}

  local function is_alive(process)
    if alive[process] == nil then
      alive[process] = redis.call('EXISTS', alive_key(process)) == 1
    end
    return alive[process]
  end

  local function told(process, entry)
    if listens[process] ~= false then
      listens[process] = tell(process, entry .. ' ' .. lock) > 0
    end
    return listens[process]
  end

  local function give(mode, owner, ttl, caller)
    -- A waiter gets a short lease, which it turns into a whole one by its
    -- answer: should it have died, the others need not wait for its ttl.
    local ms = caller and ttl or math.min(ttl, CLAIM_MS)
    if mode == 'w' then
      local mark = caller and '+' or UNCLAIMED
      redis.call('SET', lock, 'w:' .. owner .. ';' .. text(now()) .. mark, 'PX', text(ms))
    else
      redis.pcall('SET', since_key(owner), text(now()), 'PX', text(ms))
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
      string.match(entry, '^([rw]):' .. OWNER .. ':(%d+):(.+)$')
    local caller = entry == here
    if mode and is_owner(owner) and (caller or is_alive(process)) then
      ttl = tonumber(ttl)
      if shared and (mode == 'w' or not has_room(owner)) then
        put_back(entry, ttl)
        blocked = true
        break
      elseif caller or told(process, entry) then
        give(mode, owner, ttl, caller)
      else
        deaf[#deaf + 1] = { entry, ttl }
      end
    end
  end

  for index = #deaf, 1, -1 do
    put_back(unpack(deaf[index]))
  end
  return given, mine, blocked
end
