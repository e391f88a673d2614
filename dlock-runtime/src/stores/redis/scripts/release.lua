
local queued = ARGV[2] and redis.call('LREM', queue, 1, ARGV[2]) == 1
local held, holder = state()
if held == 'write' and 'w:' .. holder == ARGV[1] then
  -- One script hands the lock on, so that it is never free while somebody
  -- waits and a newcomer cannot overtake.
  if not advance(false) then
    redis.call('DEL', lock)
  end
  return 1
elseif not queued then
  return 0
end
-- Readers may have waited behind this writer only.
if held == 'free' or held == 'read' then
  advance(held == 'read')
end
return 2
