
local queued = ARGV[2] and redis.call('LREM', queue, 1, ARGV[2]) == 1
if held then
  -- One script hands the lock on, so that it is never free while somebody
  -- waits and a newcomer cannot overtake.
  if not advance(false) then
    redis.call('DEL', lock)
  end
  return 1
end
if not queued then
  return 0
end
-- Readers may have waited behind this writer only.
local now_held = state()
if now_held == 'free' or now_held == 'read' then
  advance(now_held == 'read')
end
return 2
