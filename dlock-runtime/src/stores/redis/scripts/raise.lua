-- Raises the token counter to a number, if it is lower.
--
--   KEYS[1] token counter
--   ARGV[1] the number
--   ARGV[2] 1: and to the server's clock, in microseconds. So tokens rise even if
--           Redis has lost its data, for as long as its clock does not go back.
--
-- Returns the counter.

-- A server whose memory is full refuses `INCRBY`, unless the script has written something
-- before. This writes nothing, since the key never exists, and needs no memory. Without the
-- counter there is no connection, and so neither renewals nor releases.
redis.pcall('DEL', KEYS[1] .. ':never')

local lowest = tonumber(ARGV[1])
return draw(KEYS[1], 0, ARGV[2] == '1' and math.max(lowest, clock()) or lowest)
