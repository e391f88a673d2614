-- The counter was lifted when the connection was made.
local function draw()
  return redis.call('INCRBY', KEYS[2], ARGV[6])
end

