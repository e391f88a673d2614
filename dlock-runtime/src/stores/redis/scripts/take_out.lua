-- Takes a waiter out of the queue, and tells it. Others keep their places; those for whom it
-- stood in the way are let in.
--
--   KEYS[1] lock
--   ARGV[1] its owner
--
-- Returns 1 if it waited, else 0.

for _, entry in ipairs(redis.call('LRANGE', queue, 0, -1)) do
  local owner, process = string.match(entry, '^[rw]:' .. OWNER .. ':%d+:(.+)$')
  if owner == ARGV[1] then
    -- Before the removal: if the server refuses this because its memory is full, nothing
    -- was done.
    redis.call('SET', out_key(owner), '1', 'PX', ALIVE_MS)
    redis.call('LREM', queue, 0, entry)
    tell(process, entry .. ' ' .. lock)
    local held = state()
    advance(held)
    return 1
  end
end
return 0
