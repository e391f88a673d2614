-- Undoes what is here of waiters that their own process does not know: their places in the
-- queue, and a grant that none of them has claimed. Then lets the next waiter in. (A
-- replica that was promoted may not have heard that they were served.) A lease that was
-- claimed is left alone, since this script may come late.
--
--   KEYS[1] lock
--   ARGV    their entries in the queue
--
-- Returns how many places and grants it has undone.

local found, held = 0, nil
for _, entry in ipairs(ARGV) do
  local had
  had, held = take_back(string.match(entry, '^[rw]:' .. OWNER .. ':'), true)
  found = found + redis.call('LREM', queue, 0, entry) + (had and 1 or 0)
end
advance(held)
return found
