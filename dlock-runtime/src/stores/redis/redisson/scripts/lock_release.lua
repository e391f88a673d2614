-- Gives a lock back, and tells those who wait. Nobody is let in: that is for them to ask.
--
--   KEYS[1] lock    KEYS[2] never there, see names.rs
--   ARGV[1] owner   ARGV[2] channel
--
-- Returns 1 if the owner had it, else 0.

if redis.call('HDEL', lock, ARGV[1]) == 0 then
  return 0
end
if redis.call('EXISTS', lock) == 0 then
  publish(ARGV[2], '0')
end
return 1
