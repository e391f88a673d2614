-- Extends a lease if its owner still holds the lock. Never takes the lock.
--
--   KEYS[1] lock
--   ARGV[1] owner   ARGV[2] ttl in ms
--   ARGV[3] the token of its grant, to be written down; 0 if it has none, or if the key for
--           that may still be at another node
--   ARGV[4] since when it holds the lock, to be written down; given only for a vote
--
-- Returns 1 if the lease was extended, 0 if it has ended.

local token = ARGV[3] ~= '0' and ARGV[3]
local had, held = extend(ARGV[1], tonumber(ARGV[2]), token, ARGV[4])
if had and held == 'read' then
  -- A writer who died at the head of the queue must not keep the readers behind
  -- it out for as long as this lease is renewed.
  advance(held)
end
return had and 1 or 0
