-- Raises the token counter to a number, if it is lower.
--
--   KEYS[1] token counter
--   ARGV[1] the number
--
-- Returns the counter.

local counter = tonumber(redis.call('GET', KEYS[1]) or 0)
if not counter then
  return redis.error_reply('DLOCKFOREIGN the token counter holds no number')
end
if counter < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1])
  return tonumber(ARGV[1])
end
return counter
