-- The places of one process in the queue of a lock.
--
--   KEYS[1] lock
--   ARGV[1] the process   ARGV[2] how many are enough
--
-- Returns their entries, first come first.

local ending, enough = ':' .. ARGV[1], tonumber(ARGV[2])
local mine = {}
for _, entry in ipairs(redis.call('LRANGE', KEYS[1] .. QUEUE, 0, -1)) do
  if #mine == enough then
    break
  end
  if string.sub(entry, -#ending) == ending then
    mine[#mine + 1] = entry
  end
end
return mine
