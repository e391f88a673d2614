-- What the scripts share. KEYS[1] is the lock. scripts.rs puts these constants in front:
--   QUEUE, READERS       what follows the lock's name in the names of its other keys
--   ALIVE, WAKE          prefixes of the names of a process's key and channel
--   OUT                  prefix of the key of an owner that was taken out of a queue
--   SINCE                prefix of the key that says since when an owner shares the lock
--   FENCING              prefix of the key with the fencing token of a holder
--   ALIVE_MS, CLAIM_MS   how long a heartbeat counts, and a grant waits to be claimed
--   UNCLAIMED            the mark of a grant that was not claimed yet
--   IN_SLOT              whether a slot of a cluster has the keys. Then a script may use
--                        only keys of that slot. One that is given a key that never
--                        exists does not run while the slot is being moved
--   BY_CLOCK             whether each draw raises the token counter to the clock
--
-- What the keys hold:
--   lock     "w:<owner>": one writer, and nobody waits. "w:<owner>+": one writer, and
--            somebody may wait, or its token is kept; its release has to look.
--            "w:<owner>?": somebody may wait, and the lock was granted to a waiter
--            that has not claimed it yet. ";<unix ms>" may follow the owner of a
--            writer: since when it holds the lock. "r:<owner>": readers, listed in
--            their own key. The owner is the reader that the queue let in last, so
--            the value changes whenever waiting readers got in. "d:<owner>": nobody;
--            the body was to run once, and this owner has done it.
--   queue    a list of "<mode>:<owner>:<ttl ms>:<process>", first come, first served
--   readers  a sorted set: each owner with the end of its lease in unix ms, and a "?"
--            behind the owner until it has claimed its grant
--   since    "<unix ms>": since when an owner shares the lock. It ends with the lease.
--            Nothing depends on it, and the previous version does not write it
--   fencing  the first token of a holder's grant, once its lease was renewed. It ends
--            with the lease too
-- A request for one of n permits is a reader, whose owner ends in "/<n>". An owner is
-- "<hex>.<hex>", and "@<host>,<process>,<label>,<unix ms>" may follow.

local lock, queue, readers = KEYS[1], KEYS[1] .. QUEUE, KEYS[1] .. READERS

-- A process has one key that says that it is alive, and one channel; where a slot
-- has the keys, it has them for each lock.
local of_lock = IN_SLOT and string.sub(lock, 7) .. ':' or ''

local function alive_key(process)
  return ALIVE .. of_lock .. process
end

-- Says that an owner was taken out of the queue. The owner is notified at once; if its
-- connection has broken, it asks again over the next one. One that asks only after this key
-- has ended takes a place again.
local function out_key(owner)
  return OUT .. string.sub(lock, 7) .. ':' .. owner
end

-- An error of a command on the two keys of a holder is ignored. A script that was given
-- only the lock runs even while the slot is being moved, and these keys may be at the other
-- node then. At the node that gets the slot, such a command does not fail; but the key that
-- it made would keep the source's key of that name from coming, and with it the slot. So a
-- renewal that is sent there (`ASK`) is given no token to write.
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

-- What may be an owner, up to the next separator, as a pattern. No two parts of a pattern
-- in this file match the same letter: on a long foreign value, the server would otherwise
-- try all ways to divide it, and answer nobody meanwhile.
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

-- The queue outlives the lock a little: if the holder dies, the waiters keep their places
-- until one of them notices. An error is ignored: a writer's renewal in a cluster passes
-- only the lock as a key, and the queue may be at another node then.
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

-- The state of the lock: 'free', 'write', 'read', 'done', or 'foreign' if dlock did not
-- write the value. For 'write' and 'done' also the owner. For 'write' also the mark behind
-- it ('' if nobody waits), and since when it holds the lock, as written. Removes readers
-- whose leases have ended.
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
  elseif IN_SLOT and #KEYS == 1 then
    -- A writer asks, and the readers may still be at the node that the slot leaves.
    return 'read'
  end
  redis.call('ZREMRANGEBYSCORE', readers, '-inf', text(now()))
  if redis.call('EXISTS', readers) == 0 then
    redis.call('DEL', lock)
    return 'free'
  end
  return 'read'
end

-- Readers of before are out if nobody has the lock: perhaps only its own key was lost. They must
-- not count among those who come. (Once a script has written something, a server whose memory is
-- full refuses it nothing more. So nothing is written if there are none.) Returns whether they are
-- gone: a key of another type is somebody else's, and `DEL` would remove it.
local function forget_readers()
  if redis.call('EXISTS', readers) == 0 then
    return true
  end
  return type(redis.pcall('ZREMRANGEBYSCORE', readers, '-inf', '+inf')) == 'number'
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
    -- Before the `SET`: a server whose memory is full refuses that, unless the script has
    -- written something before.
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

-- Grants the lock to the first waiter; if that is a reader, also to the readers right
-- behind it, as far as there is room. The lock is free, or readers hold it (`held`), and
-- then only readers are let in. `here` is the entry of the caller, which is certainly alive
-- and needs no message. Returns the mode that was granted, if any; whether the caller is
-- among the new holders; and whether the next live waiter has to wait.
--
-- A waiter whose process has sent no heartbeat for ALIVE_MS is dropped. A waiter whose
-- process is alive but not subscribed keeps its place, and the lock goes to the next that
-- is. So a process that was killed is passed over at once, because its connection is
-- closed. If nobody is subscribed, the lock stays free, and the waiters find that out
-- within a second.
local function advance(held, here)
  if held ~= 'free' and held ~= 'read' then
    return
  end
  local given, mine, blocked, foreign = nil, false, false, false
  local shared, unreachable, alive, listens = held == 'read', {}, {}, {}

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
    -- A waiter gets a short lease, and a whole one when it claims the grant. If it has
    -- died, the others do not have to wait for its ttl.
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

  -- If the entry was the only one, the list has gone, and its expiry with it: so that is
  -- set again.
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
      elseif mode == 'r' and not shared and not forget_readers() then
        -- No reader can be let in. Who asks learns why, and the others are to ask.
        if not caller then
          told(process, entry)
        end
        put_back(entry, ttl)
        blocked, foreign = true, caller
        break
      elseif caller or told(process, entry) then
        give(mode, owner, ttl, caller)
      else
        unreachable[#unreachable + 1] = { entry, ttl }
      end
    end
  end

  for index = #unreachable, 1, -1 do
    put_back(unpack(unreachable[index]))
  end
  if foreign then
    -- Fails as `forget_readers` did.
    redis.call('ZREMRANGEBYSCORE', readers, '-inf', '+inf')
  end
  return given, mine, blocked
end
