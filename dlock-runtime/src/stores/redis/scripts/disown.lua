
-- Undoes what there is of waiters whom their own process does not know, and lets
-- the next in: their places in the queue, and a grant that none of them has
-- claimed. A replica that was promoted may not have heard that they were served.
-- A lease that was claimed is left alone, as this may come late.
--
--   KEYS[1] lock
--   ARGV    their entries in the queue
--
-- Returns how much there was of them.

local held, holder, mark = state()
local found = 0
for _, entry in ipairs(ARGV) do
  found = found + redis.call('LREM', queue, 0, entry)
  local mode, owner = string.match(entry, '^([rw]):(%x+%.%x+):')
  if mode == 'w' and held == 'write' and holder == owner and mark == UNCLAIMED then
    found = found + 1
    held = 'free'
    redis.call('DEL', lock)
  elseif mode == 'r' and held == 'read' and redis.call('ZREM', readers, owner .. UNCLAIMED) == 1 then
    found = found + 1
    if redis.call('EXISTS', readers) == 1 then
      -- Not longer than the last of those who stay.
      keep_readers(now())
    else
      held = 'free'
      redis.call('DEL', lock)
    end
  end
end
if found > 0 and (held == 'free' or held == 'read') then
  advance(held == 'read')
end
return found
