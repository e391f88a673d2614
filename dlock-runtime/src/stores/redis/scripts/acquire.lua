-- Takes the lock, or a place in its queue. The one question of a waiter, asked
-- as often as it likes: who holds the lock already has its lease extended, and
-- who is in the queue keeps its place.
--
--   KEYS[1] lock   KEYS[2] token counter
--   KEYS[3] to [5], in a cluster: the queue, the readers, and one that is never
--   there
--   ARGV[1] mode: w or r   ARGV[2] owner   ARGV[3] ttl in ms
--   ARGV[4] the process    ARGV[5] 1 to queue, 0 only to try
--   ARGV[6] how many token numbers a grant reserves
--   ARGV[7] in a cluster: a number that the token must be above
--
-- Returns the last of the reserved token numbers, or 0 if the lock was not had.

local mode, owner, ttl, process = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local waits = ARGV[5] == '1'
local entry = mode .. ':' .. owner .. ':' .. ARGV[3] .. ':' .. process

local held, holder, mark = state()
if held == 'foreign' then
  return redis.error_reply('DLOCKFOREIGN the value was not written by dlock')
end

-- Drawn after the lock was taken, so before any later grant.
local function granted()
  return draw()
end

-- Held already: a grant that this answers, or a repetition.
if holder == owner then
  -- First, as a server that is full lets a script go on that has written before.
  redis.call('PEXPIRE', lock, ARGV[3])
  if mark == UNCLAIMED then
    redis.call('SET', lock, 'w:' .. owner .. '+', 'KEEPTTL')
  end
  keep_queue(ttl, ttl)
  return granted()
end
if held == 'read' and mode == 'r' and answers_as_reader(owner) then
  keep_queue(let_in(owner, ttl), ttl)
  return granted()
end

local function take()
  if mode == 'w' then
    local waited = redis.call('EXISTS', queue) == 1 and '+' or ''
    redis.call('SET', lock, 'w:' .. owner .. waited, 'PX', ARGV[3])
  else
    let_in(owner, ttl, held == 'free' and owner)
  end
  return granted()
end

local function enqueue()
  if not redis.call('LPOS', queue, entry) then
    redis.call('RPUSH', queue, entry)
  end
  if held == 'write' and mark == '' then
    -- Its release must look into the queue.
    redis.call('SET', lock, 'w:' .. holder .. '+', 'KEEPTTL')
  end
  redis.call('SET', alive_key(process), '1', 'PX', ALIVE_MS)
  keep_queue(math.max(redis.call('PTTL', lock), 0), ttl)
end

if held == 'free' or (held == 'read' and mode == 'r') then
  if redis.call('EXISTS', queue) == 0 then
    return take()
  end
  -- Nobody overtakes those who came before.
  if waits then
    enqueue()
  end
  local given, mine, blocked = advance(held == 'read', entry)
  if mine then
    return granted()
  elseif blocked or given == 'w' or (given == 'r' and mode == 'w') then
    return 0
  elseif given == 'r' then
    held = 'read'
  end
  -- Nobody was there to take it, or only readers with whom to share it.
  return take()
end

if waits then
  enqueue()
end
return 0
