-- Lifts the token counter to the server's clock, in microseconds, if it is
-- behind: tokens rise even if Redis has lost its data, for as long as its
-- clock does not go back.
--
--   KEYS[1] token counter
--   ARGV[1] a number that the counter must not be below either
--
-- Returns the counter.

local time = redis.call('TIME')
local floor = math.max(time[1] * 1000000 + time[2], tonumber(ARGV[1]))
local counter = tonumber(redis.call('GET', KEYS[1]) or 0)
if not counter then
  return redis.error_reply('DLOCKFOREIGN the token counter holds no number')
end
if counter < floor then
  -- Exact: doubles hold every whole number up to 2^53, five times the clock.
  redis.call('SET', KEYS[1], string.format('%.0f', floor))
  counter = floor
end
return counter
