-- Takes the lock, or a place in its queue. A waiter sends only this, as often as it likes:
-- if it holds the lock already, its lease is extended; if it is in the queue, it keeps its
-- place.
--
--   KEYS[1] lock
--   then, in a cluster, the queue, the readers, and one that is never there
--   KEYS[#KEYS] token counter
--   ARGV[1] mode: w or r   ARGV[2] owner   ARGV[3] ttl in ms
--   ARGV[4] the process    ARGV[5] 1 to queue, 0 only to try
--   ARGV[6] how many token numbers a grant reserves
--   ARGV[7] in a cluster: a number that the token must be above
--
-- Returns the last of the reserved token numbers; or what the lock holds, if it
-- was not had; or "x:", if the owner was taken out of the queue.

local mode, owner, ttl, process = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local waits = ARGV[5] == '1'
local entry = mode .. ':' .. owner .. ':' .. ARGV[3] .. ':' .. process

-- Drawn after the lock was taken, so before any later grant.
local function granted()
  local counter = KEYS[#KEYS]
  if BY_CLOCK then
    -- The slot may have moved, or a replica may have taken it over, since the connection
    -- was opened. So each draw raises the counter to the clock.
    return draw(counter, tonumber(ARGV[6]), math.max(clock(), tonumber(ARGV[7])))
  end
  -- Raised to the clock when the connection was opened.
  return redis.call('INCRBY', counter, ARGV[6])
end

-- Held already: a grant that this answers, or a repetition.
local had, held, holder, mark = extend(owner, ttl)
if had then
  return granted()
elseif held == 'foreign' then
  return redis.error_reply('DLOCKFOREIGN the value was not written by dlock')
elseif held == 'done' then
  return redis.call('GET', lock)
elseif waits and redis.call('EXISTS', out_key(owner)) == 1 then
  return 'x:'
end

local function take(waited)
  if mode == 'w' then
    redis.call('SET', lock, 'w:' .. owner .. waited, 'PX', ARGV[3])
  else
    if held == 'free' then
      forget_readers()
    end
    let_in(owner, ttl, held == 'free' and owner)
  end
  return granted()
end

local function enqueue()
  if not redis.call('LPOS', queue, entry) then
    redis.call('RPUSH', queue, entry)
  end
  -- Before any `SET`: who has a place keeps it at a server whose memory is full.
  if redis.call('PEXPIRE', alive_key(process), ALIVE_MS) == 0 then
    redis.call('SET', alive_key(process), '1', 'PX', ALIVE_MS)
  end
  if held == 'write' and mark == '' then
    -- Its release must look into the queue.
    redis.call('SET', lock, 'w:' .. holder .. '+', 'KEEPTTL')
  end
  keep_queue(math.max(redis.call('PTTL', lock), 0), ttl)
end

if held == 'free' or (held == 'read' and mode == 'r' and has_room(owner)) then
  if redis.call('EXISTS', queue) == 0 then
    return take('')
  end
  -- Nobody overtakes those who came before.
  if waits then
    enqueue()
  end
  local given, mine, blocked = advance(held, entry)
  held = given == 'r' and 'read' or held
  if mine then
    return granted()
  elseif not (blocked or given == 'w')
    and (held == 'free' or (mode == 'r' and has_room(owner))) then
    -- Nobody was there to take it, or only readers with whom to share it.
    return take(redis.call('EXISTS', queue) == 1 and '+' or '')
  end
elseif waits then
  enqueue()
end
return redis.call('GET', lock)
