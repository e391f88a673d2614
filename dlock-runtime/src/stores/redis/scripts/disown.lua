-- Undoes what there is of waiters whom their own process does not know, and lets
-- the next in: their places in the queue, and a grant that none of them has
-- claimed. A replica that was promoted may not have heard that they were served.
-- A lease that was claimed is left alone, as this may come late.
--
--   KEYS[1] lock
--   ARGV    their entries in the queue
--
-- Returns how much there was of them.

local found, held = 0, nil
for _, entry in ipairs(ARGV) do
  local had
  had, held = take_back(string.match(entry, '^[rw]:' .. OWNER .. ':'), true)
  found = found + redis.call('LREM', queue, 0, entry) + (had and 1 or 0)
end
advance(held)
return found
