-- Of a counter that has a slot, no connection can say when it was lifted last: the
-- slot may have moved since, or a replica have taken it over. So it is lifted
-- each time, to the server's clock, in microseconds, and to ARGV[7].
local function draw()
  local time = redis.call('TIME')
  local counter = tonumber(redis.call('GET', KEYS[2]) or 0)
  if not counter then
    return redis.error_reply('DLOCKCOUNTER the token counter holds no number')
  end
  local lowest = math.max(counter, time[1] * 1000000 + time[2], tonumber(ARGV[7]))
  local last = lowest + tonumber(ARGV[6])
  -- Exact: doubles hold every whole number up to 2^53, five times the clock.
  redis.call('SET', KEYS[2], string.format('%.0f', last))
  return last
end

